"""Rows as a pandas data frame, where pandas is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from fedstill.core.errors import InputError


def data_frame(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> Any:
    """A `pandas.DataFrame` of these rows; what a row lacks is missing there."""
    try:
        pandas = import_module("pandas")
    except ModuleNotFoundError:
        raise InputError("data frames need pandas: pip install 'fedstill[pandas]'") from None
    return pandas.DataFrame([dict(row) for row in rows], columns=list(columns))
