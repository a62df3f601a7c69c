"""The handwritten digits that come with scikit-learn: real data that needs no download."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
import torch

from fedstill.core.dataset import ArrayDataset
from fedstill.data.bundle import Bundle, Source, datasets
from fedstill.data.splits import hold_out


@cache
def _built_in() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Read once for a process, since they are kept as text; `digits` copies."""
    from sklearn.datasets import load_digits  # here, because it takes a second that other commands need not wait

    pixels, marks = load_digits(return_X_y=True)
    grey = np.rint(pixels.reshape(-1, 1, 8, 8) * (255 / 16)).astype(np.uint8)  # published as 0..16
    return grey, marks.astype(np.int64)


@datasets.register("digits")
def digits(source: Source) -> Bundle:
    """1,797 real handwritten digits of 8x8 pixels, built in (UCI, by way of scikit-learn)."""
    inputs, labels = map(torch.from_numpy, _built_in())
    train, test = (ArrayDataset(inputs=inputs[rows], labels=labels[rows]) for rows in hold_out(labels))
    return Bundle(source.name, train, test, tuple("0123456789"), "image", (1, 8, 8))
