"""Whether test samples are training samples too, and how often samples repeat: by a digest of every sample's inputs."""

from __future__ import annotations

from hashlib import blake2b
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstill.core.dataset import Dataset, Subset, every_row
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
    trained, tested = _digests(train), _digests(test)
    known = np.unique(trained)
    return DataCheck(
        train=len(train),
        test=len(test),
        shared=int(np.isin(tested, known).sum()),
        train_repeats=len(train) - len(known),
        test_repeats=len(test) - len(np.unique(tested)),
    )


def _digests(data: Dataset) -> NDArray[Any]:
    """Sixteen bytes a sample: of millions, bytes objects would take ten times as much."""
    found = np.empty(len(data), dtype="S16")
    done = 0
    for rows in every_row(data):
        inputs = data.batch(rows)["inputs"].contiguous().numpy()
        found[done : done + len(rows)] = [blake2b(sample.tobytes(), digest_size=16).digest() for sample in inputs]
        done += len(rows)
    return found
