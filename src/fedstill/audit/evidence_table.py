"""A table made elsewhere, as evidence: one line for every teacher, objective and seed."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from io import StringIO
from math import isfinite, isnan
from pathlib import Path
from typing import Any, Literal, cast, get_args

from fedstill.audit.evidence import Evidence, Score, Seed, Student, Teacher
from fedstill.audit.verdicts import NOT_ASSESSABLE
from fedstill.core.errors import InputError, did_you_mean
from fedstill.distillation import objectives

Unit = Literal["auto", "percent", "share"]
NEEDED = ("teacher", "objective", "seed", "accuracy")
OPTIONAL = ("teacher_accuracy", "free_accuracy", "labels_only_accuracy", "hard_label_weight")
TEACHERS_ALONE = ("teacher", "seed", "teacher_accuracy")
ACCURACIES = ("accuracy", *OPTIONAL[:3])
NON_FINITE = "non-finite"
_PERCENT = re.compile(r"[\s_]*(%|\(\s*%\s*\)|\[\s*%\s*\])$")  # after the name of a column


@dataclass(frozen=True)
class EvidenceRow:
    """One line of the table, as numbers; accuracies as they are written."""

    line: int
    teacher: str
    objective: str
    seed: Seed
    values: dict[str, float]
    digits: int  # behind the point, of the accuracy that has most
    signed: bool  # some accuracy bears a percent sign
    broken: bool  # the teacher gives outputs that are not finite


def checked_unit(name: str) -> Unit:
    for unit in get_args(Unit):
        if name == unit:
            return cast(Unit, unit)
    raise InputError(f"unknown unit {name!r}: {did_you_mean(name, get_args(Unit))}")


def read_table(path: Path, class_counts: Sequence[int] = (), unit: Unit = "auto") -> Evidence:
    """Columns teacher, objective, seed, accuracy; optionally teacher_accuracy, free_accuracy, labels_only_accuracy
    and hard_label_weight. A table of teachers alone needs teacher, seed and teacher_accuracy.

    Accuracies are percentages if any of them is above 1 or bears the sign (`0.9%`, or a column `accuracy (%)`), else
    shares; `unit` says so where that would be wrong. A column of the one kind beside one of the other is refused. An
    empty field is a result that is not there; the word non-finite stands for a teacher without finite outputs. Other
    columns are left alone.
    """
    return _evidence(path, _lines(path), class_counts, unit)


def read_rows(rows: Any, class_counts: Sequence[int] = (), unit: Unit = "auto") -> Evidence:
    """The same table as a pandas frame, or as mappings from column to value, one for each row."""
    records = rows.to_dict("records") if hasattr(rows, "to_dict") else list(rows)
    if not all(isinstance(record, Mapping) for record in records):
        raise InputError(
            "a table in memory is a pandas frame, or a list with a mapping from column to value for each row"
        )
    header = list(dict.fromkeys(str(name) for record in records for name in record))
    texts = [[_text(record.get(name)) for name in header] for record in records]
    lines = [header, *texts] if records else []
    return _evidence(Path("in memory"), iter(enumerate(lines, start=1)), class_counts, unit)


def _text(value: Any) -> str:
    """A field as a table in a file has it; what is missing is empty."""
    missing = value is None or (isinstance(value, float) and isnan(value))
    return "" if missing else str(value)


def _evidence(path: Path, lines: Iterator[tuple[int, list[str]]], class_counts: Sequence[int], unit: Unit) -> Evidence:
    header, ignored, signed = _header(path, next(lines, None))
    rows = [_row(path, number, header, fields) for number, fields in lines if any(field.strip() for field in fields)]
    if not rows:
        raise InputError(f"the table {path} has no rows below its header")
    _refuse_repeated(path, rows)
    scale, precision = _unit(path, rows, unit, signed)
    settings = {"table": path.name, "accuracies": "percent" if scale == 100 else "share"}
    return Evidence(
        name=path.stem,
        about=f"A table made elsewhere: {path.name}.",
        teachers=_teachers(path, rows, scale),
        students=_students(path, rows, scale) if "objective" in header else (),
        alone=_alone(path, rows, scale),
        class_counts=tuple(class_counts),
        settings={**settings, **({"columns left alone": ", ".join(ignored)} if ignored else {})},
        precision=precision,
    )


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"cannot read the table {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"the table {path} is not text in UTF-8: save it as CSV in UTF-8") from error
    first = text.partition("\n")[0]
    separator = next((mark for mark in ",;\t" if mark in first), ",")
    reader = csv.reader(StringIO(text), delimiter=separator, skipinitialspace=True)
    try:
        for fields in reader:
            yield reader.line_num, fields
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: {error}") from error


def _header(path: Path, first: tuple[int, list[str]] | None) -> tuple[list[str], list[str], bool]:
    """The columns by name, those that mean nothing here, and whether one says percent; a near name is refused."""
    if first is None or not any(field.strip() for field in first[1]):
        raise InputError(f"the table {path} is empty: its first line names the columns {', '.join(NEEDED)}")
    written = [field.strip().lower() for field in first[1]]
    bare = [_PERCENT.sub("", name) for name in written]
    header = [short if short in ACCURACIES else name for name, short in zip(written, bare, strict=True)]
    known = {*NEEDED, *OPTIONAL}
    doubled = next((name for name in header if name in known and header.count(name) > 1), None)
    if doubled:
        raise InputError(f"the table {path} has the column {doubled!r} twice")
    ignored = [name for name in header if name not in known]
    for name in ignored:
        # So near that it is a slip and not another column, as `class_accuracy` would be.
        meant = get_close_matches(name.replace(" ", "_").replace("-", "_"), known, n=1, cutoff=0.88)
        if meant:
            raise InputError(f"the table {path} has an unknown column {name!r}: did you mean {meant[0]!r}?")
    alone = set(TEACHERS_ALONE) <= set(header) and not {"objective", "accuracy"} & set(header)
    missing = [] if alone else [name for name in NEEDED if name not in header]
    if missing:
        raise InputError(
            f"the table {path} lacks the column {missing[0]!r}: it needs {', '.join(NEEDED)}"
            f" (or, of teachers alone, {', '.join(TEACHERS_ALONE)})"
        )
    return header, ignored, header != written


def _row(path: Path, line: int, header: Sequence[str], fields: Sequence[str]) -> EvidenceRow:
    where = f"{path}, line {line}"
    if len(fields) != len(header):
        raise InputError(f"{where}: {len(fields)} fields, but the header has {len(header)}")
    cells = {name: field.strip() for name, field in zip(header, fields, strict=True)}
    for name in ("teacher", "objective", "seed"):
        if name in cells and not cells[name]:
            raise InputError(f"{where}: the {name} is not named")
    broken = cells.get("teacher_accuracy", "").lower() == NON_FINITE
    numbers = [name for name in (*ACCURACIES, "hard_label_weight") if cells.get(name)]
    values = {
        name: _number(where, name, cells[name]) for name in numbers if not (broken and name == "teacher_accuracy")
    }
    accuracies = [cells[name] for name in values if name in ACCURACIES]
    digits = max((_digits(text) for text in accuracies), default=0)
    signed = any(text.endswith("%") for text in accuracies)
    return EvidenceRow(
        line, cells["teacher"], cells.get("objective", ""), cells["seed"], values, digits, signed, broken
    )


def _number(where: str, name: str, text: str) -> float:
    try:
        value = float(text.removesuffix("%") if name in ACCURACIES else text)
    except ValueError:
        raise InputError(f"{where}: {name} is {text!r}, which is not a number") from None
    if not isfinite(value):
        raise InputError(f"{where}: {name} is {text!r}; leave the field empty where there is no result")
    if value < 0:
        raise InputError(f"{where}: {name} is {text}, and cannot be below 0")
    return value


def _digits(text: str) -> int:
    mantissa, _, exponent = text.removesuffix("%").strip().lower().partition("e")
    return max(len(mantissa.partition(".")[2]) - int(exponent or 0), 0)


def _refuse_repeated(path: Path, rows: Sequence[EvidenceRow]) -> None:
    seen: dict[tuple[str, str, Seed], int] = {}
    for row in rows:
        key = row.teacher, row.objective, row.seed
        if key in seen:
            what = ", ".join(part for part in (row.teacher, row.objective, f"seed {row.seed}") if part)
            raise InputError(f"{path}, line {row.line}: {what} stands in line {seen[key]} already")
        seen[key] = row.line


def _unit(path: Path, rows: Sequence[EvidenceRow], unit: Unit, signed: bool) -> tuple[float, float]:
    """What to divide accuracies by, and half a unit of their last digit, as a share."""
    written = [(row.line, name, row.values[name]) for row in rows for name in ACCURACIES if name in row.values]
    signed = signed or any(row.signed for row in rows)
    if signed and unit == "share":
        raise InputError(f"the table {path} writes accuracies with a percent sign, so they cannot be shares")
    if unit == "auto" and not signed:
        _refuse_mixed(path, written)
    percent = signed or unit == "percent" or (unit == "auto" and any(value > 1 for _, _, value in written))
    scale = 100.0 if percent else 1.0
    for line, name, value in written:
        if value > scale:
            raise InputError(f"{path}, line {line}: {name} is {value:g}, and cannot be above {scale:g}")
    return scale, 0.5 * 10.0 ** -max(row.digits for row in rows) / scale


def _refuse_mixed(path: Path, written: Sequence[tuple[int, str, float]]) -> None:
    """A column of shares beside one of percentages would make every teacher in it look hopeless."""
    largest: dict[str, float] = {}
    for _, name, value in written:
        largest[name] = max(value, largest.get(name, 0.0))
    shares = next((name for name, value in largest.items() if 0 < value <= 1), None)
    percent = next((name for name, value in largest.items() if value > 1), None)
    if shares and percent:
        raise InputError(
            f"the table {path} has {percent} up to {largest[percent]:g}, as percentages are, and {shares} up to"
            f" {largest[shares]:g}, as shares are: write both alike, or say --unit percent if they are"
        )


def _agreed(path: Path, rows: Sequence[EvidenceRow], name: str, key: str) -> dict[tuple[str, ...], float]:
    """A value that rows repeat, by what it belongs to; rows that disagree are refused."""
    found: dict[tuple[str, ...], tuple[int, float]] = {}
    for row in rows:
        if name not in row.values:
            continue
        owner = {"teacher": (row.teacher, row.seed), "seed": (row.seed,), "objective": (row.objective,)}[key]
        line, value = found.setdefault(owner, (row.line, row.values[name]))
        if value != row.values[name]:
            raise InputError(
                f"{path}, line {row.line}: {name} is {row.values[name]:g}, but line {line} says {value:g} for the same"
                f" {key}"
            )
    return {owner: value for owner, (_, value) in found.items()}


def _teachers(path: Path, rows: Sequence[EvidenceRow], scale: float) -> tuple[Teacher, ...]:
    """Those whose accuracy is given; of the others nothing is known."""
    agreed = _agreed(path, rows, "teacher_accuracy", "teacher")
    broken = {(row.teacher, row.seed): row.line for row in rows if row.broken}
    for owner in broken:
        if owner in agreed:
            raise InputError(
                f"{path}, line {broken[owner]}: {owner[0]} is {NON_FINITE} here, and has an accuracy elsewhere"
            )
    everyone = dict.fromkeys((row.teacher, row.seed) for row in rows)
    return tuple(
        Teacher(name, seed, None if (name, seed) in broken else Score(agreed[name, seed] / scale))
        for name, seed in everyone
        if (name, seed) in broken or (name, seed) in agreed
    )


def _students(path: Path, rows: Sequence[EvidenceRow], scale: float) -> tuple[Student, ...]:
    weights = _agreed(path, rows, "hard_label_weight", "objective")
    controlled = any("free_accuracy" in row.values for row in rows)
    students: list[Student] = []
    for row in rows:
        pair = row.teacher, row.objective, row.seed
        reached, free = row.values.get("accuracy"), row.values.get("free_accuracy")
        weight = weights.get((row.objective,))
        missing = "" if reached is not None else "no accuracy in the table"
        score = None if reached is None else Score(reached / scale)
        students.append(Student(*pair, free=False, score=score, missing=missing, hard_label_weight=weight))
        if controlled and not _assessable(row.objective):
            students.append(Student(*pair, free=True, score=None, missing=NOT_ASSESSABLE, hard_label_weight=0.0))
        elif free is not None:
            students.append(Student(*pair, free=True, score=Score(free / scale), hard_label_weight=0.0))
    return tuple(students)


def _assessable(name: str) -> bool:
    """Whether a label-free control means something; of objectives that have no such name here, it does."""
    known = name.lower()
    return known not in objectives or objectives[known].assessable


def _alone(path: Path, rows: Sequence[EvidenceRow], scale: float) -> dict[Seed, Score]:
    agreed = _agreed(path, rows, "labels_only_accuracy", "seed")
    return {seed: Score(value / scale) for (seed,), value in agreed.items()}
