"""Rows of a table for a model to predict: read as the rows that it learned from were."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedstill.core.errors import InputError
from fedstill.data.feature_preparation import NumberColumn, Preparation, rows_of_sites
from fedstill.data.readers.text_table import TextTable, read_text_table

_SITE = "site"


def read_rows(path: Path, preparation: Preparation, site: str = "") -> dict[int, Tensor]:
    """By number, as a spreadsheet counts, the features of each row of a table with the columns of the training data.

    Other columns do not matter. What is missing is filled in as in training, and an unknown category is none of those
    known. Where numbers were scaled by site, a row's site is in its column, or is the file's name, or the `site` given.
    """
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    table = read_text_table(path)
    if not table.rows:
        raise InputError(f"{path} has a header and no rows: give one for each sample")
    named = [column.name for column in preparation.columns]
    if lacking := [name for name in named if table.find((name,)) is None]:
        raise InputError(
            f"{path} has no column {lacking[0]!r}, which the model was trained with: its features are"
            f" {', '.join(named)}; leave cells empty where a value is missing"
        )
    cells = {name: table.column(name) for name in named}
    for column in preparation.columns:
        if isinstance(column, NumberColumn) and (texts := column.texts(cells[column.name])):
            raise InputError(
                f"{path}: row {table.number(texts[0])} has {cells[column.name][texts[0]]!r} in {column.name}, where the"
                " training data has numbers: write a number, or leave the cell empty"
            )
    sites = np.zeros(len(table.rows), dtype=np.int64)
    if preparation.needs_sites:
        sites = rows_of_sites(_sites(path, table, preparation, site), preparation.sites, str(path))
    features = torch.from_numpy(preparation.read(cells, sites))
    return {table.number(row): one for row, one in enumerate(features)}


def _sites(path: Path, table: TextTable, preparation: Preparation, site: str) -> list[str]:
    column = table.find(tuple(name for name in (preparation.site_column, _SITE) if name))
    if column is not None:
        return table.column(column)
    if known := next((name for name in (site, path.stem) if name in preparation.sites), None):
        return [known] * len(table.rows)
    raise InputError(
        f"{path} does not say which site its rows are from, and numbers are scaled by site: add a column"
        f" {preparation.site_column or _SITE} with {', '.join(preparation.sites)}"
    )
