"""How cells of a table become the numbers that models read, and what is kept of it for rows to be predicted.

It is decided by training rows alone: which columns are numbers, their statistics, and which categories there are. No
other row changes what a model is trained on. A run keeps these, and no row, with its model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstill.core.errors import InputError

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]
MISSING = frozenset({"", "nan", "na", "n/a", "n.a.", "#n/a", "#na", "<na>", "nat", "null", "none", "?", "-", "."})
COMMA = re.compile(r"[-+]?\d*,\d+|[-+]?\d+")  # a number with a decimal comma, or a whole one
_DECIMAL = re.compile(r"[-+]?\d*,(?!\d{3}$)\d+")  # a comma that separates no thousands
_ROUNDING = 1e-12  # deviation of equal numbers as a share of their mean: nothing may be divided by it


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers: what stands for a missing one, what is subtracted, and by what is divided, at each site."""

    name: str
    fill: tuple[float, ...]
    centre: tuple[float, ...]
    spread: tuple[float, ...]  # 0 where all numbers are equal: they become 0
    comma: bool = False  # whether decimals follow a comma
    indicator: bool = False  # whether a further feature says what was missing

    def read(self, cells: Sequence[str], sites: Rows) -> list[Floats]:
        """The features of these cells; a text among numbers is missing, as infinity is."""
        numbers = self.numbers(cells)
        fill, centre, spread = (np.array(each)[sites] for each in (self.fill, self.centre, self.spread))
        absent = np.isnan(numbers)
        varies = spread > 0
        filled = np.where(absent, fill, numbers)
        scaled = np.divide(filled - centre, spread, out=np.zeros_like(filled), where=varies)
        return [scaled, absent.astype(np.float64)] if self.indicator else [scaled]

    def numbers(self, cells: Sequence[str]) -> Floats:
        """As they are in the cells; NaN where one is missing, infinite or a text."""
        return _values(cells, self.comma)

    def texts(self, cells: Sequence[str]) -> list[int]:
        """The places of cells that are neither numbers nor missing."""
        return [at for at, cell in enumerate(cells) if not is_missing(cell) and _number(cell, self.comma) is None]


@dataclass(frozen=True)
class CategoryColumn:
    """A column of categories: a feature of 0 and 1 for each one of the training rows; other ones are all 0."""

    name: str
    categories: tuple[str, ...]

    def read(self, cells: Sequence[str], sites: Rows) -> list[Floats]:
        held = np.array(cells, dtype=object)
        return [(held == category).astype(np.float64) for category in self.categories]

    def unknown(self, cells: Sequence[str]) -> list[str]:
        """Cells of no category that is known."""
        return [cell for cell in cells if not is_missing(cell) and cell not in self.categories]


@dataclass(frozen=True)
class Preparation:
    """What was done to the columns of a table, in the order of the features; statistics have one number per site."""

    columns: tuple[NumberColumn | CategoryColumn, ...]
    sites: tuple[str, ...] = ()
    site_column: str = ""  # "": there is none, or each site has a file of its own

    def read(self, cells: Mapping[str, Sequence[str]], sites: Rows) -> NDArray[np.float32]:
        """The features (rows, features) of cells by column, each row with the statistics of its site."""
        features = [feature for column in self.columns for feature in column.read(cells[column.name], sites)]
        with np.errstate(over="ignore"):  # infinity is a fault that is found where samples are looked at
            return np.stack(features, axis=1).astype(np.float32)

    @property
    def needs_sites(self) -> bool:
        """Whether it matters which site a row is from."""
        numbers = [column for column in self.columns if isinstance(column, NumberColumn)]
        return any(len(set(each)) > 1 for one in numbers for each in (one.fill, one.centre, one.spread))

    def to_dict(self) -> dict[str, Any]:
        """As JSON values, which give the same bits when they are read."""
        columns = [
            {"name": one.name, "categories": list(one.categories)}
            if isinstance(one, CategoryColumn)
            else {
                "name": one.name,
                "fill": list(one.fill),
                "centre": list(one.centre),
                "spread": list(one.spread),
                "comma": one.comma,
                "indicator": one.indicator,
            }
            for one in self.columns
        ]
        return {"columns": columns, "sites": list(self.sites), "site_column": self.site_column}

    @classmethod
    def from_dict(cls, held: Mapping[str, Any]) -> Preparation:
        """The same from JSON values; other ones raise errors of Python's own."""
        return cls(tuple(map(_column, held["columns"])), tuple(map(str, held["sites"])), str(held["site_column"]))


