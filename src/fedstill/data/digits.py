"""The handwritten digits of scikit-learn: real data that needs no download."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from fedstill.core.dataset import ArrayDataset
from fedstill.data.bundle import Bundle, Source, datasets
from fedstill.data.splits import hold_out

_FILE = ("datasets", "data", "digits.csv.gz")


@cache
def _built_in() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Parsed once per process, since they are stored as text; `digits` copies."""
    pixels, marks = _published()
    grey = np.rint(pixels.reshape(-1, 1, 8, 8) * (255 / 16)).astype(np.uint8)  # published as 0..16
    return grey, marks


def _published() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """As scikit-learn returns them, read from its file if possible: importing scikit-learn takes two seconds."""
    package = find_spec("sklearn")
    assert package is not None, "scikit-learn is among the packages that this one needs"
    for folder in package.submodule_search_locations or ():
        if (file := Path(folder, *_FILE)).is_file():
            table = np.loadtxt(file, delimiter=",")
            return table[:, :-1], table[:, -1].astype(np.int64)
    from sklearn.datasets import load_digits

    pixels, marks = load_digits(return_X_y=True)
    return pixels, marks.astype(np.int64)


@datasets.register("digits")
def digits(source: Source) -> Bundle:
    """1,797 real handwritten digits of 8x8 pixels, built in (UCI, by way of scikit-learn)."""
    inputs, labels = map(torch.from_numpy, _built_in())
    train, test = (ArrayDataset(inputs=inputs[rows], labels=labels[rows]) for rows in hold_out(labels))
    return Bundle(source.name, train, test, tuple("0123456789"), "image", (1, 8, 8))
