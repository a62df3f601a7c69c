"""A table made elsewhere, as evidence: one line for every teacher, objective and seed."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from io import StringIO
from math import isfinite, isnan
from pathlib import Path
from typing import Any

from fedstill.audit.evidence import Evidence, Score, Seed, Student, Teacher
from fedstill.audit.model_selection import chosen_on_test
from fedstill.audit.table_units import Unit, WrittenAccuracy, scale_of
from fedstill.audit.verdicts import NOT_ASSESSABLE
from fedstill.core.errors import InputError
from fedstill.core.files import parse_json, read_text_file
from fedstill.distillation import objectives

NEEDED = ("teacher", "objective", "seed", "accuracy")
OPTIONAL = (
    "teacher_accuracy",
    "free_accuracy",
    "labels_only_accuracy",
    "hard_label_weight",
    "test_size",
    "selection",
    "student",
)
OTHER_NAMES = {  # of columns, as people write them
    "labels_only": "labels_only_accuracy",
    "label_only_accuracy": "labels_only_accuracy",
    "free": "free_accuracy",
    "label_free": "free_accuracy",
    "label_free_accuracy": "free_accuracy",
    "student_accuracy": "accuracy",
}
TEACHERS_ALONE = ("teacher", "seed", "teacher_accuracy")
ACCURACIES = ("accuracy", *OPTIONAL[:3])
NUMBERS = (*ACCURACIES, "hard_label_weight", "test_size")
NON_FINITE = "non-finite"
TABLES = (".csv", ".tsv", ".txt")
_PERCENT = re.compile(r"[\s_]*(%|\(\s*%\s*\)|\[\s*%\s*\])$")  # after the name of a column
SPREAD = re.compile(r"±|\+/?-|\d\s*\(")  # a mean with its standard deviation: 71.3 ± 0.4
_DECIMAL_COMMA = re.compile(r"\d+,\d+\s*%?")


@dataclass(frozen=True)
class EvidenceRow:
    """One line of the table, as numbers; accuracies as they are written."""

    line: int
    teacher: str
    objective: str
    seed: Seed
    values: dict[str, float]
    written: dict[str, WrittenAccuracy]  # accuracies by column
    selection: str  # how the reported model was chosen among those of its run
    student: str  # the student's architecture; empty: not given
    broken: bool  # the teacher gives outputs that are not finite


def read_table(path: Path, class_counts: Sequence[int] = (), unit: Unit = "auto") -> Evidence:
    """Columns teacher, objective, seed, accuracy; optionally teacher_accuracy, free_accuracy, labels_only_accuracy,
    hard_label_weight, test_size (test samples) and selection (how the reported model was chosen: `last`, `validation`,
    `best on test`), student (its architecture, where there are several; each has its own labels_only_accuracy). A table
    of teachers alone needs teacher, seed and teacher_accuracy, one of federated methods method, seed and accuracy. A
    `.json` file holds a list with a mapping from column to value for each row.

    Accuracies are percentages if any of them is above 1 or bears the sign (`0.9%`, or a column `accuracy (%)`), else
    shares; `unit` says so where that would be wrong. Columns or rows of both kinds in one table are refused. An
    empty field is a result that is not there; the word non-finite stands for a teacher without finite outputs. Other
    columns are left alone.
    """
    if path.suffix.lower() == ".json":
        return _from_rows(path, _json_rows(path), class_counts, unit)
    return _evidence(path, _lines(path), class_counts, unit)


def is_table(path: Path) -> bool:
    """Whether a file is a table made elsewhere: a .csv, .tsv or .txt file, or a .json file with a list of rows."""
    if path.suffix.lower() in TABLES and not path.is_dir():
        return True
    if path.suffix.lower() != ".json" or not path.is_file():
        return False
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read(200).lstrip().startswith("[")


def read_rows(rows: Any, class_counts: Sequence[int] = (), unit: Unit = "auto") -> Evidence:
    """The same table as a pandas frame, or as mappings from column to value, one for each row."""
    records = rows.to_dict("records") if hasattr(rows, "to_dict") else list(rows)
    return _from_rows(Path("in memory"), records, class_counts, unit)


def _json_rows(path: Path) -> list[Any]:
    try:
        content = parse_json(read_text_file(path, "utf-8-sig"))
    except OSError as error:
        raise InputError(f"cannot read the table {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise InputError(f"the table {path} is not JSON in UTF-8: {error}") from error
    if not isinstance(content, list):
        raise InputError(f"the table {path} is not a list with a mapping from column to value for each row")
    return content


def _from_rows(path: Path, records: list[Any], class_counts: Sequence[int], unit: Unit) -> Evidence:
    if not all(isinstance(record, Mapping) for record in records):
        raise InputError(
            "a table in memory is a pandas frame, or a list with a mapping from column to value for each row"
            if path.suffix != ".json"
            else f"the table {path} is not a list with a mapping from column to value for each row"
        )
    header = list(dict.fromkeys(str(name) for record in records for name in record))
    texts = [[_text(record.get(name)) for name in header] for record in records]
    lines = [header, *texts] if records else []
    return _evidence(path, iter(enumerate(lines, start=1)), class_counts, unit)


def _text(value: Any) -> str:
    """A field as a table in a file has it; what is missing is empty."""
    missing = value is None or (isinstance(value, float) and isnan(value))
    return "" if missing else str(value)


def _evidence(path: Path, lines: Iterator[tuple[int, list[str]]], class_counts: Sequence[int], unit: Unit) -> Evidence:
    header, labels, ignored, signed = _header(path, next(lines, None))
    rows = [
        _row(path, number, header, labels, signed, fields)
        for number, fields in lines
        if any(field.strip() for field in fields)
    ]
    if not rows:
        raise InputError(f"the table {path} has no rows below its header")
    rows = _by_student(rows)
    _refuse_repeated(path, rows)
    written = [one for row in rows for one in row.written.values()]
    chance = max(class_counts) / sum(class_counts) if class_counts and sum(class_counts) else None
    samples = _test_size(path, rows, class_counts)
    counted = sum(class_counts) if max(class_counts, default=0) > 1 else 0
    scale = scale_of(path, written, unit, chance, samples or counted)
    alone = _labels_only(path, rows, scale)
    settings = {"table": path.name, "accuracies": "percent" if scale == 100 else "share"}
    return Evidence(
        name=path.stem,
        about=f"A table made elsewhere: {path.name}.",
        teachers=_teachers(path, rows, scale),
        students=_students(path, rows, scale, alone) if "objective" in header else (),
        alone={seed: score for (_, seed), score in alone.items()} if len({row.student for row in rows}) == 1 else {},
        class_counts=tuple(class_counts),
        settings={**settings, **({"columns left alone": ", ".join(ignored)} if ignored else {})},
        test_size=samples,
        chosen_on_test=tuple(_place(row) for row in rows if chosen_on_test(row.selection)),
        precision=0.5 * 10.0 ** -max((one.digits for one in written), default=0) / scale,
    )


def _by_student(rows: list[EvidenceRow]) -> list[EvidenceRow]:
    """Where students have several architectures, an objective is told from itself by the student's."""
    if len({row.student for row in rows}) < 2:
        return rows
    return [replace(row, objective=f"{row.objective} ({row.student or 'student not named'})") for row in rows]