def _column(held: Mapping[str, Any]) -> NumberColumn | CategoryColumn:
    if "categories" in held:
        return CategoryColumn(str(held["name"]), tuple(map(str, held["categories"])))
    fill, centre, spread = (tuple(float(one) for one in held[name]) for name in ("fill", "centre", "spread"))
    return NumberColumn(str(held["name"]), fill, centre, spread, bool(held["comma"]), bool(held["indicator"]))


def is_missing(cell: str) -> bool:
    return cell.lower() in MISSING


def has_decimal_commas(cells: Sequence[str]) -> bool:
    """Whether numbers have decimal commas, and none that may separate thousands.

    >>> has_decimal_commas(["1,5", "2", ""]), has_decimal_commas(["1,000", "2,500"]), has_decimal_commas(["1,5", "2.5"])
    (True, False, False)
    """
    return any(_DECIMAL.fullmatch(cell) for cell in cells) and all(
        is_missing(cell) or COMMA.fullmatch(cell) for cell in cells
    )


def parsed(cells: Sequence[str]) -> Floats | None:
    """Cells as numbers, NaN where one is missing or infinite; None where some cell is a text.

    >>> parsed(["1,5", "2", ""]).tolist(), parsed(["1", "two"])
    ([1.5, 2.0, nan], None)
    """
    comma = has_decimal_commas(cells)
    known = [cell for cell in cells if not is_missing(cell)]
    return _values(cells, comma) if all(_number(cell, comma) is not None for cell in known) else None


def number_column(
    name: str,
    cells: Sequence[str],
    train: NDArray[np.bool_],
    sites: Rows,
    *,
    impute: str,
    scale: str,
    indicators: bool,
) -> NumberColumn:
    """The statistics of training rows: what is missing is filled in by those of its own site."""
    comma = has_decimal_commas([cell for cell, trained in zip(cells, train, strict=True) if trained])
    numbers = _values(cells, comma)
    count = int(sites.max()) + 1
    fill = tuple(_statistic(numbers[(sites == site) & train], impute) for site in range(count))
    filled = np.where(np.isnan(numbers), np.array(fill)[sites], numbers)
    where = [sites == site for site in range(count)] if scale == "site" else [sites >= 0] * count
    statistics = [(0.0, 1.0) if scale == "none" else _centre_and_spread(filled[here & train]) for here in where]
    centre, spread = (tuple(each) for each in zip(*statistics, strict=True))
    return NumberColumn(name, fill, centre, spread, comma, indicators and bool(np.isnan(numbers[train]).any()))


def _centre_and_spread(known: Floats) -> tuple[float, float]:
    centre, spread = (float(known.mean()), float(known.std())) if len(known) else (0.0, 0.0)
    return centre, spread if spread > _ROUNDING * abs(centre) else 0.0


def _statistic(numbers: Floats, rule: str) -> float:
    known = numbers[~np.isnan(numbers)]
    if rule == "zero" or not len(known):
        return 0.0
    if rule == "most-frequent":
        values, counts = np.unique(known, return_counts=True)
        return float(values[counts.argmax()])
    return float(np.mean(known) if rule == "mean" else np.median(known))


def _values(cells: Sequence[str], comma: bool) -> Floats:
    """Numbers; NaN where a cell is missing, infinite or a text."""
    found = (None if is_missing(cell) else _number(cell, comma) for cell in cells)
    numbers = np.array([np.nan if one is None else one for one in found], dtype=np.float64)
    return np.where(np.isfinite(numbers), numbers, np.nan)


def _number(cell: str, comma: bool) -> float | None:
    try:
        return float(cell.replace(",", ".") if comma else cell)
    except ValueError:
        return None


def rows_of_sites(names: Sequence[str], known: Sequence[str], where: str) -> Rows:
    """The numbers of sites by their names."""
    place = {name: number for number, name in enumerate(known)}
    if strange := [name for name in names if name not in place]:
        raise InputError(
            f"{where} has a row of the site {strange[0]!r}, and the model knows the statistics of"
            f" {', '.join(known)} only: numbers are scaled by site"
        )
    return np.array([place[name] for name in names], dtype=np.int64)
