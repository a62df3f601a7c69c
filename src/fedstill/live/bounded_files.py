"""Files that another process may be writing, read within limits and without a lock.

Nothing here raises: a file that is missing, cut off, huge or no file at all is simply not known yet.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import Any

from fedstill.core.files import parse_json

MOST = 4 * 2**20  # bytes of one JSON file, or of what is read of a journal at once
Stamp = tuple[int, int, int]  # what changes when a file does: its inode, its size and its time
_LONGEST = 400  # characters of a text that is shown


def stamp_of(path: Path) -> Stamp | None:
    """None where there is no regular file."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return (found.st_ino, found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None


def read_part(path: Path, start: int = 0, most: int = MOST) -> bytes:
    """At most so many bytes from there on; none where the file cannot be read. A pipe is not waited for."""
    with suppress(OSError, ValueError):
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with os.fdopen(descriptor, "rb") as file:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                file.seek(start)
                return file.read(most)
    return b""


def read_mapping(path: Path) -> dict[str, Any]:
    """A JSON object; empty where there is none that can be read."""
    data = read_part(path, most=MOST + 1)
    return mapping_of(data) if len(data) <= MOST else {}


def mapping_of(data: bytes) -> dict[str, Any]:
    """
    >>> mapping_of(b'{"a": 1}'), mapping_of(b'[1]'), mapping_of(b'{"a"')
    ({'a': 1}, {}, {})
    """
    try:
        found = parse_json(data)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def section_of(content: Any, *path: str) -> dict[str, Any]:
    """A mapping within mappings; empty where something else stands there.

    >>> section_of({"a": {"b": {"c": 1}}}, "a", "b"), section_of({"a": 3}, "a", "b")
    ({'c': 1}, {})
    """
    for name in path:
        content = content.get(name) if isinstance(content, dict) else None
    return content if isinstance(content, dict) else {}


def finite(value: Any) -> float | None:
    """A number that JSON can hold; None for anything else.

    >>> finite(2), finite(float("nan")), finite("2"), finite(True), finite(10**400)
    (2.0, None, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if isfinite(number) else None


def whole(value: Any) -> int:
    """A count; 0 for what is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else 0


def short_text(value: Any) -> str:
    """A text of one line, cut to what a page shows."""
    words = " ".join(value.split()) if isinstance(value, str) else ""
    clean = words.encode("utf-8", "replace").decode("utf-8")
    return clean if len(clean) <= _LONGEST else f"{clean[: _LONGEST - 1]}…"


@lru_cache(maxsize=4096)
def short_name_of(value: str) -> str:
    """The same for names that occur in every line of a journal."""
    return short_text(value)
