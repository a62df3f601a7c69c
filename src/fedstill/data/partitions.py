"""Partitions of one data set into client shards.

Most partitions assign an *owner* to every row, so that every row is in exactly one shard by construction. In a
partition `by_boxes` each client draws its own rows, and shards may overlap.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from fedstill.core.dataset import Dataset, KnownBoxes, Subset
from fedstill.core.errors import InputError
from fedstill.core.registry import Registry
from fedstill.core.settings import Settings, make_settings
from fedstill.core.streams import Streams

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Shards:
    """Rows by client in compressed form: client k has `order[offsets[k]:offsets[k + 1]]`.

    Ten thousand clients take two arrays, not ten thousand.
    """

    order: Tensor
    offsets: Tensor
    known: Tensor | None = None  # (clients, classes), where clients see the boxes of some classes only

    @classmethod
    def by_owner(cls, owner: Ints, clients: int) -> Shards:
        """Shards from the owner of every row; rows ascend within a shard.

        >>> Shards.by_owner(np.array([1, 0, 1]), clients=2).rows(1).tolist()
        [0, 2]
        """
        sizes = np.bincount(owner, minlength=clients)
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        return cls(torch.from_numpy(np.argsort(owner, kind="stable")), torch.from_numpy(offsets))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def rows(self, client: int) -> Tensor:
        if not 0 <= client < len(self):
            raise IndexError(f"client {client} of {len(self)}")
        return self.order[self.offsets[client] : self.offsets[client + 1]]

    def of(self, data: Dataset, client: int) -> Dataset:
        """A client's shard of the data, without a copy."""
        shard = Subset(data, self.rows(client))
        return shard if self.known is None else KnownBoxes(shard, self.known[client])

    def sizes(self) -> Tensor:
        return self.offsets.diff()

    def table(self, labels: Tensor, classes: int) -> Tensor:
        """The number of samples per client and class (clients x classes).

        For labels (samples, boxes) it counts boxes; a label of -1 is padding.
        """
        owner = torch.repeat_interleave(torch.arange(len(self)), self.sizes())
        held = labels[self.order].reshape(len(owner), -1)
        cells = (owner.unsqueeze(1) * classes + held)[held >= 0]
        counts = torch.bincount(cells, minlength=len(self) * classes).reshape(len(self), classes)
        return counts if self.known is None or labels.ndim == 1 else counts * self.known


class Partition(Settings):
    """A named partition: its settings, with a method that cuts the data."""

    by_site: ClassVar[bool] = False  # it receives the site of every sample in place of labels
    by_boxes: ClassVar[bool] = False  # for scenes it receives the classes of all boxes; its shards may overlap

    @abstractmethod
    def cut(self, labels: Tensor, clients: int, classes: int, streams: Streams) -> Shards:
        """Shards for the clients; the only randomness is `streams`."""

    def cut_alike(self, labels: Tensor, like: Tensor, clients: int, classes: int, streams: Streams) -> Shards:
        """Shards of further rows, with each client's class distribution on the rows `like`, cut with the same streams.

        Each class is divided in the proportions that clients have of it there, or evenly if no client has it. Some
        clients may get none of the further rows, such as test data.
        """
        held = self.cut(like, clients, classes, streams).table(like, classes).T.numpy()
        held = np.where(held.any(axis=1, keepdims=True), held, 1)
        # Integers are summed before division, so that the edges of clients without a class are exactly equal.
        edges = held.cumsum(axis=1)[:, :-1] / held.sum(axis=1, keepdims=True)
        counts = np.bincount(labels.numpy(), minlength=classes)
        generator = streams.draw("partition", "further rows")
        amounts = np.stack([_between(*each) for each in zip(edges, counts, generator.random(classes), strict=True)])
        return _dealt(labels.numpy(), amounts, generator)


partitions: Registry[type[Partition]] = Registry("partition")


def partition(
    name: str,
    labels: Tensor,
    clients: int,
    classes: int,
    streams: Streams,
    settings: Partition | Mapping[str, Any] | None = None,
    like: Tensor | None = None,
    groups: Tensor | None = None,
) -> Shards:
    """Partition the rows by a partition's name and settings, after checking that this is possible.

    `like` are the labels of rows that are partitioned with the same name, settings and streams; the rows follow them.
    With the group of every row (its patient), whole groups are partitioned, each by its most frequent label; `like` is
    then a label for each group.

    >>> labels = torch.arange(4).repeat_interleave(80)
    >>> partition("label-skew", labels, 5, 4, Streams(0)).table(labels, 4).T.tolist()
    [[64, 16, 0, 0, 0], [0, 48, 32, 0, 0], [0, 0, 32, 48, 0], [0, 0, 0, 16, 64]]
    """
    given = settings if isinstance(settings, Partition) else dict(settings or {})
    chosen = make_settings(partitions[name], given, f"partition {name!r}")
    if groups is not None and not chosen.by_site and not chosen.by_boxes:
        return _of_whole_groups(chosen, labels, clients, classes, streams, groups, like)
    return _cut(chosen, labels, clients, classes, streams, like)


