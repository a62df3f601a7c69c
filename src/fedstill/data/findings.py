"""Problems of data that could be read: faults refuse it, doubts are reported by `data check`."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from itertools import combinations

import torch
from torch import Tensor

from fedstill.core.dataset import NO_LABEL
from fedstill.data.data_kinds import data_kinds
from fedstill.data.layout import Samples
from fedstill.data.near_duplicates import marks, pairs_alike, too_many
from fedstill.data.readers.raw import FileFindings


def find_faults(
    splits: Mapping[str, Samples], classes: tuple[str, ...], found: FileFindings, every_class: bool = True
) -> None:
    """Reasons not to train on this data; one site's part of it need not have samples of `every_class`.

    Nor need scenes: a class may have no boxes in a scene data set.
    """
    for part in ("train", "test"):
        if part not in splits and not found.faults:
            found.faults.append(f"there is no {part} split")
    shapes = {part: (split.kind, tuple(split.inputs.shape[1:])) for part, split in splits.items()}
    if len(set(shapes.values())) > 1:
        listed = ", ".join(f"{part} {kind}s {shape}" for part, (kind, shape) in shapes.items())
        found.faults.append(f"samples differ in shape between splits: {listed}")
    if len(set(classes)) < len(classes):
        twice = sorted({name for name in classes if classes.count(name) > 1})
        found.faults.append(f"several classes are called {', '.join(map(repr, twice))}")
    for part, split in splits.items():
        lowest = NO_LABEL if split.kind == "scene" else 0
        several = split.labels.dtype == torch.bool
        if several and split.labels.shape[1] != len(classes):
            width = split.labels.shape[1]
            found.faults.append(f"{part} labels have {width} columns, and there are {len(classes)} classes")
        outside = split.labels[(split.labels < lowest) | (split.labels >= (2 if several else len(classes)))]
        if len(outside) and (classes or not found.faults):  # without class names only the earlier faults are reported
            found.faults.append(
                f"{len(outside):,} {part} labels lie outside 0..{len(classes) - 1}, the first is {outside[0].item()}"
            )
        if split.inputs.is_floating_point():
            bad, flat = _bad_and_flat(split)
            if bad:
                found.faults.append(f"{len(bad):,} {part} samples hold NaN or infinity{_first(split, bad)}")
            if flat and data_kinds[split.kind].points:
                found.faults.append(f"{len(flat):,} {part} {split.kind}s hold one place only{_first(split, flat)}")
        boxes = split.columns().get("boxes")
        if boxes is not None:
            real = boxes[split.labels >= 0]
            wrong = int((~(torch.isfinite(real).all(dim=1) & (real[:, 3:6] > 0).all(dim=1))).sum())
            if wrong:
                found.faults.append(f"{wrong:,} {part} boxes have sizes that are not above 0, or are no numbers")
    if "train" in splits and every_class and splits["train"].kind != "scene":
        for name, count in zip(classes, labels_by_class(splits["train"].labels, len(classes)), strict=True):
            if count == 0:
                found.faults.append(f"class {name!r} has no training samples: add some, or take the class away")


def _bad_and_flat(split: Samples) -> tuple[list[int], list[int]]:
    """The rows with values that are not finite, and those whose parts are all alike; inputs are read once for both."""
    marks = [
        torch.stack([(~torch.isfinite(some.flatten(1))).any(dim=1), (some == some[:, :1]).flatten(1).all(dim=1)])
        for some in split.pieces()
    ]
    bad, flat = torch.cat(marks, dim=1) if marks else torch.zeros(2, 0)
    return bad.nonzero().flatten().tolist(), flat.nonzero().flatten().tolist()


def _first(split: Samples, rows: list[int]) -> str:
    return f", the first is {split.name(rows[0])}" if split.where else ""


def find_doubts(splits: Mapping[str, Samples], classes: tuple[str, ...], found: FileFindings) -> None:
    """Reasons to distrust results on this data."""
    if any(split.kind == "scene" for split in splits.values()):
        _find_lacking_boxes(splits, classes, found)
        for kind in dict.fromkeys(split.kind for split in splits.values()):
            if (doubt := data_kinds[kind].find_doubts) is not None:
                doubt(splits, found)
    else:
        _find_lacking_samples(splits, classes, found)
        _find_untested_sites(splits, found)
        if len(classes) == 1:
            found.doubts.append(f"there is one class, {classes[0]!r}: a model needs at least two")
    digests = {part: _digests(split) for part, split in splits.items()}
    kept = {part: marks(split) for part, split in splits.items()}
    for one, other in combinations(splits, 2):
        same = set(digests[one]) & set(digests[other])
        if same:
            are = "sample is" if len(same) == 1 else "samples are"
            found.doubts.append(f"{len(same):,} identical {are} in both {one} and {other}")
        if (ours := kept[one]) is not None and (theirs := kept[other]) is not None:
            if too_many(ours, theirs):
                found.notes.append(
                    f"{one} and {other} are too large to be searched for images that are nearly the same"
                )
                continue
            pairs = [pair for pair in pairs_alike(ours, theirs) if digests[other][pair[1]] not in same]
            _report_alike(pairs, splits, one, other, found)


def _report_alike(
    pairs: list[tuple[int, int]], splits: Mapping[str, Samples], one: str, other: str, found: FileFindings
) -> None:
    """Samples that are nearly in two splits, with the first pair."""
    if not pairs:
        return
    mine, theirs = splits[one].name(pairs[0][0]), splits[other].name(pairs[0][1])
    what = (
        "the points of one in another order" if splits[one].kind == "cloud" else "saved anew, or of other size or light"
    )
    are = f"{splits[other].kind} is" if len(pairs) == 1 else f"{splits[other].kind}s are"
    found.doubts.append(
        f"{len(pairs):,} {other} {are} nearly the same as in {one} ({what}): the first is {theirs}, like {mine}"
    )


def _find_lacking_samples(splits: Mapping[str, Samples], classes: tuple[str, ...], found: FileFindings) -> None:
    if "test" in splits:
        for name, count in zip(classes, labels_by_class(splits["test"].labels, len(classes)), strict=True):
            if count == 0:
                found.doubts.append(f"class {name!r} has no test samples: its accuracy cannot be measured")
    if "train" in splits:
        for name, count in zip(classes, labels_by_class(splits["train"].labels, len(classes)), strict=True):
            if count == 1:
                found.doubts.append(f"class {name!r} has a single training sample: it can hardly be learned")


def _find_untested_sites(splits: Mapping[str, Samples], found: FileFindings) -> None:
    trained, tested = (set(splits[part].sites) if part in splits else set[str]() for part in ("train", "test"))
    if tested and (lacking := sorted(trained - tested)):
        found.doubts.append(
            f"{len(lacking):,} of {len(trained):,} sites have no test samples, the first is {lacking[0]!r}: its"
            " accuracy cannot be measured"
        )


def _find_lacking_boxes(splits: Mapping[str, Samples], classes: tuple[str, ...], found: FileFindings) -> None:
    """Classes without boxes in a split, reported together, since detectors often have many such classes."""
    why = {"train": "they cannot be learned", "test": "how well they are found cannot be measured"}
    for part, consequence in why.items():
        if part in splits:
            counts = labels_by_class(splits[part].labels, len(classes))
            lacking = [repr(name) for name, count in zip(classes, counts, strict=True) if count == 0]
            if lacking:
                found.doubts.append(f"no {part} scene has a box of {', '.join(lacking)}: {consequence}")


def labels_by_class(labels: Tensor, classes: int) -> list[int]:
    """The number of samples, boxes or points per class; labels that match no class are ignored.

    >>> labels_by_class(torch.tensor([0, 2, 2, 9]), 3)
    [1, 0, 2]
    """
    if labels.dtype == torch.bool:
        return [int(count) for count in labels.sum(dim=0)]
    inside = labels[(labels >= 0) & (labels < classes)]
    counts: list[int] = torch.bincount(inside, minlength=classes).tolist()
    return counts


def _digests(split: Samples) -> list[bytes]:
    rows = (row for some in split.pieces() for row in some.contiguous().flatten(1).numpy())
    return [blake2b(row, digest_size=16).digest() for row in rows]
