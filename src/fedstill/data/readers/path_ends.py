"""Paths of a table from another machine, compared with files here: without case and suffix, and by their ends."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from pathlib import PurePosixPath

_SUFFIX = re.compile(r"\.[a-z][a-z0-9]{1,5}$")  # of a file; what follows the last dot of "scan.12" is none


class PathEnds:
    """Rows by their paths, written in any way, and by the ends of these; without what several rows have."""

    def __init__(self, rows: Iterable[str]) -> None:
        self.whole: dict[tuple[str, ...], str | None] = {}
        self.ends: dict[tuple[str, ...], str | None] = {}
        for row in rows:
            parts = _parts(row)
            for key in _with_and_without_suffix(parts):
                self.whole[key] = row if self.whole.get(key, row) == row else None
            for start in range(len(parts)):
                for key in _with_and_without_suffix(parts[start:]):
                    self.ends[key] = row if self.ends.get(key, row) == row else None

    def find(self, place: PurePosixPath) -> str | None:
        """The row whose path ends with that of a file, or whose whole path is the end of it."""
        parts = _parts(place.as_posix())
        tried = [self.ends.get(key) for key in _with_and_without_suffix(parts)]
        for start in range(1, len(parts)):
            tried += [self.whole.get(key) for key in _with_and_without_suffix(parts[start:])]
        return next((row for row in tried if row is not None), None)


def _parts(path: str) -> tuple[str, ...]:
    """The parts of a path, without case.

    >>> _parts("C:\\\\Scans\\\\1.PNG"), _parts("./a/1.png")
    (('c:', 'scans', '1.png'), ('a', '1.png'))
    """
    plain = unicodedata.normalize("NFC", path).casefold()  # a Mac stores the letters and accents of names apart
    return tuple(part for part in plain.replace("\\", "/").split("/") if part not in ("", "."))


def _with_and_without_suffix(parts: tuple[str, ...]) -> list[tuple[str, ...]]:
    stem = _SUFFIX.sub("", parts[-1]) if parts else ""
    return [parts, (*parts[:-1], stem)] if stem and stem != parts[-1] else [parts]
