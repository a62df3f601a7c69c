"""Stratified splits: every class contributes the same fraction of its rows, up to rounding."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedstill.core.errors import InputError
from fedstill.core.streams import Streams

TEST_SHARE = 0.2


def hold_out(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Training and test rows of data without a split. Independent of a run's seed, since the split is part of the data.

    A class of two or more contributes at least one row, so that its accuracy can be measured however small it is.

    >>> train, test = hold_out(torch.tensor([0] * 10 + [1] * 2))
    >>> (test < 10).sum().item(), (test >= 10).sum().item()
    (2, 1)
    """
    return _stratified(labels, TEST_SHARE, Streams(0).draw("split"), least=1)


def split_validation(
    labels: Tensor, share: float, streams: Streams, may_be_empty: bool = False
) -> tuple[Tensor, Tensor]:
    """Training and validation rows, each ascending; a class keeps at least one row for training.

    >>> train, validation = split_validation(torch.tensor([0] * 8 + [1] * 4), 0.25, Streams(7))
    >>> len(train), (validation < 8).sum().item(), (validation >= 8).sum().item()
    (9, 2, 1)
    """
    if not 0 < share < 1:
        raise InputError(f"the validation share must lie between 0 and 1, not {share}")
    kept, taken = _stratified(labels, share, streams.draw("validation"))
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
