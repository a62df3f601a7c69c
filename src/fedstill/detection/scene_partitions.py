"""Partitions of scenes: by classes, each client having some of them; or by the type of room."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedstill.core.errors import InputError
from fedstill.core.streams import Streams
from fedstill.data.partitions import Partition, Shards, partitions
from fedstill.detection.scenes import class_presence


@partitions.register("class-subset")
class ClassSubset(Partition):
    """Class subsets: each client has a fraction of the classes, and of the scenes with any of them; shards overlap.

    If every sample has one class, samples take the place of scenes.
    """

    by_boxes: ClassVar[bool] = True
    share: float = Field(0.7, gt=0, le=1, description="fraction of the classes that a client holds")
    scenes_share: float = Field(
        0.7, gt=0, le=1, description="fraction of the scenes with any of these classes that a client holds"
    )
    most: int | None = Field(None, ge=1, description="largest number of scenes per client")
    hide_others: bool = Field(
        False,
        description="hide the boxes of classes that a client does not hold, in training and in on-site evaluation: to"
        " it, these objects are background",
    )
    added_later: ClassVar[frozenset[str]] = frozenset({"hide_others"})

    def cut(self, labels: Tensor, clients: int, classes: int, streams: Streams) -> Shards:
        return self.cut_alike(labels, labels, clients, classes, streams)

    def cut_alike(self, labels: Tensor, like: Tensor, clients: int, classes: int, streams: Streams) -> Shards:
        rows, others = (each if each.ndim == 2 else each.unsqueeze(1) for each in (labels, like))
        occurring = class_presence(others, classes).any(dim=0)
        shards = subset_rows(rows, occurring, clients, streams, self.share, self.scenes_share, self.most)
        if not self.hide_others:
            return shards
        if labels.ndim == 1:
            raise InputError("hide_others hides boxes, and these samples have none: leave partition.hide_others out")
        known = torch.stack([dealt(occurring, client, streams, self.share) for client in range(clients)])
        return replace(shards, known=known)


@partitions.register("room-type")
class RoomTypes(Partition):
    """Room types: each client's scenes are of one or few types of room; every scene is in exactly one shard."""

    def cut(self, labels: Tensor, clients: int, classes: int, streams: Streams) -> Shards:
        if clients > 1 and len(labels.unique()) == 1:
            raise InputError("all samples are of one type, so types cannot be dealt out: choose another partition")
        return kind_rows(labels, clients, streams)


def subset_rows(
    classes: Tensor,
    occurring: Tensor,
    clients: int,
    streams: Streams,
    share: float = 0.7,
    scenes_share: float = 0.7,
    most: int | None = None,
) -> Shards:
    """Every client has a random `share` of classes and a random `scenes_share` of the scenes with any of them.

    `classes` are those of boxes (scenes, boxes), and `occurring` marks the classes to distribute. Clients draw
    independently, so **shards overlap**: one scene may be with many clients, or with none.
    """
    if not occurring.any():
        raise InputError("no scene has a box: there are no classes to deal out")
    holds = class_presence(classes, len(occurring))
    order: list[Tensor] = []
    for client in range(clients):
        rows = holds[:, dealt(occurring, client, streams, share)].any(dim=1).nonzero().flatten()
        size = max(1, round(scenes_share * len(rows)))
        size = size if most is None else min(size, most)
        chosen = streams.draw("partition", client, "scenes").permutation(len(rows))[:size]
        order.append(rows[torch.from_numpy(np.sort(chosen))])
    return _shards(order)


def dealt(occurring: Tensor, client: int, streams: Streams, share: float) -> Tensor:
    """A random fraction of the classes that occur, at least one."""
    present = occurring.nonzero().flatten()
    order = streams.draw("partition", client, "classes").permutation(len(present))
    known = torch.zeros_like(occurring)
    known[present[torch.from_numpy(order[: max(1, round(share * len(present)))])]] = True
    return known


def kind_rows(kinds: Tensor, clients: int, streams: Streams) -> Shards:
    """Every client's scenes are of one type (scenes,), or of few if there are fewer clients than types.

    Types are assigned to clients in turn; clients of one type share its scenes equally. Every scene is in exactly one
    shard.
    """
    every = kinds.unique().tolist()
    parts: list[list[Tensor]] = [[] for _ in range(clients)]
    generator = streams.draw("partition")
    for number, kind in enumerate(every):
        homes = list(range(number, clients, len(every))) or [number % clients]
        rows = (kinds == kind).nonzero().flatten()
        if len(rows) < len(homes):
            raise InputError(f"{len(rows)} scenes of type {kind} are too few for {len(homes)} clients")
        mixed = rows[torch.from_numpy(generator.permutation(len(rows)))]
        for home, piece in zip(homes, mixed.tensor_split(len(homes)), strict=True):
            parts[home].append(piece)
    return _shards([torch.cat(rows).sort().values for rows in parts])


def _shards(rows: list[Tensor]) -> Shards:
    sizes = torch.tensor([len(each) for each in rows])
    return Shards(torch.cat(rows), torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)]))