def _cut(
    chosen: Partition, labels: Tensor, clients: int, classes: int, streams: Streams, like: Tensor | None
) -> Shards:
    if clients < 1:
        raise InputError(f"a partition needs at least one client, not {clients}")
    if clients > len(labels) and not (chosen.by_boxes and len(labels)):
        raise InputError(f"{clients:,} clients cannot share {len(labels):,} samples: ask for at most {len(labels):,}")
    if int(labels.min()) < (-1 if labels.ndim == 2 else 0) or int(labels.max()) >= classes:
        raise InputError(f"labels range over {int(labels.min())}..{int(labels.max())}, not 0..{classes - 1}")
    if like is not None:
        return chosen.cut_alike(labels, like, clients, max(classes, int(like.max()) + 1), streams)
    return chosen.cut(labels, clients, classes, streams)


def _of_whole_groups(
    chosen: Partition, labels: Tensor, clients: int, classes: int, streams: Streams, groups: Tensor, like: Tensor | None
) -> Shards:
    kinds, group = group_labels(labels, groups)
    if clients > len(kinds) and like is None:
        raise InputError(
            f"{clients:,} clients cannot share {len(kinds):,} whole groups: ask for at most {len(kinds):,}"
        )
    shards = _cut(chosen, kinds, clients, classes, streams, like)
    owner = torch.empty(len(kinds), dtype=torch.int64)
    owner[shards.order] = torch.repeat_interleave(torch.arange(len(shards)), shards.sizes())
    return Shards.by_owner(owner[group].numpy(), clients)


