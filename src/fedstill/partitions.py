"""Partitions of labelled data into client shards: `partition(labels, clients, "dirichlet", alpha=0.1)`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedstill.core.errors import InputError
from fedstill.core.streams import Streams
from fedstill.data import partitions as named

__all__ = ["partition"]


def partition(
    labels: Tensor | NDArray[Any] | Sequence[int],
    clients: int,
    name: str = "iid",
    *,
    classes: int | None = None,
    seed: int = 0,
    **settings: object,
) -> list[NDArray[np.int64]]:
    """The rows of each client, in ascending order: the shards of `fedstill.run` with this seed and training data.

    Names and their settings are those of `fedstill list partitions`, such as `dirichlet` (`alpha`), `pathological`
    (`classes_per_client`), `label-skew` or `iid`. `classes` is one more than the largest label unless it is given.

    >>> shards = partition([0, 0, 0, 1, 1, 1], clients=2, name="pathological", classes_per_client=1)
    >>> sorted(shard.tolist() for shard in shards)
    [[0, 1, 2], [3, 4, 5]]
    """
    rows = _class_numbers(labels)
    if classes is None:
        classes = int(rows.max()) + 1 if len(rows) else 0
    shards = named.partition(name, rows, clients, classes, Streams(seed), settings)
    return [shards.rows(client).numpy() for client in range(len(shards))]


def _class_numbers(labels: Tensor | NDArray[Any] | Sequence[int]) -> Tensor:
    """The labels as one row of whole numbers on the CPU."""
    given = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if given.ndim != 1 or not len(given) or given.dtype.kind not in "iu":
        raise InputError(
            f"labels are of shape {given.shape} and type {given.dtype}: pass one class number for each sample"
        )
    return torch.from_numpy(given.astype(np.int64))
