"""Signals (channels, time) in files: .npy arrays, or .csv and .tsv with a column for each channel."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedstill.core.errors import InputError
from fedstill.data.readers.npz import lone_array
from fedstill.data.readers.text_table import read_text_table

SUFFIXES = (".npy", ".csv", ".tsv")
Signal = NDArray[np.float32]


def read_signal(path: Path) -> Signal:
    """One signal; of a table the header names the channels, and each row is a moment."""
    array = _columns(path) if path.suffix.lower() != ".npy" else lone_array(path)
    return as_signal(array, str(path))


def as_signal(array: NDArray[np.generic], where: str) -> Signal:
    """Numbers as one signal; one axis is one channel."""
    if array.dtype.kind not in "iufb":
        raise InputError(f"{where} holds {array.dtype}: signals are numbers")
    if array.ndim == 1:
        array = array[None]
    if array.ndim != 2 or not array.size:
        raise InputError(f"{where} has the shape {array.shape}: signals have the shape (channels, time)")
    signal = array.astype(np.float32)
    if not np.isfinite(signal).all():
        raise InputError(f"{where} holds NaN or infinity: fill the gaps, or leave it out")
    return signal


def as_length(signal: Signal, shape: tuple[int, ...], where: str) -> Signal:
    """A signal of the same channels, cut in the middle or padded with zeros at both ends to this length.

    >>> as_length(np.array([[1, 2, 3, 4]], dtype=np.float32), (1, 2), "x").tolist()
    [[2.0, 3.0]]
    >>> as_length(np.array([[1, 2]], dtype=np.float32), (1, 5), "x").tolist()
    [[0.0, 1.0, 2.0, 0.0, 0.0]]
    """
    channels, length = shape
    if signal.shape[0] != channels:
        turned = ", and exchange the axes of this one, whose time comes first" if signal.shape[1] == channels else ""
        raise InputError(
            f"{where} has {signal.shape[0]} channels, and others have {channels}: give all the same{turned}"
        )
    if signal.shape[1] >= length:
        start = (signal.shape[1] - length) // 2
        return signal[:, start : start + length]
    before = (length - signal.shape[1]) // 2
    return np.pad(signal, ((0, 0), (before, length - signal.shape[1] - before)))


def _columns(path: Path) -> NDArray[np.float64]:
    table = read_text_table(path)
    if all(map(_is_number, table.columns)):
        raise InputError(f"{path} begins with numbers: name the channels in its first line")
    if not table.rows:
        raise InputError(f"{path} has a header and no rows: each row is a moment of the signal")
    for at, row in enumerate(table.rows):
        if wrong := [name for name, cell in zip(table.columns, row, strict=True) if not _is_number(cell)]:
            held = row[table.columns.index(wrong[0])]
            what = repr(held) if held else "nothing"
            raise InputError(
                f"{path}: row {table.number(at)} has {what} in {wrong[0]}: write one column of"
                " numbers for each channel, and fill the gaps"
            )
    return np.array(table.rows, dtype=np.float64).T


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
