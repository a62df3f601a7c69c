"""Whether test samples are training samples too, and how often samples repeat: by a digest of every sample's inputs."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedstill.core.dataset import ArrayDataset, Dataset, Subset, every_row
from fedstill.core.records import DataCheck

VALUES = 2**28  # inputs of all samples together; larger data sets are not checked
_known: dict[tuple[str, int, int], DataCheck] = {}  # by data and number of samples: runs of a study share their data


def checked_data(fingerprint: str, train: Subset, test: Dataset, shape: tuple[int, ...]) -> DataCheck:
    """Exact repetitions only; once per data set and process."""
    values = (len(train) + len(test)) * prod(shape)
    if values > VALUES:
        why = f"{values:,} values in all samples, and up to {VALUES:,} are checked"
        return DataCheck(train=len(train), test=len(test), not_checked=why)
    key = fingerprint, len(train), len(test)
    if key not in _known:
        _known[key] = repetitions(train, test)
    return _known[key]


def repetitions(train: Dataset, test: Dataset) -> DataCheck:
    """How many samples of each part repeat an earlier one of it, and how many test samples are in the training data."""
    # Bytes are equal exactly where the floats are that are made of them, and are a quarter of the work.
    read = _bytes if _holds_bytes(train) and _holds_bytes(test) else _floats
    trained, tested = _digests(train, read), _digests(test, read)
    known = np.unique(trained)
    return DataCheck(
        train=len(train),
        test=len(test),
        shared=int(np.isin(tested, known).sum()),
        train_repeats=len(train) - len(known),
        test_repeats=len(test) - len(np.unique(tested)),
    )


def _digests(data: Dataset, read: Callable[[Any, Tensor], Tensor]) -> NDArray[Any]:
    """Sixteen bytes a sample: of millions, bytes objects would take ten times as much."""
    found = np.empty(len(data), dtype="S16")
    done = 0
    for rows in every_row(data):
        inputs = read(data, rows)
        samples = inputs.reshape(len(rows), prod(inputs.shape[1:])).contiguous().numpy()
        found[done : done + len(rows)] = [blake2b(sample, digest_size=16).digest() for sample in samples]
        done += len(rows)
    return found


def _holds_bytes(data: Dataset) -> bool:
    if isinstance(data, Subset):
        return _holds_bytes(data.data)
    return type(data) is ArrayDataset and data.columns["inputs"].dtype == torch.uint8


def _bytes(data: Any, rows: Tensor) -> Tensor:
    """Inputs as they are stored."""
    if isinstance(data, Subset):
        return _bytes(data.data, data.rows[rows])
    inputs: Tensor = data.columns["inputs"]
    return inputs[rows]


def _floats(data: Any, rows: Tensor) -> Tensor:
    inputs: Tensor = data.batch(rows)["inputs"]
    return inputs
