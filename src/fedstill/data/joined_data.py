"""Several data sets, one after the other, as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedstill.core.dataset import ArrayDataset, Batch, Dataset, column, sample_shape
from fedstill.data.lazy_data import Items, LazyDataset


@dataclass(frozen=True)
class Pieces:
    """A column that is too large to be in memory at once: it is hashed like the whole tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    parts: Callable[[], Iterable[Tensor]]


@dataclass(frozen=True)
class JoinedDataset:
    """Rows of several data sets; samples are numbered anew, so that no two have one number."""

    parts: tuple[Dataset, ...]

    def __len__(self) -> int:
        return int(self._ends[-1])

    @cached_property
    def _ends(self) -> Tensor:
        return torch.tensor([len(part) for part in self.parts]).cumsum(0)

    def batch(self, rows: Tensor) -> Batch:
        owners = torch.searchsorted(self._ends, rows, right=True)
        starts = torch.cat([torch.zeros(1, dtype=torch.int64), self._ends])
        pieces, places = [], []
        for owner in owners.unique().tolist():
            at = (owners == owner).nonzero().flatten()
            pieces.append(self.parts[owner].batch(rows[at] - starts[owner]))
            places.append(at)
        if not pieces:
            return self.parts[0].batch(rows)
        order = torch.cat(places).argsort()
        joined = {name: torch.cat([piece[name] for piece in pieces])[order] for name in pieces[0]}
        return {**joined, "sample_id": rows}

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Of one sample, as far as it is known."""
        return sample_shape(self.parts[0])

    def labels(self) -> Tensor | None:
        each = [part.labels() for part in self.parts]
        held = [labels for labels in each if labels is not None]
        return torch.cat(held) if len(held) == len(each) else None

    def unlabelled(self) -> JoinedDataset:
        return JoinedDataset(tuple(part.unlabelled() for part in self.parts))

    def column(self, name: str) -> Tensor | None:
        """A whole column, where all parts have it."""
        held = [one for one in (column(part, name) for part in self.parts) if one is not None]
        return torch.cat(held) if len(held) == len(self.parts) else None

    def contents(self) -> Iterator[tuple[str, Tensor | Pieces]]:
        """What stands for its content in a fingerprint."""
        for part in self.parts:
            yield from contents_of(part)


def lazily_read(sets: Iterable[Dataset]) -> Iterator[Items]:
    """The data sets of the user's own that these read samples from."""
    for data in sets:
        if isinstance(data, JoinedDataset):
            yield from lazily_read(data.parts)
        elif isinstance(data, LazyDataset):
            yield data.items


def joined(sets: Sequence[Dataset]) -> Dataset:
    """The parts of all clients as one data set, in memory if all are; each sample has a number of its own."""
    if len(sets) == 1:
        return sets[0]
    arrays = [one for one in sets if isinstance(one, ArrayDataset)]
    if len(arrays) < len(sets):
        return JoinedDataset(tuple(sets))
    names = [name for name in arrays[0].columns if name != "sample_id"]
    return ArrayDataset(**{name: torch.cat([one.columns[name] for one in arrays]) for name in names})


def contents_of(data: Dataset) -> Iterator[tuple[str, Tensor | Pieces]]:
    """The tensors that a fingerprint is made of: columns as stored, or what a data set says stands for them.

    Otherwise from batches, one piece at a time, to bound memory.
    """
    if (columns := getattr(data, "columns", None)) is not None:
        yield from sorted(columns.items())
    elif (contents := getattr(data, "contents", None)) is not None:
        yield from contents()
    else:
        for rows in torch.arange(len(data)).split(4096):
            yield from sorted(data.batch(rows).items())
