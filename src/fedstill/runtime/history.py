"""A run's rounds as a table: one row each, one column for each number that was recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

from fedstill.core.errors import InputError, did_you_mean
from fedstill.core.frames import data_frame
from fedstill.core.notebook import html_table
from fedstill.core.numbers import MISSING, count, duration, size
from fedstill.core.records import RoundRecord
from fedstill.core.table import Cell, Column, make_table, percent, whole

Row = dict[str, Any]


class History(Sequence[Row]):
    """The rounds of a run so far: rows as mappings, or columns as lists.

    The columns: `round`; the test metrics (`accuracy`, `class_accuracy`, `loss` …); `training_loss`, with its terms
    where there are several; the numbers of `sampled` and `accepted` clients and of `failures`; `bytes_up` and
    `bytes_down`; `work`; `seconds`; and, where there are any, `validation.…`, `personal.…`, `extra_models.…` and
    `method.…`. A number that a round lacks is None. Ids of clients and reasons of failures are in `Run.journal`.

    >>> history = History([{"round": 1, "accuracy": 0.5}, {"round": 2, "accuracy": 0.75, "method.epsilon": 2.0}])
    >>> history["accuracy"], history[-1]["round"], len(history)
    ([0.5, 0.75], 2, 2)
    >>> history["method.epsilon"], history.columns
    ([None, 2.0], ('round', 'accuracy', 'method.epsilon'))
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self.columns = tuple(dict.fromkeys(name for row in rows for name in row))
        self._rows = [{name: row.get(name) for name in self.columns} for row in rows]

    @classmethod
    def of(cls, journal: Sequence[RoundRecord], seconds: Sequence[float]) -> History:
        """From a run's journal, and the times of its rounds as far as they are known."""
        times = [*seconds[: len(journal)], *[None] * (len(journal) - len(seconds))]
        return cls([_row(record, time) for record, time in zip(journal, times, strict=True)])

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, key: int) -> Row: ...
    @overload
    def __getitem__(self, key: slice) -> History: ...
    @overload
    def __getitem__(self, key: str) -> list[Any]: ...  # type: ignore[overload-cannot-match, unused-ignore]
    def __getitem__(self, key: int | slice | str) -> Row | History | list[Any]:
        """A row by its position, several rows, or a column by its name."""
        if isinstance(key, slice):
            return History(self._rows[key])
        if not isinstance(key, str):
            return dict(self._rows[key])
        if key not in self.columns:
            raise InputError(f"the history has no column {key!r}: {did_you_mean(key, self.columns)}")
        return [row[key] for row in self._rows]

    def to_pandas(self) -> Any:
        """The same as a `pandas.DataFrame`; needs `pip install 'fedstill[pandas]'`."""
        return data_frame(self._rows, self.columns)

    def __repr__(self) -> str:
        return f"History({count(len(self), 'round')}: {', '.join(self.columns)})"

    def _repr_html_(self) -> str:
        return str(html_table(make_table("history", "", _SHOWN, self._rows)))


def _row(record: RoundRecord, seconds: float | None) -> Row:
    evaluation = record.evaluation
    row: Row = {"round": record.round, **dict.fromkeys(("accuracy", "class_accuracy", "loss")), **record.metrics}
    row["training_loss"] = sum(record.loss.values()) if record.loss else None
    if len(record.loss) > 1:
        row |= {f"training_loss.{term}": value for term, value in record.loss.items()}
    row |= {"sampled": len(record.sampled), "accepted": len(record.accepted), "failures": len(record.failures)}
    row |= {"bytes_up": record.bytes.up, "bytes_down": record.bytes.down, "work": record.work, "seconds": seconds}
    if evaluation is not None:
        row |= {f"validation.{name}": value for name, value in evaluation.validation.items()}
        row |= {} if evaluation.personal is None else {f"personal.{name}": value for name, value in evaluation.personal}
        for model, metrics in evaluation.extra_models.items():
            row |= {f"extra_models.{model}.{name}": value for name, value in metrics.items()}
    return row | {f"method.{name}": value for name, value in record.method_metrics.items()}


def _decimal(value: float | None) -> Cell:
    return Cell(MISSING if value is None else f"{value:.4f}", value)


def _time(value: float | None) -> Cell:
    return Cell(MISSING if value is None else duration(value), value)


_SHOWN: tuple[Column[Row], ...] = (
    Column("Round", "round", lambda row: whole(row["round"])),
    Column("Accuracy", "accuracy", lambda row: percent(row["accuracy"])),
    Column("Loss", "loss", lambda row: _decimal(row["loss"]), always=False),
    Column("Training loss", "training_loss", lambda row: _decimal(row["training_loss"]), always=False),
    Column("Accepted", "accepted", lambda row: Cell(f"{row['accepted']} of {row['sampled']}", row["accepted"])),
    Column("Failures", "failures", lambda row: whole(row["failures"]), always=False),
    Column("Up", "bytes_up", lambda row: Cell(size(row["bytes_up"]), row["bytes_up"])),
    Column("Down", "bytes_down", lambda row: Cell(size(row["bytes_down"]), row["bytes_down"])),
    Column("Time", "seconds", lambda row: _time(row["seconds"]), always=False),
)
