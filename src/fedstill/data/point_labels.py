"""Data with a label for every point or box, and the class numbers used to partition and split it.

Labels of points are (samples, points) and classes are parts; a `category` column contains the kind of object of each
cloud, which partitions by label use.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedstill.core.dataset import Dataset, column, every_row, has_boxes, has_several_labels, rarest_class
from fedstill.core.errors import InputError
from fedstill.data.bundle import Bundle
from fedstill.data.partitions import partitions


def has_point_labels(data: Dataset) -> bool:
    """Whether the data has a label for every point: labels are then (samples, points)."""
    labels = data.labels()
    return labels is not None and labels.ndim == 2 and not has_several_labels(data) and not has_boxes(data)


def shape_kinds(data: Dataset) -> Tensor:
    """One class number per sample, to split and to partition by.

    These are the labels if each sample has one. If every point or box has one, the `category` column contains the kind
    of object of a cloud or the type of room of a scene; without it all samples are of one kind, so that partitions by
    label distribute them without skew. If samples have any number of classes, it is the rarest of them.
    """
    labels = data.labels()
    assert labels is not None, "partitions and splits are made by label"
    if labels.ndim == 1:
        return labels
    if labels.dtype == torch.bool:
        return rarest_class(labels)
    return torch.cat([data.batch(rows).get("category", torch.zeros_like(rows)) for rows in every_row(data, 1024)])


def kind_names(bundle: Bundle) -> tuple[str, ...]:
    """The names of the numbers that `shape_kinds` returns for training data, up to the largest.

    Classes if each sample has one label; kinds of objects, or of rooms, if its points or boxes have labels.
    """
    labels = bundle.train.labels()
    if labels is None or labels.ndim == 1:
        return bundle.classes
    if labels.dtype == torch.bool:
        return (*bundle.classes, "none of these")
    count = int(shape_kinds(bundle.train).max()) + 1
    if count == 1 and not bundle.categories:
        return ("scenes" if bundle.kind == "scene" else "shapes",)
    return (bundle.categories + tuple(f"kind {number}" for number in range(len(bundle.categories), count)))[:count]


def partition_labels(name: str, data: Dataset, classes: int) -> tuple[Tensor, int]:
    """The labels that a partition of this name uses for data of this many classes, and the number of their values.

    These are the classes of all boxes (samples, boxes) for a partition `by_boxes` of scenes, and the sites of samples
    for one `by_site`; else one number per sample. Unlabelled data counts as one class.
    """
    if partitions[name].by_site:
        return _sites(data)
    labels = data.labels()
    if labels is None:
        return torch.zeros(len(data), dtype=torch.int64), classes
    if labels.ndim == 1 or (partitions[name].by_boxes and has_boxes(data)):
        return labels, classes
    kinds = shape_kinds(data)
    return kinds, classes + 1 if labels.dtype == torch.bool else int(kinds.max()) + 1


def groups_of(data: Dataset) -> Tensor | None:
    """The group (the patient) of every sample, as numbers; None where the data has no groups."""
    return column(data, "group")


def _sites(data: Dataset) -> tuple[Tensor, int]:
    """The site of every sample, and their number."""
    sites = column(data, "site")
    if sites is None:
        raise InputError(
            "partition 'sites' needs the site of every sample: a column `site` in the table of labels, a folder per"
            " site (data.site=folder), or data that is given client by client; or choose another partition"
        )
    return sites, int(sites.max()) + 1