def _place(row: EvidenceRow) -> str:
    """A row as a sentence names it."""
    return (
        f"{row.teacher} with {row.objective}, seed {row.seed}" if row.objective else f"{row.teacher}, seed {row.seed}"
    )


def _test_size(path: Path, rows: Sequence[EvidenceRow], class_counts: Sequence[int]) -> int:
    """The number of test samples by the column; 0 without one. There is one test set, and its class counts agree."""
    known = {row.values["test_size"]: row.line for row in rows if "test_size" in row.values}
    if not known:
        return 0
    size, line = next(iter(known.items()))
    if size != int(size) or size < 1:
        raise InputError(f"{path}, line {line}: test_size is {size:g}, which is not a number of test samples")
    if len(known) > 1:
        other, there = list(known.items())[1]
        raise InputError(
            f"{path}, line {there}: test_size is {other:g}, but line {line} says {size:g}: audit one test set at a time"
        )
    if max(class_counts, default=0) > 1 and sum(class_counts) != size:
        raise InputError(
            f"{path}, line {line}: test_size is {size:g}, but the class counts add up to {sum(class_counts)}"
        )
    return int(size)


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    try:
        text = read_text_file(path, "utf-8-sig")
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


def _header(path: Path, first: tuple[int, list[str]] | None) -> tuple[list[str], dict[str, str], list[str], set[str]]:
    """The columns by name and as the table spells them, those that mean nothing here, and those that say percent.

    A near name is refused.
    """
    if first is None or not any(field.strip() for field in first[1]):
        raise InputError(f"the table {path} is empty: its first line names the columns {', '.join(NEEDED)}")
    written = [field.strip().lower() for field in first[1]]
    bare = [_spelt(_PERCENT.sub("", name)) for name in written]
    bare = [name if OTHER_NAMES.get(name, name) in bare else OTHER_NAMES.get(name, name) for name in bare]
    if "method" in bare and not {"teacher", "objective"} & set(bare):
        federated = {"method": "teacher", "accuracy": "teacher_accuracy"}
        bare = [federated.get(name, name) for name in bare]
    known = {*NEEDED, *OPTIONAL}
    header = [
        short if short in ACCURACIES or (short in known and not _PERCENT.search(name)) else name
        for name, short in zip(written, bare, strict=True)
    ]
    doubled = next((name for name in header if name in known and header.count(name) > 1), None)
    if doubled:
        raise InputError(f"the table {path} has the column {doubled!r} twice")
    ignored = [name for name in header if name not in known]
    for name in ignored:
        # So near that it is a slip and not another column, as `class_accuracy` would be.
        meant = get_close_matches(_spelt(_PERCENT.sub("", name)), known, n=1, cutoff=0.88)
        if meant:
            raise InputError(f"the table {path} has an unknown column {name!r}: did you mean {meant[0]!r}?")
    alone = set(TEACHERS_ALONE) <= set(header) and not {"objective", "accuracy"} & set(header)
    missing = [] if alone else [name for name in NEEDED if name not in header]
    if missing:
        raise InputError(
            f"the table {path} lacks the column {missing[0]!r}: it needs {', '.join(NEEDED)}"
            f" (or, of teachers alone, {', '.join(TEACHERS_ALONE)}; of federated methods, method, seed, accuracy)"
        )
    signed = {name for name, before in zip(header, written, strict=True) if _PERCENT.search(before)}
    return header, dict(zip(header, (field.strip() for field in first[1]), strict=True)), ignored, signed


