"""Data as columns by name. An unlabelled set has no `labels` column at all, so nothing can read one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from fedstill.core.errors import InputError

Batch = Mapping[str, Tensor]

KNOWN = "_fedstill_known"  # attribute of a tensor that is kept: what was computed of it, by what it is
ANSWERS = ("labels", "boxes")  # where things are is an answer too


def without_answers(columns: Batch) -> dict[str, Tensor]:
    """What code without access to the labels may read.

    >>> sorted(without_answers(dict.fromkeys(("inputs", "labels", "boxes", "sample_id"), torch.zeros(1))))
    ['inputs', 'sample_id']
    """
    return {name: column for name, column in columns.items() if name not in ANSWERS}


class Dataset(Protocol):
    """Columns by name; `inputs` and `sample_id` are always among them, `labels` only where there are any."""

    def __len__(self) -> int: ...

    def batch(self, rows: Tensor) -> Batch:
        """The columns of these rows (int64), ready for a model: inputs are floats."""
        ...

    def labels(self) -> Tensor | None:
        """The whole label column, or None where there is none."""
        ...

    def unlabelled(self) -> Dataset:
        """The same rows without their labels: label-free training gets only this."""
        ...


def as_floats(inputs: Tensor) -> Tensor:
    """Inputs as a model reads them: 8-bit values 0..255 are mapped to -1..1."""
    if inputs.dtype == torch.uint8:
        return inputs.float().div_(127.5).sub_(1.0)
    return inputs if inputs.dtype == torch.float32 else inputs.float()


class ArrayDataset:
    """Columns held in memory. 8-bit inputs stay 8-bit until a batch is made, which maps 0..255 to -1..1.

    >>> data = ArrayDataset(inputs=torch.zeros(4, 1, 2, 2, dtype=torch.uint8), labels=torch.tensor([0, 1, 0, 1]))
    >>> batch = data.batch(torch.tensor([1, 3]))
    >>> batch["labels"].tolist(), batch["sample_id"].tolist(), batch["inputs"].min().item()
    ([1, 1], [1, 3], -1.0)
    """

    def __init__(self, **columns: Tensor) -> None:
        sizes = {name: len(column) for name, column in columns.items()}
        if "inputs" not in columns or len(set(sizes.values())) != 1:
            raise ValueError(f"columns must include `inputs` and have one length: {sizes}")
        self.columns = dict(columns)
        self.columns.setdefault("sample_id", torch.arange(sizes["inputs"]))

    def __len__(self) -> int:
        return len(self.columns["inputs"])

    def whole(self) -> Batch:
        """All rows as one batch, the same tensors every time unless somebody has changed them."""
        batch, versions = _whole.get(self, ({}, [-1]))
        if versions != [tensor._version for tensor in batch.values()]:
            batch = self.batch(torch.arange(len(self)))
            for tensor in batch.values():
                setattr(tensor, KNOWN, {})
            _whole[self] = batch, [tensor._version for tensor in batch.values()]
        return batch

    def batch(self, rows: Tensor) -> Batch:
        batch = {name: column.index_select(0, rows) for name, column in self.columns.items()}
        return {**batch, "inputs": as_floats(batch["inputs"])}

    def labels(self) -> Tensor | None:
        return self.columns.get("labels")

    def unlabelled(self) -> ArrayDataset:
        return ArrayDataset(**without_answers(self.columns))


# Beside the data sets, not in them: their content, by which runs are recognised, is what they were made of.
_whole: WeakKeyDictionary[ArrayDataset, tuple[Batch, list[int]]] = WeakKeyDictionary()


class Subset:
    """Some rows of another data set, without a copy: a client's shard, a validation share."""

    def __init__(self, data: Dataset, rows: Tensor) -> None:
        self.data, self.rows = data, rows

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, rows: Tensor) -> Batch:
        return self.data.batch(self.rows.index_select(0, rows))

    def prefetch(self, rows: Tensor) -> None:
        """Begin to read these rows, where the data set can."""
        begin_reading(self.data, self.rows.index_select(0, rows))

    def labels(self) -> Tensor | None:
        labels = self.data.labels()
        return None if labels is None else labels[self.rows]

    def unlabelled(self) -> Subset:
        return Subset(self.data.unlabelled(), self.rows)


