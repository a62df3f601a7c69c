"""The clients of a simulation, made on demand from shards.

Memory grows with those who take part, not with the population: a client that is not sampled is two numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import torch
from torch import Tensor

from fedstill.core.dataset import Dataset, Proxy, Subset
from fedstill.core.protocols import Client, Profile, RoundContext
from fedstill.core.streams import Streams
from fedstill.core.task import Task, Tensors
from fedstill.data.partitions import Shards
from fedstill.data.point_labels import groups_of, shape_kinds
from fedstill.data.splits import split_validation


@dataclass(frozen=True)
class SimulatedProfiles(Sequence[Profile]):
    """What the server knows of each client, made when it is asked for: a million clients are a million numbers."""

    sizes: Tensor
    architectures: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.architectures)

    @overload
    def __getitem__(self, client: int) -> Profile: ...
    @overload
    def __getitem__(self, client: slice) -> list[Profile]: ...
    def __getitem__(self, client: int | slice) -> Profile | list[Profile]:
        if isinstance(client, slice):
            return [self[number] for number in range(*client.indices(len(self)))]
        number = range(len(self))[client]
        return Profile(number, int(self.sizes[number]), self.architectures[number])

    def __iter__(self) -> Iterator[Profile]:
        for number, (size, architecture) in enumerate(zip(self.sizes.numpy(), self.architectures, strict=True)):
            yield Profile(number, int(size), architecture)


@dataclass(frozen=True)
class SimulatedClients:
    """A client factory over one data set cut into shards."""

    task: Task
    data: Dataset
    shards: Shards
    test: tuple[Dataset, Shards] | None = None  # cut in the same way, where models are evaluated on site
    share: float = 0.0  # of each shard that is kept to select a round by, where that is done on site
    proxy: Proxy | None = None  # samples that everybody has
    shown: Dataset | None = None  # the run's validation data, where clients are to see what could be gained

    def __call__(self, profile: Profile, state: Tensors, context: RoundContext) -> Client:
        shard = self.shards.of(self.data, profile.id)
        data, validation = parted(shard, self.share, context.streams.seed, profile.id)
        test = None if self.test is None else self.test[1].of(self.test[0], profile.id)
        streams = context.streams.at("client", profile.id)
        kept = self.shown if validation is None else validation
        return Client(profile, self.task, data, streams, state, test=test, proxy=self.proxy, validation=kept)


def parted(shard: Dataset, share: float, seed: int, client: int) -> tuple[Dataset, Dataset | None]:
    """What a client trains on, and what it keeps to select a round by; the same in every round and on every machine."""
    if not share:
        return shard, None
    kinds = torch.zeros(len(shard), dtype=torch.int64) if shard.labels() is None else shape_kinds(shard)
    streams, groups = Streams(seed).at("client", client), groups_of(shard)
    rows = split_validation(kinds, share, streams, may_be_empty=True, groups=groups)
    train, validation = (Subset(shard, part) for part in rows)
    return train, validation
