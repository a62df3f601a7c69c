"""Frames of pandas and data sets of Hugging Face as data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fedstill.core.errors import InputError, did_you_mean
from fedstill.data.lazy_data import INPUTS, LABELS, Items, TorchItems
from fedstill.data.objects import tables


@tables.register("pandas")
def frame_arrays(frame: Any, label: str | None, name: str) -> tuple[Any, Any]:
    """A frame with a column of labels: all other columns are features, or one column holds arrays."""
    if type(frame).__name__ != "DataFrame":
        raise InputError(f"{name} is a {type(frame).__name__} without labels: give a frame with a column `label`")
    columns = [str(column) for column in frame.columns]
    if twice := [column for column in columns if columns.count(column) > 1]:
        raise InputError(f"{name} has several columns called {twice[0]!r}: rename or drop all but one")
    frame = frame.set_axis(columns, axis=1)
    target = _label_column(columns, label, name)
    rest = [column for column in columns if column != target]
    if not rest:
        raise InputError(f"{name} has no column beside {target!r}: give features, too")
    labels = frame[target].to_numpy()
    if frame[target].isna().any():
        raise InputError(
            f"{name} has rows without a label in {target!r}: leave them out, frame.dropna(subset=[{target!r}])"
        )
    first = frame[rest[0]].iloc[0] if len(frame) else None
    if len(rest) == 1 and isinstance(first, np.ndarray | list | tuple):
        return list(frame[rest[0]]), labels
    texts = [column for column in rest if frame[column].dtype.kind not in "biuf"]
    if texts:
        raise InputError(
            f"{name} has columns that are no numbers ({_few(texts)}): encode them, e.g. with pandas.get_dummies, or"
            " leave them out"
        )
    gaps = [column for column in rest if frame[column].isna().any()]
    if gaps:
        raise InputError(f"{name} has columns with missing values ({_few(gaps)}): fill them in, e.g. with frame.fillna")
    return frame[rest].to_numpy(dtype=np.float32), labels


class HuggingFaceItems:
    """A Hugging Face data set: one column of inputs, one of labels."""

    def __init__(self, source: Any, label: str | None, name: str) -> None:
        columns = list(source.column_names)
        kinds = {column: type(kind).__name__ for column, kind in source.features.items()}
        marked = next((column for column in columns if kinds[column] == "ClassLabel"), None)
        self.label = _label_column(columns, label or marked, name)
        pictures = [column for column in columns if kinds[column] == "Image"]
        usual = [column for column in INPUTS if column in columns]
        rest = [column for column in columns if column != self.label]
        found = pictures or usual or (rest if len(rest) == 1 else [])
        if not found:
            raise InputError(f"{name} has the columns {_few(rest)}: rename the one with samples to 'inputs'")
        self.inputs = found[0]
        self.source = source.with_format("numpy", columns=[self.inputs, self.label])
        self.name = name
        self.is_8_bit = _leaf_type(source.features[self.inputs]) == "uint8"
        names = getattr(source.features[self.label], "names", None)
        self.classes = tuple(names) if names else None

    def __len__(self) -> int:
        return len(self.source)

    def read(self, rows: Sequence[int]) -> tuple[Any, Sequence[Any]]:
        held = self.source[list(rows)]
        inputs = list(held[self.inputs])
        if self.is_8_bit:  # the format turns all integers into 64-bit ones
            inputs = [np.asarray(one).astype(np.uint8) for one in inputs]
        return inputs, list(held[self.label])


def _leaf_type(feature: Any) -> str:
    """The type of the numbers in a column, which may hold lists of them."""
    while (inner := getattr(feature, "feature", None)) is not None:
        feature = inner
    return str(getattr(feature, "dtype", ""))


@tables.register("datasets")
def hugging_face_items(source: Any, label: str | None, name: str) -> Items:
    """A `datasets.Dataset` with its columns of inputs and labels found by type, then by name."""
    if not hasattr(source, "__len__") or not hasattr(source, "features"):
        raise InputError(
            f"{name} is a {type(source).__name__}, which can only be read in order: load it without streaming"
        )
    if source.format["type"] == "custom":  # a transform of the user's own, which decides on the columns
        return TorchItems(source, name, label)
    return HuggingFaceItems(source, label, name)


def _label_column(columns: Sequence[str], given: str | None, name: str) -> str:
    if given is not None:
        if given not in columns:
            raise InputError(f"{name} has no column {given!r} for labels: {did_you_mean(given, columns)}")
        return given
    found = next((column for column in LABELS if column in columns), None)
    if found is None:
        raise InputError(
            f"{name} has the columns {_few(columns)}, and none is called label: name it,"
            " fedstill.dataset(data, label=...)"
        )
    return found


def _few(names: Iterable[str], most: int = 6) -> str:
    listed = list(names)
    return ", ".join(listed[:most]) + (", ..." if len(listed) > most else "")
