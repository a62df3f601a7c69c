"""Slices of a data set by name: `cifar10[:50%]` and `cifar10[50%:]` have no training sample in common.

A slice contains the given fraction of every class, in the order of the files; the test samples are those of the whole
data set. So one slice can be the clients' data and the other public proxy data.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

import torch
from torch import Tensor

from fedstill.core.dataset import ArrayDataset, Dataset, Subset
from fedstill.core.errors import InputError
from fedstill.data.bundle import Bundle, Source
from fedstill.data.point_labels import shape_kinds

_PART = re.compile(r"(.+)\[([^\[\]]*)\]")
_BOUNDS = re.compile(r"(?:(\d+(?:\.\d+)?)%)?:(?:(\d+(?:\.\d+)?)%)?")


@dataclass(frozen=True)
class Slice:
    """A slice between two fractions of each class."""

    start: Fraction
    stop: Fraction

    def of(self, bundle: Bundle, name: str) -> Bundle:
        """The slice of a data set, under its own name."""
        rows = self.rows(bundle.train)
        if not len(rows):
            raise InputError(f"{name} holds no training sample: {bundle.name} has {len(bundle.train):,} in all")
        return replace(bundle, name=name, train=_taken(bundle.train, rows))

    def rows(self, data: Dataset) -> Tensor:
        """The rows of this slice, ascending; without known kinds of samples, all rows are treated as one kind."""
        kinds = torch.zeros(len(data), dtype=torch.int64) if data.labels() is None else shape_kinds(data)
        parts = []
        for kind in kinds.unique().tolist():
            rows = torch.nonzero(kinds == kind).flatten()
            parts.append(rows[int(self.start * len(rows)) : int(self.stop * len(rows))])
        return torch.cat(parts).sort().values if parts else kinds


def part_of(name: str) -> tuple[str, Slice | None]:
    """A name without its slice, and the slice; None: the whole data set.

    >>> part_of("digits[20%:]")
    ('digits', Slice(start=Fraction(1, 5), stop=Fraction(1, 1)))
    """
    match = _PART.fullmatch(name)
    if match is None:
        return name, None
    bounds = _BOUNDS.fullmatch(match[2])
    if bounds is None and ":" in match[1]:  # a path that ends like this
        return name, None
    if bounds is None:
        raise InputError(f"{name}: a part of a data set is written {match[1]}[:50%], {match[1]}[50%:] or [20%:80%]")
    start, stop = Fraction(bounds[1] or 0) / 100, Fraction(bounds[2] or 100) / 100
    if not start < stop <= 1:
        raise InputError(f"{name}: a part goes from a smaller share to a larger one, and to 100% at most")
    return match[1], Slice(start, stop)


def sliced(loader: Callable[[Source], Bundle], part: Slice, name: str) -> Callable[[Source], Bundle]:
    """A loader of the slice instead of the whole data set."""
    return lambda source: part.of(loader(source), name)


def _taken(data: Dataset, rows: Tensor) -> Dataset:
    """In memory if the whole data set is, so that it can be partitioned and fingerprinted in the same way."""
    if not isinstance(data, ArrayDataset):
        return Subset(data, rows)
    return ArrayDataset(**{name: column.index_select(0, rows) for name, column in data.columns.items()})
