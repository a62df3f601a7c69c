"""Conversion of arrays to the common layout: images (N, C, H, W), clouds (N, points, 3), labels int64.

Clouds are normalised here, so that no reader needs to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from typing import cast

import numpy as np
import torch
from torch import Tensor

from fedstill.core.dataset import ArrayDataset, Dataset, rarest_class
from fedstill.core.errors import InputError
from fedstill.data.bundle import Kind
from fedstill.data.clouds import normalise
from fedstill.data.feature_preparation import Preparation
from fedstill.data.lazy_images import LazyImages
from fedstill.data.readers.lazy_pixels import LazyPixels
from fedstill.data.readers.raw import Array, FileFindings, Raw, Split
from fedstill.data.splits import hold_out

_CHANNELS = (1, 3, 4)
_AT_ONCE = 256  # samples of a piece
_MOST_CLASSES = 2**16  # without class names: a larger label is an identifier or damage, not a class


@dataclass
class Samples:
    """One split in the common layout."""

    inputs: Tensor
    labels: Tensor
    kind: Kind
    where: str = ""  # its source files, for error messages
    names: tuple[str, ...] = ()  # the file of every row, if each has its own
    category: Tensor | None = None  # the kind of every cloud, if labels are per point, or the type of a room
    categories: tuple[str, ...] = ()  # names of these kinds
    sites: tuple[str, ...] = ()  # of every row, where they are known
    groups: tuple[str, ...] = ()  # patients, of every row, where they are known
    numbers: dict[str, Tensor] = field(default_factory=dict)  # sites and groups as columns of numbers
    sources: tuple[object, ...] = ()  # of each sample, where more can be read of it later
    preparation: Preparation | None = None  # what was done to the columns of a table
    rows: Tensor | None = None  # the place of each sample in its source, where some of them were taken

    def columns(self) -> dict[str, Tensor]:
        """The columns of the data set."""
        more = {} if self.category is None else {"category": self.category}
        return {"inputs": self.inputs, "labels": self.labels, **more, **self.numbers}

    def dataset(self) -> Dataset:
        """The split as a data set."""
        columns = self.columns()
        pixels: object = columns.pop("inputs")
        if isinstance(pixels, LazyPixels):
            return LazyImages(pixels, columns)
        return ArrayDataset(inputs=self.inputs, **columns)

    def pieces(self) -> Iterator[Tensor]:
        """The inputs, some at a time."""
        yield from self.inputs.split(_AT_ONCE)

    def name(self, row: int) -> str:
        """The source of a sample."""
        if self.names:
            return self.names[row]
        return f"row {row if self.rows is None else int(self.rows[row])} of {self.where}"


@dataclass
class BoxSamples(Samples):
    """A split of samples with boxes: labels (samples, boxes) are the classes of the boxes."""

    boxes: Tensor = field(default_factory=lambda: torch.zeros(0, 0, 7))

    def columns(self) -> dict[str, Tensor]:
        return {**super().columns(), "boxes": self.boxes}


def tidy(
    raw: Raw, found: FileFindings, classes: tuple[str, ...] | None = None, normals: bool = False
) -> tuple[dict[str, Samples], tuple[str, ...]]:
    """The usable splits and their class names; data without a split is split here.

    `classes` are names for files without class names; without these too, classes are named by their numbers. With
    `normals`, six numbers per row are a point and its normal.
    """
    splits: dict[str, Samples] = {}
    for part, split in raw.splits.items():
        with found.collecting():
            splits[part] = _samples(split, normals)
    classes = raw.classes or classes or ()
    if not classes:
        with found.collecting():
            classes = _numbered(splits)
    listed = [split.labels for split in splits.values() if split.labels.ndim > 1]
    if listed and all(bool((labels.sum(dim=1) == 1).all()) for labels in listed):
        found.doubts.append(
            "every sample has exactly one of the classes: give one label, unless others may have several"
        )
    whole = splits.pop("whole", None)
    if whole is not None:
        whole, classes = populated(whole, classes, found)
        if len(whole.labels):
            rows = held_out_rows(whole.labels, whole.sites, whole.groups, found)
            splits = {part: taken(whole, some) for part, some in rows.items() if len(some)}
        else:
            found.faults.append(f"every class has a single sample: nothing can be learned and tested ({whole.where})")
    splits = in_order(splits, found)
    number_sites_and_groups(splits, found)
    return splits, classes


def in_order(splits: dict[str, Samples], found: FileFindings) -> dict[str, Samples]:
    """The splits in their order; without test data, validation data is tested on."""
    if "validation" in splits and "test" not in splits:
        found.notes.append("there is no test split: the validation split is tested on")
        splits = {"test" if part == "validation" else part: split for part, split in splits.items()}
    return {part: splits[part] for part in ("train", "validation", "test") if part in splits}


def number_sites_and_groups(splits: dict[str, Samples], found: FileFindings) -> None:
    """Make sites and groups columns of numbers, the same in all splits; a group in two splits is a fault."""
    for name, kind in (("site", "sites"), ("group", "groups")):
        held = {part: getattr(split, kind) for part, split in splits.items()}
        every = sorted({one for some in held.values() for one in some})
        place = {one: number for number, one in enumerate(every)}
        for part, some in held.items():
            if some:
                splits[part].numbers[name] = torch.tensor([place[one] for one in some])
    pairs = {pair for split in splits.values() for pair in zip(split.groups, split.sites, strict=False)}
    if several := len(pairs) - len({group for group, _ in pairs}):
        found.doubts.append(f"{several:,} groups have samples at several sites: --partition sites divides them")
    for one, other in combinations(splits, 2):
        if shared := sorted(set(splits[one].groups) & set(splits[other].groups)):
            found.faults.append(
                f"{len(shared):,} groups are in both {one} and {other}, the first is {shared[0]!r}: give each to one"
                " split, or leave the column of splits out"
            )


def _samples(split: Split, normals: bool) -> Samples:
    for what, array in (("samples", split.inputs), ("labels", split.labels)):
        if not array.ndim:
            raise InputError(f"there is one value where {what} are expected ({split.where})")
    if len(split.inputs) != len(split.labels):
        raise InputError(f"{len(split.inputs):,} samples but {len(split.labels):,} labels ({split.where})")
    if not len(split.inputs):
        raise InputError(f"no samples ({split.where})")
    inputs, kind = as_inputs(split.inputs, split.where, normals)
    labels = as_labels(split.labels, split.where)
    return Samples(inputs, labels, kind, split.where, split.names, sites=split.sites, groups=split.groups)


def held_out_rows(
    labels: Tensor, sites: tuple[str, ...], groups: tuple[str, ...], found: FileFindings
) -> dict[str, Tensor]:
    """Training and test rows of data without a split; of every class at every site, and of whole groups."""
    at, by = " at every site" if sites else "", ", whole groups only" if groups else ""
    found.notes.append(f"the files have no split: a fifth of every class{at} is held out for testing{by}")
    if labels.ndim > 1:
        labels = rarest_class(labels)
    places = _codes(sites)
    strata = labels if places is None else labels + (int(labels.max()) + 1) * places
    rows = dict(zip(("train", "test"), hold_out(strata, _codes(groups)), strict=True))
    if not len(rows["test"]):
        what = "group" if groups else "sample"
        found.faults.append(
            f"there is one {what} of each class{at}: nothing can be learned and tested, so add some, or a column of"
            " splits"
        )
    return rows


def _codes(names: tuple[str, ...]) -> Tensor | None:
    """Names as numbers, in their order; None where there are none."""
    return torch.from_numpy(np.unique(np.array(names), return_inverse=True)[1].astype(np.int64)) if names else None


def populated(whole: Samples, classes: tuple[str, ...], found: FileFindings) -> tuple[Samples, tuple[str, ...]]:
    """Drops classes with a single sample, which cannot be used for both training and testing.

    Such a class is left out, not refused, so that collections with a few odd classes can be used unchanged. (If the
    files come with their own split, nothing is left out: their authors decided.)
    """
    if whole.labels.ndim > 1:  # any number of classes: no sample is of one alone
        return whole, classes
    inside = (whole.labels >= 0) & (whole.labels < len(classes))
    counts = torch.bincount(whole.labels[inside], minlength=len(classes))
    lonely = (counts == 1).nonzero().flatten().tolist()
    if not lonely:
        return whole, classes
    for label in lonely:
        at = int((whole.labels == label).nonzero()[0])
        found.doubts.append(
            f"class {classes[label]!r} has a single sample, {whole.name(at)}: "
            "it cannot be trained on and tested on at once, and is left out"
        )
    kept = torch.tensor([label for label in range(len(classes)) if label not in lonely], dtype=torch.int64)
    numbers = torch.full((len(classes),), -1, dtype=torch.int64)
    numbers[kept] = torch.arange(len(kept))
    stays = ~inside | (numbers[whole.labels.clamp(0, len(classes) - 1)] >= 0)
    whole = taken(whole, stays.nonzero().flatten())
    # Labels that match no class are unchanged, to be reported later; they must not become a class by accident.
    known = (whole.labels >= 0) & (whole.labels < len(classes))
    whole.labels = torch.where(known, numbers[whole.labels.clamp(0, len(classes) - 1)], whole.labels)
    return whole, tuple(classes[label] for label in kept.tolist())


def taken(samples: Samples, rows: Tensor) -> Samples:
    """Some rows of a split."""
    chosen = rows.tolist()
    names, sites, groups = (
        tuple(each[row] for row in chosen) if each else () for each in (samples.names, samples.sites, samples.groups)
    )
    inputs, labels = samples.inputs[rows], samples.labels[rows]
    places = rows if samples.rows is None else samples.rows[rows]
    return Samples(inputs, labels, samples.kind, samples.where, names, sites=sites, groups=groups, rows=places)


def _numbered(splits: dict[str, Samples]) -> tuple[str, ...]:
    """Names for unnamed classes, from the training labels; a larger label in the test data is reported as a fault."""
    deciding = splits.get("train") or splits.get("whole")
    if deciding is None:
        return ()
    if deciding.labels.ndim > 1:
        return tuple(str(number) for number in range(deciding.labels.shape[1]))
    largest = int(deciding.labels.max())
    if largest >= _MOST_CLASSES:
        raise InputError(f"labels go up to {largest:,}: number the classes from 0 without gaps ({deciding.where})")
    return tuple(str(number) for number in range(largest + 1))


def as_labels(labels: Array, where: str) -> Tensor:
    """Integer labels, one per sample; a column of them (as in MedMNIST) is accepted as well as a row.

    Several columns of 0 and 1 say of each class whether a sample has it.

    >>> as_labels(np.array([[2], [0]], dtype=np.uint8), "labels.npz")
    tensor([2, 0])
    >>> as_labels(np.array([[1, 0], [1, 1]]), "findings.npz")
    tensor([[ True, False],
            [ True,  True]])
    """
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim == 2 and labels.dtype.kind in "biu" and bool(((labels == 0) | (labels == 1)).all()):
        return torch.from_numpy(labels.astype(bool))
    if labels.ndim != 1:
        raise InputError(
            f"labels have the shape {labels.shape}, expected is one class number per sample, or a column of"
            f" 0 and 1 for each class ({where})"
        )
    if labels.dtype.kind not in "iu":
        raise InputError(f"labels are of type {labels.dtype}, expected are whole numbers ({where})")
    if labels.size and int(labels.max()) > np.iinfo(np.int64).max:
        raise InputError(f"labels go up to {labels.max()}, which is no class number ({where})")
    return torch.from_numpy(labels.astype(np.int64))


def as_inputs(array: Array | LazyPixels, where: str, normals: bool = False) -> tuple[Tensor, Kind]:
    """Images or clouds, distinguished by shape: three floats per row are points in space; six, with `normals`.

    >>> pixels, kind = as_inputs(np.zeros((5, 28, 28, 3), dtype=np.uint8), "cells.npz")
    >>> kind, tuple(pixels.shape)
    ('image', (5, 3, 28, 28))
    >>> as_inputs(np.zeros((5, 1024, 3), dtype=np.float16), "chairs.npz")[1]
    'cloud'
    """
    if isinstance(array, LazyPixels):  # stands for a tensor wherever splits are checked
        return cast(Tensor, array), "image"
    array = as_numbers(array, where)
    if array.ndim == 3 and array.shape[2] in ((3, 6) if normals else (3,)) and array.dtype == np.float32:
        if not array.shape[1]:
            raise InputError(f"clouds hold no points ({where})")
        return torch.from_numpy(normalise(np.ascontiguousarray(array))), "cloud"
    if 0 in array.shape[1:]:
        raise InputError(f"samples of the shape {array.shape[1:]} hold nothing ({where})")
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and array.shape[3] in _CHANNELS:
        array = array.transpose(0, 3, 1, 2)
    elif array.ndim != 4 or array.shape[1] not in _CHANNELS:
        raise InputError(
            f"samples of the shape {array.shape[1:]} are neither images (height, width[, channels]) "
            f"nor clouds (points, 3) ({where})"
        )
    return torch.from_numpy(np.array(array, order="C")), "image"


def as_numbers(array: Array, where: str) -> Array:
    """8-bit integers if the values allow it, else float32; pixels are not rescaled."""
    if array.dtype == np.uint8:
        return array
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * np.uint8(255)
    if array.dtype.kind in "iu":
        if array.size and (array.min() < 0 or array.max() > 255):
            raise InputError(f"whole-number samples range over {array.min()}..{array.max()}, not 0..255 ({where})")
        return array.astype(np.uint8)
    if array.dtype.kind == "f":
        return array.astype(np.float32)
    raise InputError(f"samples are of type {array.dtype}, expected are 8-bit or float numbers ({where})")
