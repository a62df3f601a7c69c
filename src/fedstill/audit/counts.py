"""How many test samples each class has, as people give it: a list, a file, or a number of equal classes."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from fedstill.core.errors import InputError
from fedstill.core.files import read_text_file

_NUMBERS = re.compile(r"[\d\s,]*")


def read_counts(text: str | None = None, classes: int | None = None) -> tuple[int, ...]:
    """`100,50,20`, a CSV file with a column `count` (or one number a line), or so many classes of equal size.

    Equal classes are given one sample each: their share is then known, the size of the test set is not.

    >>> read_counts("100,50,20")
    (100, 50, 20)
    >>> read_counts(classes=4)
    (1, 1, 1, 1)
    """
    if text is not None and classes is not None:
        raise InputError("give --class-counts or --classes, not both")
    if classes is not None:
        if classes < 2:
            raise InputError(f"--classes is {classes}, but there must be at least two")
        return (1,) * classes
    if text is None:
        return ()
    if not _NUMBERS.fullmatch(text) and (Path(text).suffix or _is_file(text)):
        return _from_file(Path(text))
    return _checked([(None, part) for part in text.split(",")], "--class-counts")


def _is_file(text: str) -> bool:
    """Whether a file has this name; a long list of counts is none, and some systems refuse to look for it."""
    try:
        return Path(text).is_file()
    except OSError:
        return False


def _from_file(path: Path) -> tuple[int, ...]:
    try:
        rows = list(csv.reader(read_text_file(path, "utf-8-sig").splitlines()))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text in UTF-8"
        raise InputError(f"cannot read the class counts in {path}: {reason}") from error
    header = [field.strip().lower() for field in rows[0]] if rows else []
    column = header.index("count") if "count" in header else 0
    body = [(line, row) for line, row in enumerate(rows, 1) if row and not (line == 1 and "count" in header)]
    return _checked([(line, row[column] if column < len(row) else "") for line, row in body], str(path))


def _checked(parts: list[tuple[int | None, str]], source: str) -> tuple[int, ...]:
    found: list[int] = []
    for line, part in parts:
        where = source if line is None else f"{source}, line {line}"
        try:
            found.append(int(part.strip()))
        except ValueError:
            raise InputError(f"{where}: {part.strip()!r} is not a whole number of test samples") from None
        if found[-1] < 0:
            raise InputError(f"{where}: a class cannot have {found[-1]} test samples")
    if sum(count > 0 for count in found) < 2:
        raise InputError(f"{source}: at least two classes must have test samples")
    return tuple(found)
