"""Data checks that report all findings instead of stopping at the first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from fedstill.core.dataset import NO_LABEL, ArrayDataset, Dataset
from fedstill.core.errors import InputError
from fedstill.data.bundle import Bundle
from fedstill.data.file_sources import FromFiles, bundled
from fedstill.data.findings import find_doubts, find_faults, labels_by_class
from fedstill.data.layout import BoxSamples, Samples
from fedstill.data.lookup import look_up
from fedstill.data.readers.raw import FileFindings


@dataclass(frozen=True)
class CheckReport:
    """The contents of `fedstill data check`. Data with `problems` may still be `usable`: it then loads."""

    name: str
    where: str
    classes: tuple[str, ...]
    counted: Literal["samples", "points", "boxes"]  # points or boxes if each has its own label
    counts: Mapping[str, tuple[int, ...]]  # split -> number of these per class
    sizes: Mapping[str, int]  # split -> samples
    shapes: Mapping[str, tuple[int, ...]]  # split -> shape of a sample
    kind: str | None
    dtype: str | None
    range: tuple[float, float] | None  # smallest and largest finite value
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    usable: bool
    fingerprint: str | None

    @property
    def ok(self) -> bool:
        return not self.problems


def check(name: str, path: Path | None = None, root: Path | None = None) -> CheckReport:
    """Read a data set as far as possible and report its contents and its problems."""
    loader, source = look_up(name, root, path)
    found = FileFindings(skip=source.settings.on_error == "skip")
    splits: dict[str, Samples] = {}
    classes: tuple[str, ...] = ()
    bundle: Bundle | None = None
    where = "not here" if isinstance(loader, FromFiles) else "built in"
    if name.startswith("hf:"):
        where = "Hugging Face"
    if isinstance(loader, FromFiles):
        with found.collecting():
            where = str(loader.locate(source))
            splits, classes = loader.open(source, found)
            bundle = bundled(name, splits, classes) if not found.faults else None
    else:
        with found.collecting():
            bundle = loader(source)
            splits, classes = _samples(bundle), bundle.classes
            if splits.keys() == bundle.splits().keys():
                find_faults(splits, classes, found)
            else:
                found.notes.append("nobody labelled these: something to learn on, nothing to be tested on")
    find_doubts(splits, classes, found)
    values = [_range(split) for split in splits.values()]
    first = next(iter(splits.values()), None)
    return CheckReport(
        name=name,
        where=where,
        classes=classes,
        counted=_counted(first),
        counts={part: tuple(labels_by_class(split.labels, len(classes))) for part, split in splits.items()},
        sizes={part: len(split.labels) for part, split in splits.items()},
        shapes={part: tuple(split.inputs.shape[1:]) for part, split in splits.items()},
        kind=first.kind if first else None,
        dtype=str(first.inputs.dtype).removeprefix("torch.") if first else None,
        range=(min(low for low, _ in values), max(high for _, high in values)) if values else None,
        problems=(*found.faults, *found.doubts),
        notes=tuple(found.notes),
        usable=bundle is not None and not found.faults,
        fingerprint=bundle.fingerprint() if bundle is not None and not found.faults else None,
    )


def _samples(bundle: Bundle) -> dict[str, Samples]:
    """The splits of a custom loader's bundle, as tensors; for unlabelled scenes, everything there is."""
    if bundle.kind == "scene" and not bundle.classes:
        inputs = bundle.train.batch(torch.arange(len(bundle.train)))["inputs"]
        return {"train": Samples(inputs, torch.full((len(inputs), 1), NO_LABEL), "scene")}
    return {part: _tensors(data, part, bundle) for part, data in bundle.splits().items()}


def _tensors(data: Dataset, part: str, bundle: Bundle) -> Samples:
    labels = data.labels()
    if labels is None:
        raise InputError(f"the {part} split has no labels")
    columns = data.columns if isinstance(data, ArrayDataset) else data.batch(torch.arange(len(data)))
    if bundle.kind != "scene":
        return Samples(columns["inputs"], labels, bundle.kind)
    if "boxes" not in columns:
        raise InputError(f"the {part} split has no boxes")
    return BoxSamples(columns["inputs"], labels, bundle.kind, boxes=columns["boxes"])


def _counted(split: Samples | None) -> Literal["samples", "points", "boxes"]:
    if split is None or split.labels.ndim == 1 or split.labels.dtype == torch.bool:
        return "samples"
    return "boxes" if split.kind == "scene" else "points"


def _range(split: Samples) -> tuple[float, float]:
    finite = [some[torch.isfinite(some)] if some.is_floating_point() else some for some in split.pieces()]
    each = [(float(some.min()), float(some.max())) for some in finite if some.numel()]
    return (min(low for low, _ in each), max(high for _, high in each)) if each else (float("nan"), float("nan"))
