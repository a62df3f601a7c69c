"""Results of a benchmark and the table in which they are printed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from benchmarks.timing import Ratio


class DifferenceError(AssertionError):
    """Two results that must agree differ, which makes the benchmarks fail."""


@dataclass(frozen=True)
class Row:
    """One measurement; without a target it is informative only."""

    what: str
    measured: Ratio | str
    target: float | None = None
    better: Literal["lower", "higher"] = "lower"
    note: str = ""

    @property
    def met(self) -> bool | None:
        if self.target is None or isinstance(self.measured, str):
            return None
        return self.measured.middle <= self.target if self.better == "lower" else self.measured.middle >= self.target

    def cells(self) -> tuple[str, ...]:
        target = "" if self.target is None else f"{'<=' if self.better == 'lower' else '>='} {self.target:g}"
        return self.what, str(self.measured), target, {True: "yes", False: "no", None: ""}[self.met], self.note


@dataclass
class Findings:
    """Results of one benchmark: rows of the common table, and additional tables."""

    rows: list[Row] = field(default_factory=list)
    tables: dict[str, list[tuple[str, ...]]] = field(default_factory=dict)  # the first line is the header
    differences: list[str] = field(default_factory=list)  # printed after the tables; they make the command fail

    def as_json(self) -> dict[str, Any]:
        return {
            "rows": [{**asdict(row), "met": row.met} for row in self.rows],
            "tables": self.tables,
            "differences": self.differences,
        }


HEAD = ("what", "measured", "target", "met", "notes")


def table(lines: Iterable[Sequence[str]]) -> str:
    """Format columns with the width of their longest cell; the first line is the header.

    >>> print(table([("what", "target"), ("a round", "<= 1")]))
    what     target
    -------  ------
    a round  <= 1
    """
    texts = [tuple(line) for line in lines]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    texts.insert(1, tuple("-" * width for width in widths))
    rows = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in texts)
    return "\n".join(row.rstrip() for row in rows)
