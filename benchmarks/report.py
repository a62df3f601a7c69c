"""What a benchmark hands back, and the table it is printed in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from benchmarks.timing import Ratio


class DifferenceError(AssertionError):
    """Two results that must agree do not: the one thing that makes the benchmarks fail."""


@dataclass(frozen=True)
class Row:
    """One measurement; without a goal it is told for information."""

    what: str
    measured: Ratio | str
    goal: float | None = None
    better: Literal["lower", "higher"] = "lower"
    note: str = ""

    @property
    def met(self) -> bool | None:
        if self.goal is None or isinstance(self.measured, str):
            return None
        return self.measured.middle <= self.goal if self.better == "lower" else self.measured.middle >= self.goal

    def cells(self) -> tuple[str, ...]:
        goal = "" if self.goal is None else f"{'<=' if self.better == 'lower' else '>='} {self.goal:g}"
        return self.what, str(self.measured), goal, {True: "yes", False: "no", None: ""}[self.met], self.note


@dataclass
class Findings:
    """What one benchmark found: rows of the table, and a table of its own where it has one."""

    rows: list[Row] = field(default_factory=list)
    tables: dict[str, list[tuple[str, ...]]] = field(default_factory=dict)  # the first line is the head
    differences: list[str] = field(default_factory=list)  # told after the tables, and a failure

    def as_json(self) -> dict[str, Any]:
        return {
            "rows": [{**asdict(row), "met": row.met} for row in self.rows],
            "tables": self.tables,
            "differences": self.differences,
        }


HEAD = ("what", "measured", "goal", "met", "notes")


def table(lines: Iterable[Sequence[str]]) -> str:
    """Columns as wide as they need to be; the first line is the head.

    >>> print(table([("what", "goal"), ("a round", "<= 1")]))
    what     goal
    -------  ----
    a round  <= 1
    """
    texts = [tuple(line) for line in lines]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    texts.insert(1, tuple("-" * width for width in widths))
    rows = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in texts)
    return "\n".join(row.rstrip() for row in rows)
