"""Tables that assign classes to objects, as CSV or JSON beside the objects.

CSV has a header with a column for the object and one for its class, and optionally one for its split:

    name,class,split
    mug_red,mug,train

JSON is a list of such rows, or simply {"mug_red": "mug", ...}.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from io import StringIO
from pathlib import Path, PurePosixPath
from typing import Any

from fedstill.core.errors import InputError
from fedstill.data.readers.raw import PARTS, Part, content

_OBJECT = ("name", "object", "object_id", "id", "uid", "model", "file", "filename", "path", "scan")
_CLASS = ("class", "category", "label", "keyword", "type")
_SPLIT = ("split", "part", "set")


@dataclass(frozen=True)
class LabelTable:
    """Class (empty if there is none) and split of each object."""

    path: Path
    rows: dict[str, tuple[str, Part | None]]

    def find(self, place: PurePosixPath) -> str | None:
        """The object of a file: the file itself by any of its names, else the nearest enclosing folder."""
        names = [place.as_posix(), place.with_suffix("").as_posix(), place.name, place.stem]
        names += [folder.as_posix() for folder in place.parents] + [folder.name for folder in place.parents]
        return next((name for name in names if name in self.rows), None)


def find_table(folder: Path) -> LabelTable | None:
    """The first file of the folder that is such a table; other CSV and JSON files are ignored."""
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() in (".csv", ".json") and path.is_file():
            rows = _rows(path)
            if rows:
                return LabelTable(path, rows)
    return None


def _rows(path: Path) -> dict[str, tuple[str, Part | None]]:
    text = content(path).decode("utf-8-sig", errors="replace")
    records: list[dict[str, Any]]
    if path.suffix.lower() == ".csv":
        try:
            records = list(csv.DictReader(StringIO(text)))
        except csv.Error as error:
            raise InputError(f"{path} is no CSV ({error}): mend it, or take it away") from None
    else:
        try:
            held = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path} is no JSON ({error}): mend it, or take it away") from None
        if isinstance(held, dict) and all(isinstance(value, str) for value in held.values()):
            held = [{"name": name, "class": value} for name, value in held.items()]
        records = [row for row in held if isinstance(row, dict)] if isinstance(held, list) else []
    if not records:
        return {}
    columns = {str(column).strip().lower(): column for column in records[0]}
    subject, kind, split = (
        next((columns[word] for word in words if word in columns), None) for words in (_OBJECT, _CLASS, _SPLIT)
    )
    if subject is None or kind is None:
        return {}
    rows: dict[str, tuple[str, Part | None]] = {}
    for record in records:
        name, label = (str(record.get(column) or "").strip() for column in (subject, kind))
        part = str(record.get(split) or "").strip().lower() if split is not None else ""
        if name:
            rows[name] = (label, PARTS.get(part))
    return rows
