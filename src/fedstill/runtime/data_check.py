"""Whether test samples are training samples too, and how often samples repeat: by a digest of every sample's inputs."""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b
from math import prod

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
    return DataCheck(
        train=len(train),
        test=len(test),
        shared=sum(number for digest, number in tested.items() if digest in trained),
        train_repeats=len(train) - len(trained),
        test_repeats=len(test) - len(tested),
    )


def _digests(data: Dataset) -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    for rows in every_row(data):
        inputs = data.batch(rows)["inputs"].contiguous().numpy()
        found.update(blake2b(sample.tobytes(), digest_size=16).digest() for sample in inputs)
    return found
