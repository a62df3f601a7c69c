"""Data sets of the user's own that are read when their samples are needed.

All samples are read once beforehand, for labels, for a digest and to find what cannot be used. Some are read a second
time: a data set that then gives other values, e.g. because it augments, has no content that could be recognised again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedstill.core.dataset import Batch, as_floats
from fedstill.core.errors import DataChangedError, InputError
from fedstill.data.arrangement import Arrangement, as_tensor

_log = logging.getLogger(__name__)

_AT_ONCE = 256
_SECONDS = 2.0  # a data set that is read in less is read twice as a whole; of others, some samples are
_AGAIN = 256
_MULTIPLIER = 6364136223846793005  # of Knuth's generator: weights of a checksum


class Items(Protocol):
    """Samples that can be read by their rows."""

    name: str
    classes: tuple[str, ...] | None  # where the data set names them

    def __len__(self) -> int: ...

    def read(self, rows: Sequence[int]) -> tuple[Any, Sequence[Any]]:
        """Inputs, as one array or a list with one per sample, and labels."""
        ...


class TorchItems:
    """A map-style torch data set, or anything else with a length and samples by number."""

    def __init__(self, source: Any, name: str, label: str | None = None) -> None:
        self.source, self.name = source, name
        self.labels = LABELS if label is None else (label,)
        classes = getattr(source, "classes", None)
        listed = classes if isinstance(classes, list | tuple) else ()
        self.classes = tuple(listed) if listed and all(isinstance(one, str) for one in listed) else None

    def __len__(self) -> int:
        return len(self.source)

    def read(self, rows: Sequence[int]) -> tuple[Any, Sequence[Any]]:
        pairs = [_pair(self._item(row), self.labels, self.name) for row in rows]
        return [one for one, _ in pairs], [label for _, label in pairs]

    def _item(self, row: int) -> Any:
        try:
            return self.source[row]
        except Exception as error:  # a user's own data set may raise anything
            why = " ".join(str(error).split())[:200]
            raise InputError(
                f"sample {row} of {self.name} cannot be read ({type(error).__name__}: {why}): mend its __getitem__"
            ) from error


INPUTS = ("inputs", "input", "image", "img", "pixel_values", "x", "features", "data")
LABELS = ("label", "labels", "target", "targets", "y", "class")


def _pair(item: Any, labels: Sequence[str], name: str) -> tuple[Any, Any]:
    """A sample and its label."""
    if isinstance(item, Mapping):
        inputs, label = (next((key for key in keys if key in item), None) for keys in (INPUTS, labels))
        if inputs is not None and label is not None:
            return item[inputs], item[label]
        raise InputError(f"samples of {name} have {', '.join(map(repr, item))}: give `inputs` and `labels` among them")
    if isinstance(item, tuple | list) and len(item) >= 2:
        return item[0], item[1]
    raise InputError(f"samples of {name} must be (input, label), and the first is a {type(item).__name__}")


@dataclass(frozen=True)
class LazyDataset:
    """Rows of a data set that are read batch by batch; what was found out when they were read for the first time."""

    items: Items
    arrangement: Arrangement
    rows: Tensor
    all_labels: Tensor | None  # of all samples, whether among the rows or not
    checksums: Tensor  # likewise
    digest: str  # of all samples
    stable: bool = True  # False: it gives other values when it is read again
    site: Tensor | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, rows: Tensor) -> Batch:
        wanted = self.rows.index_select(0, rows)
        try:
            inputs = _stacked(self.items.read(wanted.tolist())[0], self.items.name)
        except InputError as error:
            raise DataChangedError(str(error)) from error
        if self.stable and not torch.equal(found := _checksums(inputs), self.checksums[wanted]):
            at = int(wanted[(found != self.checksums[wanted]).nonzero()[0]])
            raise DataChangedError(
                f"sample {at} of {self.items.name} is not what it was when the data set was examined: pass it again"
            )
        columns = {"inputs": as_floats(self.arrangement(inputs)), "sample_id": wanted}
        if self.all_labels is not None:
            columns["labels"] = self.all_labels[wanted]
        if self.site is not None:
            columns["site"] = self.site[wanted]
        return columns

    def labels(self) -> Tensor | None:
        return None if self.all_labels is None else self.all_labels[self.rows]

    def unlabelled(self) -> LazyDataset:
        return replace(self, all_labels=None)

    def taken(self, rows: Tensor) -> LazyDataset:
        """Some of its rows."""
        return replace(self, rows=self.rows[rows])

    def column(self, name: str) -> Tensor | None:
        """A whole column that is at hand."""
        return self.site[self.rows] if name == "site" and self.site is not None else None

    def contents(self) -> Iterator[tuple[str, Tensor]]:
        """What stands for its content in a fingerprint."""
        digest = torch.frombuffer(bytearray.fromhex(self.digest), dtype=torch.uint8)
        arrangement = f"{self.arrangement.kind}: {self.arrangement.change}".encode()
        named = {
            "digest": digest,
            "arrangement": torch.frombuffer(bytearray(arrangement), dtype=torch.uint8),
            "rows": self.rows,
            "labels": self.labels(),
            "site": self.column("site"),
        }
        yield from ((name, tensor) for name, tensor in named.items() if tensor is not None)


@dataclass(frozen=True)
class Examined:
    """A data set that was read once, with labels as they came."""

    data: LazyDataset
    labels: list[Any]
    shape: tuple[int, ...]
    dtype: torch.dtype
    notes: tuple[str, ...]


def examined(items: Items, kind: str | None) -> Examined:
    """Read every sample once, and some twice."""
    if not len(items):
        raise InputError(f"{items.name} holds no samples")
    began = perf_counter()
    every = range(len(items))
    digest = blake2b(digest_size=32)
    arrangement, shape, dtype, labels, sums, size = None, None, None, [], [], 0
    for start in every[::_AT_ONCE]:
        inputs, some = items.read(list(every[start : start + _AT_ONCE]))
        batch = _stacked(inputs, items.name)
        if shape is None:
            shape, dtype, arrangement = batch.shape[1:], batch.dtype, Arrangement.of(batch, kind, items.name)
        _check(batch, shape, items.name, start)
        _check_types({dtype, batch.dtype}, items.name)
        sums.append(_checksums(batch))
        digest.update(f"{batch.dtype} {tuple(shape)}".encode())
        digest.update(batch.contiguous().view(-1).view(torch.uint8).numpy().data)
        labels += list(some)
        size += batch.nbytes
    assert arrangement is not None
    seconds = perf_counter() - began
    checksums = torch.cat(sums)
    again = every if seconds < _SECONDS else sorted({int(row) for row in np.linspace(0, len(every) - 1, _AGAIN)})
    stable = _reads_alike(items, again, checksums, labels)
    amount = f"{len(every):,} samples, {size / 1e6:,.1f} MB, {seconds:.1f} s"
    cost = f"{items.name} was read once to be recognised again: {amount}"
    _log.info(cost)
    data = LazyDataset(items, arrangement, torch.arange(len(every)), None, checksums, digest.hexdigest(), stable)
    first = arrangement(_stacked(items.read([0])[0], items.name))
    return Examined(data, labels, tuple(first.shape[1:]), first.dtype, (cost, *arrangement.notes))


def _reads_alike(items: Items, rows: Sequence[int], checksums: Tensor, labels: Sequence[Any]) -> bool:
    """Whether these rows are the same when they are read again."""
    for start in range(0, len(rows), _AT_ONCE):
        some = list(rows[start : start + _AT_ONCE])
        inputs, found = items.read(some)
        if not torch.equal(_checksums(_stacked(inputs, items.name)), checksums[some]):
            return False
        if any(repr(one) != repr(labels[row]) for row, one in zip(some, found, strict=True)):
            return False
    return True


def _stacked(inputs: Any, name: str) -> Tensor:
    """Samples as one tensor."""
    if not isinstance(inputs, list):
        return as_tensor(inputs, name)
    each = [as_tensor(one, name) for one in inputs]
    if len(shapes := sorted({tuple(one.shape) for one in each})) > 1:
        raise InputError(f"samples of {name} differ in shape, {shapes[0]} and {shapes[1]}: give all the same")
    _check_types({one.dtype for one in each}, name)
    return torch.stack(each)


def _check(batch: Tensor, shape: Sequence[int], name: str, start: int) -> None:
    if tuple(batch.shape[1:]) != tuple(shape):
        raise InputError(
            f"samples of {name} differ in shape, {tuple(shape)} and {tuple(batch.shape[1:])}: give all the same"
        )
    if batch.is_floating_point() and not bool(torch.isfinite(batch).all()):
        bad = int((~torch.isfinite(batch.flatten(1))).any(dim=1).nonzero()[0]) + start
        raise InputError(f"sample {bad} of {name} holds NaN or infinity: leave it out, or replace the value")


def _check_types(types: set[torch.dtype | None], name: str) -> None:
    if len(types) > 1:
        raise InputError(f"some samples of {name} are 8-bit integers, and others are not: give all the same type")


def _checksums(batch: Tensor) -> Tensor:
    """A number per sample that depends on each value and its place; exact, whatever else is in the batch."""
    flat = batch.contiguous().flatten(1)
    words = flat.view(torch.int32) if flat.dtype == torch.float32 else flat
    weights = torch.arange(1, words.shape[1] + 1).mul_(_MULTIPLIER).bitwise_or_(1)
    return (words.to(torch.int64) * weights).sum(dim=1)