def _spelt(name: str) -> str:
    """The name of a column with underscores for spaces and hyphens: `Teacher accuracy` is `teacher_accuracy`."""
    return re.sub(r"[\s_-]+", "_", name)


def _row(
    path: Path, line: int, header: Sequence[str], labels: Mapping[str, str], signed: set[str], fields: Sequence[str]
) -> EvidenceRow:
    """One line; messages name its columns as the table does."""
    where = f"{path}, line {line}"
    if len(fields) != len(header):
        raise InputError(f"{where}: {len(fields)} fields, but the header has {len(header)}")
    cells = {name: field.strip() for name, field in zip(header, fields, strict=True)}
    for name in ("teacher", "objective", "seed"):
        if name in cells and not cells[name]:
            raise InputError(f"{where}: the {labels[name]} is not named")
    broken = cells.get("teacher_accuracy", "").lower() == NON_FINITE
    numbers = [name for name in NUMBERS if cells.get(name) and not (broken and name == "teacher_accuracy")]
    values = {name: _number(where, name, labels[name], cells[name]) for name in numbers}
    written = {
        name: WrittenAccuracy(
            line,
            labels[name],
            value,
            _digits(cells[name]),
            name in signed or cells[name].endswith("%"),
            cells["teacher"],
        )
        for name, value in values.items()
        if name in ACCURACIES
    }
    place = cells["teacher"], cells.get("objective", ""), cells["seed"]
    return EvidenceRow(line, *place, values, written, cells.get("selection", ""), cells.get("student", ""), broken)


