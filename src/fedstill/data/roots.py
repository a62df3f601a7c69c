"""The data root, and the data set names that a user recorded in it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from platformdirs import user_data_dir

from fedstill.core.errors import InputError
from fedstill.core.files import from_home, writable_folder, write_json

VARIABLE = "FEDSTILL_DATA"
RECORDS = "datasets.json"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


def data_root(given: Path | None = None) -> Path:
    """The folder that contains the data sets: the given one, else FEDSTILL_DATA, else the user's data directory."""
    if given is not None:
        return from_home(given)
    named = os.environ.get(VARIABLE)
    return from_home(named) if named else Path(user_data_dir("fedstill", appauthor=False))


def checked_name(name: str) -> str:
    """The name, if it can be typed without quotes and used as a folder name.

    >>> checked_name("My Data")
    Traceback (most recent call last):
    fedstill.core.errors.InputError: 'My Data' cannot be a data set's name: use small letters, digits, '-', '_' and '.'
    """
    if not _NAME.fullmatch(name):
        raise InputError(f"{name!r} cannot be a data set's name: use small letters, digits, '-', '_' and '.'")
    return name


def recorded(root: Path) -> dict[str, Path]:
    """Names recorded by the user, with their paths."""
    file = root / RECORDS
    try:
        held = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{file} cannot be read ({error}): mend or delete it, and add your data sets again") from None
    if not isinstance(held, dict) or not all(isinstance(path, str) for path in held.values()):
        raise InputError(f"{file} should map names to paths: mend or delete it, and add your data sets again")
    return {name: Path(path) for name, path in held.items()}


def record(root: Path, entries: Mapping[str, Path]) -> None:
    """Write all entries atomically: the file is replaced in one step."""
    write_json(writable_folder(root) / RECORDS, {name: str(path) for name, path in sorted(entries.items())})