def group_labels(labels: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """The most frequent label of each group, the lowest of several, and the number of every row's group.

    >>> group_labels(torch.tensor([0, 1, 1, 2]), torch.tensor([7, 7, 7, 3]))[0].tolist()
    [2, 1]
    """
    _, group = groups.unique(return_inverse=True)
    held = torch.zeros(int(group.max()) + 1, int(labels.max()) + 1, dtype=torch.int64)
    held.index_put_((group, labels), torch.ones_like(labels), accumulate=True)
    return held.argmax(dim=1), group


@partitions.register("iid")
class Iid(Partition):
    """IID: every client gets an equally large random sample of the data."""

    def cut(self, labels: Tensor, clients: int, classes: int, streams: Streams) -> Shards:
        return _near_equal(streams.draw("partition").permutation(len(labels)), clients)

    def cut_alike(self, labels: Tensor, like: Tensor, clients: int, classes: int, streams: Streams) -> Shards:
        # Further rows are an equal random sample too, independent of the classes that a client got by chance.
        return self.cut(labels, clients, classes, streams)


@partitions.register("label-skew")
class LabelSkew(Partition):
    """Label skew: sorted by label and cut into equal shards, so that a client has one or few classes; deterministic."""

    def cut(self, labels: Tensor, clients: int, classes: int, streams: Streams) -> Shards:
        return _near_equal(np.argsort(labels.numpy(), kind="stable"), clients)


@partitions.register("pooled")
class Pooled(Partition):
    """One client holds all data, as in centralised training."""

    def cut(self, labels: Tensor, clients: int, classes: int, streams: Streams) -> Shards:
        if clients != 1:
            raise InputError(f"the pooled partition has one client, not {clients}")
        return Shards.by_owner(np.zeros(len(labels), dtype=np.int64), 1)


@partitions.register("sites")
class Sites(Partition):
    """Each site has its own data, by a column or by folders, or given client by client: nothing is partitioned."""

    by_site: ClassVar[bool] = True

    def cut(self, labels: Tensor, clients: int, classes: int, streams: Streams) -> Shards:
        return Shards.by_owner(labels.numpy(), clients)

    def cut_alike(self, labels: Tensor, like: Tensor, clients: int, classes: int, streams: Streams) -> Shards:
        return self.cut(labels, clients, classes, streams)


@partitions.register("dirichlet")
class Dirichlet(Partition):
    """Dirichlet label skew: each class is divided in proportions drawn from Dirichlet(alpha); small alpha is skewed."""

    alpha: float = Field(0.5, gt=0, description="concentration; 0.1 is strong skew, 100 is nearly iid")
    min_samples: int = Field(
        1, ge=0, description="smallest number of samples per client; the partition is redrawn until it holds"
    )
    tries: int = Field(100, ge=1, description="number of redraws before giving up")

    def cut(self, labels: Tensor, clients: int, classes: int, streams: Streams) -> Shards:
        if clients * self.min_samples > len(labels):
            raise InputError(
                f"{len(labels):,} samples are too few for {clients:,} clients of at least {self.min_samples:,} each"
            )
        generator = streams.draw("partition")
        counts = np.bincount(labels.numpy(), minlength=classes)
        for _ in range(self.tries):
            shares = generator.dirichlet(np.full(clients, self.alpha), size=classes)
            amounts = _in_shares(shares, counts, generator.random(classes))
            if amounts.sum(axis=0).min() >= self.min_samples:
                return _dealt(labels.numpy(), amounts, generator)
        raise InputError(
            f"Dirichlet({self.alpha:g}) gave some of {clients:,} clients fewer than {self.min_samples:,} samples "
            f"in each of {self.tries} draws: raise alpha, lower min_samples, or ask for fewer clients"
        )


@partitions.register("pathological")
class Pathological(Partition):
    """Pathological non-IID: each client holds only a few classes, in random amounts."""

    classes_per_client: int = Field(2, ge=1, description="number of classes per client")

    def cut(self, labels: Tensor, clients: int, classes: int, streams: Streams) -> Shards:
        counts = np.bincount(labels.numpy(), minlength=classes)
        present = np.flatnonzero(counts)
        held = self.classes_per_client
        if held > len(present):
            raise InputError(f"a client cannot hold {held} classes where there are {len(present)}")
        if held * clients < len(present):
            raise InputError(
                f"{clients} clients of {held} classes leave some of the {len(present)} classes to nobody: "
                f"ask for at least {-(-len(present) // held)} clients, or more classes per client"
            )
        generator = streams.draw("partition")
        holds = _dealt_classes(present, clients, held, classes, generator)
        amounts = np.zeros((classes, clients), dtype=np.int64)
        for number in present:
            holders = np.flatnonzero(holds[:, number])
            if len(holders) > counts[number]:
                raise InputError(
                    f"class {number} has {counts[number]:,} samples for the {len(holders):,} clients that hold it: "
                    "ask for fewer clients or fewer classes per client"
                )
            # One sample each, so that a client really holds its classes; random proportions determine the rest.
            shares = generator.dirichlet(np.ones(len(holders)))
            amounts[number, holders] = 1 + _amounts(shares, counts[number] - len(holders), generator.random())
        return _dealt(labels.numpy(), amounts, generator)


def _near_equal(order: Ints, clients: int) -> Shards:
    """Contiguous slices of an order whose sizes differ by at most one, larger ones first."""
    size, larger = divmod(len(order), clients)
    sizes = np.full(clients, size)
    sizes[:larger] += 1
    owner = np.empty(len(order), dtype=np.int64)
    owner[order] = np.repeat(np.arange(clients), sizes)
    return Shards.by_owner(owner, clients)


def _amounts(shares: NDArray[np.float64], count: int, phase: float) -> Ints:
    """Integer amounts in these proportions that add up to the count."""
    return _between(np.cumsum(shares[:-1]), count, phase)


def _between(edges: NDArray[np.float64], count: int, phase: float) -> Ints:
    """Integer amounts between edges in 0..1, without the first and the last edge.

    A random phase in 0..1 rounds fairly: without it the same clients would lose the fraction in every class.
    """
    cuts = np.floor(edges * count + phase).astype(np.int64)
    return np.diff(np.concatenate([[0], np.minimum(cuts, count), [count]]))


def _in_shares(shares: NDArray[np.float64], counts: Ints, phases: NDArray[np.float64]) -> Ints:
    """Integer amounts of each class for each client (classes x clients)."""
    return np.stack([_amounts(*each) for each in zip(shares, counts, phases, strict=True)])


def _dealt(labels: Ints, amounts: Ints, generator: np.random.Generator) -> Shards:
    """Shards in which client k has `amounts[c, k]` random rows of class c."""
    owner = np.empty(len(labels), dtype=np.int64)
    for number, shares in enumerate(amounts):
        rows = generator.permutation(np.flatnonzero(labels == number))
        owner[rows] = np.repeat(np.arange(len(shares)), shares)
    return Shards.by_owner(owner, amounts.shape[1])


def _dealt_classes(
    present: Ints, clients: int, held: int, classes: int, generator: np.random.Generator
) -> NDArray[np.bool_]:
    """The classes of each client, dealt from shuffled decks, so that all classes have nearly equally many clients."""
    holds = np.zeros((clients, classes), dtype=bool)
    deck: list[int] = []
    for client in range(clients):
        if len(deck) < held:
            # Classes left from the old deck go last in the new one, so that no client gets one twice.
            fresh = generator.permutation(present).tolist()
            deck = deck + sorted(fresh, key=set(deck).__contains__)
        holds[client, deck[:held]] = True
        deck = deck[held:]
    return holds
