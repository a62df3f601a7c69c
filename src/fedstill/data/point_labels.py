"""Data with a label for every point or box, and what partitions and splits of it go by.

Labels of points are (samples, points) and classes are parts; a `category` column says what kind of thing each cloud
shows, and partitions by label go by that.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedstill.core.dataset import Dataset, every_row, has_boxes
from fedstill.data.bundle import Bundle
from fedstill.data.partitions import partitions


def has_point_labels(data: Dataset) -> bool:
    """Whether data says something of every point: labels are then (samples, points)."""
    labels = data.labels()
    return labels is not None and labels.ndim == 2 and not has_boxes(data)


def shape_kinds(data: Dataset) -> Tensor:
    """One class number per sample, to split and to partition by.

    Labels where each sample has one. Where every point or every box has one, the `category` column says what kind of
    thing a cloud shows, or of room a scene; without such a column all samples are of one kind, so that partitions by
    label deal them out without skew.
    """
    labels = data.labels()
    assert labels is not None, "partitions and splits are made by label"
    if labels.ndim == 1:
        return labels
    return torch.cat([data.batch(rows).get("category", torch.zeros_like(rows)) for rows in every_row(data, 1024)])


def kind_names(bundle: Bundle) -> tuple[str, ...]:
    """What the numbers that `shape_kinds` gives for training data are called: one name each, up to the largest.

    Classes where each sample has one label; kinds of things, or of rooms, where its points or boxes have them.
    """
    labels = bundle.train.labels()
    if labels is None or labels.ndim == 1:
        return bundle.classes
    count = int(shape_kinds(bundle.train).max()) + 1
    if count == 1 and not bundle.categories:
        return ("scenes" if bundle.kind == "scene" else "shapes",)
    return (bundle.categories + tuple(f"kind {number}" for number in range(len(bundle.categories), count)))[:count]


def partition_labels(name: str, data: Dataset, classes: int) -> tuple[Tensor, int]:
    """What a partition of this name goes by in data of so many classes, and how many numbers that counts.

    The classes of all boxes (samples, boxes), if it is a partition `by_boxes` of scenes; else one number per sample.
    Data that nobody labelled is all of one class.
    """
    labels = data.labels()
    if labels is None:
        return torch.zeros(len(data), dtype=torch.int64), classes
    if labels.ndim == 1 or (partitions[name].by_boxes and has_boxes(data)):
        return labels, classes
    kinds = shape_kinds(data)
    return kinds, int(kinds.max()) + 1
