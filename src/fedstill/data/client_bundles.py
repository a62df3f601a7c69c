"""Data sets of several clients, each loaded already or to be loaded by name or path, as one data set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedstill.core.dataset import ArrayDataset, Dataset
from fedstill.core.errors import InputError
from fedstill.data.bundle import Bundle
from fedstill.data.joined_data import joined
from fedstill.data.lazy_data import LazyDataset
from fedstill.data.lookup import by_name, load


def of_clients(given: Sequence[Any], other: Callable[[Any], Bundle]) -> Bundle:
    """One data set of all clients' parts; what is neither a data set nor a name is made one by `other`.

    A client need not have samples of every class: classes are joined by name.
    """
    bundles = [_loaded(one, other) for one in given]
    first = bundles[0]
    for at, one in enumerate(bundles):
        if (one.kind, one.shape) != (first.kind, first.shape):
            raise InputError(
                f"data of client 0 has {first.kind}s of shape {first.shape}, and that of client {at} {one.kind}s of"
                f" shape {one.shape}: give all clients the same"
            )
    same = all(one.classes == first.classes for one in bundles)
    classes = first.classes if same else tuple(sorted({name for one in bundles for name in one.classes}))
    parts: dict[str, list[Dataset]] = {}
    for site, one in enumerate(bundles):
        numbers = torch.tensor([classes.index(name) for name in one.classes])
        for part, data in one.splits().items():
            parts.setdefault(part, []).append(_at_site(data, site, numbers, one.name))
    splits = {part: joined(sets) for part, sets in parts.items()}
    return replace(
        first,
        name="",
        train=splits["train"],
        validation=splits.get("validation"),
        test=splits["test"],
        classes=classes,
        notes=tuple(dict.fromkeys(note for one in bundles for note in one.notes)),
        doubts=tuple(dict.fromkeys(doubt for one in bundles for doubt in one.doubts)),
        unknown=tuple(dict.fromkeys(why for one in bundles for why in one.unknown)),
        sites=len(bundles),
    )


def _loaded(given: Any, other: Callable[[Any], Bundle]) -> Bundle:
    if isinstance(given, Bundle):
        return given
    return load(by_name(given), part=True) if isinstance(given, str | Path) else other(given)


def _at_site(data: Dataset, site: int, numbers: Tensor, name: str) -> Dataset:
    """A client's data with its site, and with labels as the whole numbers them."""
    labels = data.labels()
    if labels is not None and labels.dtype == torch.bool:
        if not isinstance(data, ArrayDataset) or not torch.equal(numbers, torch.arange(len(numbers))):
            raise InputError(
                f"{name} has several classes for a sample: pass arrays, and the same classes of every client"
            )
        return ArrayDataset(**{**_without_numbers(data), "site": torch.full((len(labels),), site)})
    if labels is None or labels.ndim != 1:
        raise InputError(f"{name} has no single label for each sample, and cannot be one client's part of a data set")
    if isinstance(data, LazyDataset):
        assert data.all_labels is not None
        return replace(data, all_labels=numbers[data.all_labels], site=torch.full((len(data.all_labels),), site))
    if not isinstance(data, ArrayDataset):
        raise InputError(f"{name} cannot be one client's part of a data set: pass its samples as arrays")
    return ArrayDataset(
        **{**_without_numbers(data), "labels": numbers[labels], "site": torch.full((len(labels),), site)}
    )


def _without_numbers(data: ArrayDataset) -> dict[str, Tensor]:
    """The columns without numbers of samples, which are counted anew."""
    return {key: column for key, column in data.columns.items() if key != "sample_id"}
