"""Stratified splits: every class contributes the same fraction of its rows, up to rounding."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedstill.core.errors import InputError
from fedstill.core.streams import Streams

TEST_SHARE = 0.2


def hold_out(labels: Tensor, groups: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Training and test rows of data without a split. Independent of a run's seed, since the split is part of the data.

    A class of two or more contributes at least one row, so that its accuracy can be measured however small it is. With
    the group of every row (its patient), a group is either trained on or tested on.

    >>> train, test = hold_out(torch.tensor([0] * 10 + [1] * 2))
    >>> (test < 10).sum().item(), (test >= 10).sum().item()
    (2, 1)
    """
    if groups is not None:
        return _whole_groups(labels, groups, TEST_SHARE, Streams(0).draw("split", "groups"), least=1)
    return _stratified(labels, TEST_SHARE, Streams(0).draw("split"), least=1)


def split_validation(
    labels: Tensor, share: float, streams: Streams, may_be_empty: bool = False, groups: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Training and validation rows, each ascending; a class keeps at least one row for training, and groups are whole.

    >>> train, validation = split_validation(torch.tensor([0] * 8 + [1] * 4), 0.25, Streams(7))
    >>> len(train), (validation < 8).sum().item(), (validation >= 8).sum().item()
    (9, 2, 1)
    """
    if not 0 < share < 1:
        raise InputError(f"the validation share must lie between 0 and 1, not {share}")
    if groups is None:
        kept, taken = _stratified(labels, share, streams.draw("validation"))
    else:
        kept, taken = _whole_groups(labels, groups, share, streams.draw("validation", "groups"))
    if not len(taken) and not may_be_empty:
        raise InputError(f"a validation share of {share} of {len(labels)} samples is not one sample: raise it")
    return kept, taken


def _stratified(labels: Tensor, share: float, generator: np.random.Generator, least: int = 0) -> tuple[Tensor, Tensor]:
    values = labels.numpy()
    _, classes, counts = np.unique(values, return_inverse=True, return_counts=True)
    # Largest remainders: the total is correct to one row, and no class is rounded to zero unnecessarily.
    quotas = counts * share
    take = np.floor(quotas).astype(np.int64)
    spare = round(float(quotas.sum())) - int(take.sum())
    take[np.argsort(take - quotas, kind="stable")[:spare]] += 1
    take = np.minimum(np.maximum(take, least), counts - 1)

    shuffled = generator.permutation(len(values))
    by_class = shuffled[np.argsort(classes[shuffled], kind="stable")]
    rank = np.arange(len(values)) - np.repeat(np.cumsum(counts) - counts, counts)
    chosen = np.zeros(len(values), dtype=bool)
    chosen[by_class[rank < np.repeat(take, counts)]] = True
    return torch.from_numpy(np.flatnonzero(~chosen)), torch.from_numpy(np.flatnonzero(chosen))


def _whole_groups(
    labels: Tensor, groups: Tensor, share: float, generator: np.random.Generator, least: int = 0
) -> tuple[Tensor, Tensor]:
    """The same with whole groups: large ones first, each is taken if that brings the classes closer to their quotas.

    Groups of one size are tried in random order. No class loses its last group of training samples.
    """
    of_group, size = np.unique(groups.numpy(), return_inverse=True)[1], int(groups.unique().numel())
    of_class = np.unique(labels.numpy(), return_inverse=True)[1]
    held = np.zeros((size, int(of_class.max()) + 1))
    np.add.at(held, (of_group, of_class), 1)
    total, taken = held.sum(axis=0), np.zeros(held.shape[1])
    quotas, chosen = total * share, np.zeros(size, dtype=bool)
    shuffled = generator.permutation(size)
    order = shuffled[np.argsort(-held[shuffled].sum(axis=1), kind="stable")]
    for group in order:
        now, then = (((some - quotas) ** 2 / total).sum() for some in (taken, taken + held[group]))
        if then < now and _leaves_training(held, total, taken, group):
            chosen[group] = True
            taken += held[group]
    for number in np.flatnonzero(taken < least):
        spare = [group for group in order[::-1] if held[group, number] and _leaves_training(held, total, taken, group)]
        if spare:
            chosen[spare[0]] = True
            taken += held[spare[0]]
    inside = chosen[of_group]
    return torch.from_numpy(np.flatnonzero(~inside)), torch.from_numpy(np.flatnonzero(inside))


def _leaves_training(
    held: NDArray[np.float64], total: NDArray[np.float64], taken: NDArray[np.float64], group: int
) -> bool:
    """Whether each class of a group keeps training samples without it."""
    rest = total - taken - held[group]
    return bool((rest[held[group] > 0] > 0).all())