def _number(where: str, name: str, label: str, text: str) -> float:
    if SPREAD.search(text):
        raise InputError(
            f"{where}: {label} is {text!r}: give each seed a row of its own, not a mean with its deviation"
        )
    try:
        value = float(_with_point(name, text.removesuffix("%") if name in ACCURACIES else text))
    except ValueError:
        raise InputError(f"{where}: {label} is {text!r}, which is not a number") from None
    if not isfinite(value):
        raise InputError(f"{where}: {label} is {text!r}; leave the field empty where there is no result")
    if value < 0:
        raise InputError(f"{where}: {label} is {text}, and cannot be below 0")
    return value


def _with_point(name: str, text: str) -> str:
    """A decimal comma as a point; in a number of test samples it might stand for thousands."""
    return text.replace(",", ".") if name != "test_size" and _DECIMAL_COMMA.fullmatch(text) else text


def _digits(text: str) -> int:
    mantissa, _, exponent = text.removesuffix("%").strip().replace(",", ".").lower().partition("e")
    return max(len(mantissa.partition(".")[2]) - int(exponent or 0), 0)


def _refuse_repeated(path: Path, rows: Sequence[EvidenceRow]) -> None:
    seen: dict[tuple[str, str, Seed], int] = {}
    for row in rows:
        key = row.teacher, row.objective, row.seed
        if key in seen:
            what = ", ".join(part for part in (row.teacher, row.objective, f"seed {row.seed}") if part)
            raise InputError(f"{path}, line {row.line}: {what} stands in line {seen[key]} already")
        seen[key] = row.line


def _score(row: EvidenceRow, column: str, scale: float) -> Score:
    return Score(row.values[column] / scale, unit=10.0 ** -row.written[column].digits / scale)


def _agreed(path: Path, rows: Sequence[EvidenceRow], name: str, key: str) -> dict[tuple[str, ...], EvidenceRow]:
    """The first row with a value that rows repeat, by what it belongs to; rows that disagree are refused."""
    found: dict[tuple[str, ...], EvidenceRow] = {}
    for row in rows:
        if name not in row.values:
            continue
        owner = {
            "teacher": (row.teacher, row.seed),
            "seed and student": (row.student, row.seed),
            "objective": (row.objective,),
        }[key]
        first = found.setdefault(owner, row)
        if first.values[name] != row.values[name]:
            raise InputError(
                f"{path}, line {row.line}: {name} is {row.values[name]:g}, but line {first.line} says"
                f" {first.values[name]:g} for the same {key}"
            )
    return found


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
        Teacher(name, seed, None if (name, seed) in broken else _score(agreed[name, seed], "teacher_accuracy", scale))
        for name, seed in everyone
        if (name, seed) in broken or (name, seed) in agreed
    )


def _students(
    path: Path, rows: Sequence[EvidenceRow], scale: float, alone: Mapping[tuple[str, Seed], Score]
) -> tuple[Student, ...]:
    weights = _agreed(path, rows, "hard_label_weight", "objective")
    controlled = any("free_accuracy" in row.values for row in rows)
    students: list[Student] = []
    for row in rows:
        pair = row.teacher, row.objective, row.seed
        weight = weights[row.objective,].values["hard_label_weight"] if (row.objective,) in weights else None
        score = _score(row, "accuracy", scale) if "accuracy" in row.values else None
        missing = "" if score is not None else "no accuracy in the table"
        own = {"alone": alone.get((row.student, row.seed)), "model": row.student} if row.student else {}
        students.append(Student(*pair, False, score, missing, weight, **own))  # type: ignore[arg-type]
        if controlled and not _assessable(row.objective):
            students.append(Student(*pair, free=True, score=None, missing=NOT_ASSESSABLE, hard_label_weight=0.0))
        elif "free_accuracy" in row.values:
            free = _score(row, "free_accuracy", scale)
            students.append(Student(*pair, free=True, score=free, hard_label_weight=0.0))
    return tuple(students)


def _assessable(name: str) -> bool:
    """Whether a label-free control means something; of objectives that have no such name here, it does."""
    known = name.lower()
    return known not in objectives or objectives[known].assessable


def _labels_only(path: Path, rows: Sequence[EvidenceRow], scale: float) -> dict[tuple[str, Seed], Score]:
    """Labels-only students by architecture and seed."""
    agreed = _agreed(path, rows, "labels_only_accuracy", "seed and student")
    return {(student, seed): _score(row, "labels_only_accuracy", scale) for (student, seed), row in agreed.items()}
