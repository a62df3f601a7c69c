"""The built-in digits are scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest

from fedstill.data import digits


@pytest.mark.parametrize("file", [digits._FILE, ("moved.csv.gz",)], ids=["its file", "its function"])
def test_digits_are_those_of_scikit_learn(file: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    from sklearn.datasets import load_digits

    monkeypatch.setattr(digits, "_FILE", file)
    pixels, marks = digits._published()
    wanted = load_digits()
    assert np.array_equal(pixels, wanted.data)
    assert np.array_equal(marks, wanted.target)
    assert (pixels.dtype, marks.dtype) == (np.float64, np.int64)