class Relabelled:
    """The same rows with other labels, by a table from a class to another; the data itself is not touched.

    >>> data = ArrayDataset(inputs=torch.zeros(3, 1), labels=torch.tensor([0, 1, 2]))
    >>> Relabelled(data, torch.tensor([2, 1, 0])).labels().tolist(), data.labels().tolist()
    ([2, 1, 0], [0, 1, 2])
    """

    def __init__(self, data: Dataset, table: Tensor) -> None:
        self.data, self.table = data, table

    def __len__(self) -> int:
        return len(self.data)

    def batch(self, rows: Tensor) -> Batch:
        batch = self.data.batch(rows)
        return {**batch, "labels": self._changed(batch["labels"])} if "labels" in batch else batch

    def labels(self) -> Tensor | None:
        labels = self.data.labels()
        return None if labels is None else self._changed(labels)

    def unlabelled(self) -> Dataset:
        return self.data.unlabelled()

    def _changed(self, labels: Tensor) -> Tensor:
        """What is no label, as in rows of boxes that only fill up, stays none."""
        return torch.where(labels < 0, labels, self.table[labels.clamp(min=0)])


class KnownBoxes:
    """The same rows with the boxes of some classes only, in their order; padding fills the places of the others.

    >>> boxes = torch.arange(3.0).view(1, 3, 1).expand(1, 3, 7)
    >>> data = ArrayDataset(inputs=torch.zeros(1, 1), labels=torch.tensor([[0, 2, 1]]), boxes=boxes)
    >>> batch = KnownBoxes(data, torch.tensor([False, True, True])).batch(torch.tensor([0]))
    >>> batch["labels"].tolist(), batch["boxes"][0, :, 0].tolist()
    ([[2, 1, -1]], [1.0, 2.0, 0.0])
    """

    def __init__(self, data: Dataset, known: Tensor) -> None:
        self.data, self.known = data, known  # by class

    def __len__(self) -> int:
        return len(self.data)

    def batch(self, rows: Tensor) -> Batch:
        batch = dict(self.data.batch(rows))
        if "labels" in batch and "boxes" in batch:
            order, kept = self._order(batch["labels"])
            batch["labels"] = batch["labels"].gather(1, order).masked_fill(~kept, NO_LABEL)
            places = order.unsqueeze(2).expand(-1, -1, batch["boxes"].shape[2])
            batch["boxes"] = batch["boxes"].gather(1, places).masked_fill(~kept.unsqueeze(2), 0)
        return batch

    def labels(self) -> Tensor | None:
        labels = self.data.labels()
        if labels is None:
            return None
        order, kept = self._order(labels)
        return labels.gather(1, order).masked_fill(~kept, NO_LABEL)

    def unlabelled(self) -> Dataset:
        return self.data.unlabelled()

    def column(self, name: str) -> Tensor | None:
        """A whole column that is at hand, unless boxes are left out of it."""
        return self.labels() if name == "labels" else None if name in ANSWERS else column(self.data, name)

    def _order(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """For each place of a row, which box comes there, and whether it is one that stays."""
        stays = (labels >= 0) & self.known[labels.clamp(min=0)]
        order = (~stays).long().argsort(dim=1, stable=True)
        return order, stays.gather(1, order)


class Told:
    """Samples with the outputs computed for each, as a further column `said`."""

    def __init__(self, data: Dataset, said: Tensor) -> None:
        self.data, self.said = data, said

    def __len__(self) -> int:
        return len(self.data)

    def batch(self, rows: Tensor) -> Batch:
        return {**self.data.batch(rows), "said": self.said[rows]}

    def labels(self) -> Tensor | None:
        return self.data.labels()

    def unlabelled(self) -> Told:
        return Told(self.data.unlabelled(), self.said)


@dataclass(frozen=True)
class Proxy:
    """Samples that clients and server share, verified by a digest."""

    data: Dataset
    digest: str  # sha256, in hex


@dataclass(frozen=True)
class SharedSamples:
    """Which samples clients and server are to share: a data set by name, or `patches:SOURCE` and how they are cut."""

    name: str
    patches: Any = None

    @classmethod
    def named(cls, name: str | None) -> SharedSamples:
        """Those of a setting, which must be there."""
        if name is None:
            raise InputError(
                "clients and server need samples that both have: set method.proxy to a data set or patches:china"
            )
        return cls(name)


def column(data: Dataset, name: str) -> Tensor | None:
    """A whole column of a data set that has it at hand; None: it has no such column."""
    if isinstance(data, ArrayDataset):
        return data.columns.get(name)
    if isinstance(data, Subset):
        whole = column(data.data, name)
        return None if whole is None else whole[data.rows]
    if isinstance(data, Relabelled | Told):
        return column(data.data, name)
    at_hand: Callable[[str], Tensor | None] | None = getattr(data, "column", None)
    return None if at_hand is None else at_hand(name)


def begin_reading(data: Dataset, rows: Tensor) -> None:
    """Let a data set that reads files begin with these rows, which are needed next."""
    begin: Callable[[Tensor], None] | None = getattr(data, "prefetch", None)
    if begin is not None:
        begin(rows)


def read_ahead(data: Dataset, batches: Iterable[Tensor]) -> Iterator[Tensor]:
    """The rows of each batch, while the data set reads those of the next."""
    if not hasattr(data, "prefetch"):
        yield from batches
        return
    waiting: Tensor | None = None
    for rows in batches:
        begin_reading(data, rows)
        if waiting is not None:
            yield waiting
        waiting = rows
    if waiting is not None:
        yield waiting


def kept_batch(data: Dataset, rows: Tensor) -> Batch:
    """These rows of `every_row`; data in memory that is a single batch is kept, with what models compute of it alone.

    Evaluation reads the same test data for every model and in every round. Data of many batches would take too much
    memory: the neighbourhoods of a cloud's points take up to thirty times as much as the cloud.
    """
    return data.whole() if type(data) is ArrayDataset and len(rows) == len(data) else data.batch(rows)


AT_ONCE = 256  # samples of an evaluation batch; what a model says may depend on how many are said together


_PIXELS_AT_ONCE = 40_000_000  # values of an evaluation batch of images: 256 of 3 x 224 x 224 are fewer


def every_row(data: Dataset, size: int | None = None) -> list[Tensor]:
    """Row numbers of the whole set in order, in pieces of `size`, for evaluation; fewer at once where images are large.

    >>> large = ArrayDataset(inputs=torch.zeros(60, 3, 1, 1, dtype=torch.uint8).expand(60, 3, 512, 512))
    >>> [len(rows) for rows in every_row(large)], [len(rows) for rows in every_row(large, 60)]
    ([50, 10], [60])
    """
    if size is None:
        shape = sample_shape(data)
        size = AT_ONCE if len(shape) != 3 else max(1, min(AT_ONCE, _PIXELS_AT_ONCE // prod(shape)))
    return list(torch.arange(len(data)).split(size))


def sample_shape(data: Dataset) -> tuple[int, ...]:
    """The shape of inputs, as far as it is known without reading a sample; else empty."""
    if isinstance(data, Subset):
        return sample_shape(data.data)
    if isinstance(data, ArrayDataset):
        return tuple(data.columns["inputs"].shape[1:])
    known: tuple[int, ...] = getattr(data, "sample_shape", ())
    return known


NO_LABEL = -1  # in a row of boxes that is only there to fill up


def has_boxes(data: Dataset) -> bool:
    """Whether samples have boxes: labels are then (samples, boxes), and `NO_LABEL` where a row only fills up."""
    labels = data.labels()
    return labels is not None and labels.ndim == 2 and "boxes" in data.batch(torch.zeros(0, dtype=torch.int64))


def has_several_labels(data: Dataset) -> bool:
    """Whether samples have any number of classes: labels are then (samples, classes) of true and false."""
    labels = data.labels()
    return labels is not None and labels.ndim == 2 and labels.dtype == torch.bool


def rarest_class(labels: Tensor) -> Tensor:
    """For samples with any number of classes, the rarest one of each, by which they are split; without any, one more.

    >>> rarest_class(torch.tensor([[True, False], [True, True], [False, False]])).tolist()
    [0, 1, 2]
    """
    order = labels.sum(dim=0).argsort(stable=True)
    place = torch.where(labels[:, order], torch.arange(len(order)), len(order)).amin(dim=1)
    return torch.cat([order, torch.tensor([len(order)])])[place]


def class_counts(data: Dataset, classes: int) -> Tensor:
    """How many samples there are of each class, or points where each has a label, or boxes; none without labels.

    A label of -1 counts nowhere: it stands where a row of boxes only fills up.

    >>> class_counts(ArrayDataset(inputs=torch.zeros(3, 1), labels=torch.tensor([0, 2, 2])), 4)
    tensor([1, 0, 2, 0])
    """
    labels = data.labels()
    if labels is None:
        return torch.zeros(classes, dtype=torch.int64)
    if labels.dtype == torch.bool:  # any number of classes for a sample
        return labels.sum(dim=0)
    return torch.bincount(labels[labels >= 0], minlength=classes)
