"""Recorded dropout: a file lists which clients drop out in which round.

The file is a comma-separated table with a header and one row per dropout: `round` (from 1, as in a run's journal),
`client` (from 0), and optionally `when` (before, during, after) and `fraction` (of the work that was done, from 0 to
1). If the last two are empty or missing, settings and a random draw determine them. Or it is the `journal.jsonl` of a
run, whose failures are repeated as dropout: a deployment's, for example, by a simulation with the same data. A run's
identity includes the file's contents, not its path.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import get_args

import numpy as np
from pydantic import Field

from fedstill.core.errors import InputError
from fedstill.core.files import parse_json, read_file
from fedstill.core.participation_protocols import DropoutEvent
from fedstill.core.protocols import RoundContext
from fedstill.core.records import RecordError, read_round
from fedstill.core.task import Tensors
from fedstill.participation.dropout import Chance, When, dropouts

_REQUIRED, _OPTIONAL = ("round", "client"), ("when", "fraction")


@dataclass(frozen=True)
class DropoutRow:
    """One row of the file."""

    line: int
    when: When | None
    fraction: float | None


Rounds = dict[int, dict[int, DropoutRow]]


@dataclass(frozen=True)
class DropoutFile:
    """The file's contents: dropouts by round and client."""

    digest: str
    rounds: Rounds  # from 0, as in `RoundContext`


@dropouts.register("trace", behaviour=2)
class Trace(Chance):
    """Dropout replayed from a file, by round and client."""

    file: str = Field(
        ...,
        min_length=1,
        description="CSV file with the columns round (from 1, as in a journal), client (from 0) and optionally when,"
        " fraction; or a run's journal.jsonl, whose failures are repeated",
    )

    @cached_property
    def recorded(self) -> DropoutFile:
        """The file's contents, read once."""
        return read(Path(self.file))

    @property
    def digest(self) -> str:
        return self.recorded.digest

    def check(self, clients: int) -> None:
        for dropped in self.recorded.rounds.values():
            for client, row in dropped.items():
                if client >= clients:
                    raise InputError(
                        f"dropout.file {self.file}, line {row.line}: there is no client {client}, only 0 to"
                        f" {clients - 1}"
                    )

    def check_rounds(self, rounds: int) -> None:
        for round, dropped in sorted(self.recorded.rounds.items()):
            if round >= rounds:
                line = min(row.line for row in dropped.values())
                raise InputError(
                    f"dropout.file {self.file}, line {line}: there is no round {round + 1}, only 1 to {rounds}: leave"
                    f" such rows out, or set rounds to {max(self.recorded.rounds) + 1}"
                )

    def dropout_events(self, fleet: Tensors, cohort: Sequence[int], context: RoundContext) -> dict[int, DropoutEvent]:
        rows = self.recorded.rounds.get(context.round, {})
        dropped = [client for client in sorted(cohort) if client in rows]
        return {one: self.dropout_event(one, context, rows[one].when, rows[one].fraction) for one in dropped}

    def present(self, fleet: Tensors, ids: np.ndarray, context: RoundContext) -> np.ndarray:
        return ids[~np.isin(ids, list(self.recorded.rounds.get(context.round, {})))]


def read(path: Path) -> DropoutFile:
    """The dropouts in a file; any error in it is raised as one `InputError`."""
    try:
        data = read_file(path)
        text = data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InputError(f"dropout.file {path} cannot be read: {why}") from None
    rounds = _journalled(text, path) if path.suffix == ".jsonl" else _listed(text, path)
    return DropoutFile(sha256(data).hexdigest(), rounds)


def _journalled(text: str, path: Path) -> Rounds:
    """The failures in a run's journal: their clients' replies did not count."""
    rounds: Rounds = {}
    for line, one in enumerate(text.splitlines(), 1):
        try:
            record = read_round(parse_json(one))
        except (ValueError, RecordError) as error:
            raise InputError(f"dropout.file {path}, line {line}, is no line of a journal: {error}") from None
        if record.failures:
            rounds[record.round - 1] = {failed.client: DropoutRow(line, None, None) for failed in record.failures}
    return rounds


def _listed(text: str, path: Path) -> Rounds:
    """The rows of a table."""
    rows = csv.reader(text.splitlines())
    rounds: Rounds = {}
    try:
        columns = [name.strip() for name in next(rows, [])]
        _check_columns(columns, path)
        for cells in rows:
            if any(cell.strip() for cell in cells):
                _add(rounds, _row(columns, cells), rows.line_num)
    except (ValueError, csv.Error) as error:
        raise InputError(f"dropout.file {path}, line {rows.line_num}: {error}") from None
    return rounds


def _check_columns(columns: list[str], path: Path) -> None:
    wrong = set(columns) - {*_REQUIRED, *_OPTIONAL} or set(_REQUIRED) - set(columns)
    if wrong or len(set(columns)) != len(columns):
        raise InputError(
            f"dropout.file {path} must begin with the names of its columns, round,client or round,client,when,fraction,"
            f" not {','.join(columns)[:80]!r}"
        )


def _row(columns: list[str], cells: list[str]) -> dict[str, str]:
    if len(cells) != len(columns):
        raise ValueError(f"{len(cells)} cells under {len(columns)} columns")
    return {name: cell.strip() for name, cell in zip(columns, cells, strict=True)}


def _add(rounds: Rounds, row: dict[str, str], line: int) -> None:
    round, client = (_count(row, name) for name in _REQUIRED)
    if not round:
        raise ValueError("rounds are counted from 1, as in a run's journal, and this is round 0: add 1 to each of them")
    when = row.get("when") or None
    if when is not None and when not in get_args(When):
        raise ValueError(f"when is before, during or after, not {when!r}")
    rows = rounds.setdefault(round - 1, {})
    if client in rows:
        raise ValueError(f"line {rows[client].line} already has client {client} dropping out of round {round}")
    rows[client] = DropoutRow(line, when, _fraction(row))  # type: ignore[arg-type]  # checked above


def _count(row: dict[str, str], name: str) -> int:
    if not (row[name].isascii() and row[name].isdigit()):
        raise ValueError(f"{name} must be a number from {int(name == 'round')}, not {row[name]!r}")
    return int(row[name])


def _fraction(row: dict[str, str]) -> float | None:
    if not row.get("fraction"):
        return None
    try:
        fraction = float(row["fraction"])
    except ValueError:
        fraction = -1.0
    if not 0 <= fraction <= 1:
        raise ValueError(f"fraction is a number from 0 to 1, not {row['fraction']!r}")
    return fraction
