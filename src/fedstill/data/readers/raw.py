"""The result of a reader: arrays as stored in the files, and the problems found while reading."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedstill.core.errors import InputError
from fedstill.core.files import check_regular, read_file
from fedstill.data.data_settings import DataSettings

if TYPE_CHECKING:
    from fedstill.data.readers.lazy_pixels import LazyPixels

Array = NDArray[Any]
Part = Literal["train", "validation", "test", "whole"]  # `whole`: the files have no split
PARTS: dict[str, Part] = {
    "train": "train",
    "training": "train",
    "dev": "validation",
    "valid": "validation",
    "validation": "validation",
    "val": "validation",
    "test": "test",
    "testing": "test",
}
SKIPPED = "left out, as on_error=skip says"  # begins the note of skipped files
_SOME = 20  # files in a note
POINTS = 2048  # points kept of clouds and meshes in separate files


@dataclass(frozen=True)
class ReaderHints:
    """Information about the data set for a reader, beyond the path."""

    name: str = ""  # selects one if a folder contains several: an archive, a pair of split files
    points: int = POINTS
    group: Callable[[str], str | None] | None = None  # from a folder's name to its class, if they differ
    object_folders: bool = False  # a folder is one object in several files, not a class
    prefer: str = ""  # part of the path of the preferred file of an object
    settings: DataSettings = field(default_factory=DataSettings)


class Split(NamedTuple):
    """Inputs and labels of one split, in the files' own layout; `where` names the files in error messages."""

    inputs: Array | LazyPixels
    labels: Array
    where: str
    names: tuple[str, ...] = ()  # of the files, row by row, if every sample has its own
    sites: tuple[str, ...] = ()  # row by row, where a table names them
    groups: tuple[str, ...] = ()  # patients, row by row, where a table names them


@dataclass
class Raw:
    """One data set as read, not yet checked."""

    splits: dict[Part, Split]
    classes: tuple[str, ...] | None = None


@dataclass
class FileFindings:
    """All findings about some files. Reading continues after a fault, so that all faults are reported.

    >>> found = FileFindings()
    >>> for name in ("a.gz", "b.gz"):
    ...     with found.collecting():
    ...         raise InputError(f"{name} is empty")
    >>> found.faults
    ['a.gz is empty', 'b.gz is empty']
    """

    faults: list[str] = field(default_factory=list)  # the data cannot be used as it is
    doubts: list[str] = field(default_factory=list)  # it can be used, but results may mislead
    notes: list[str] = field(default_factory=list)  # changes made to the data
    skip: bool = False  # whether a file that cannot be read is left out, instead of being a fault
    skipped: list[str] = field(default_factory=list)  # such files, each with the reason
    broken: list[str] = field(default_factory=list)  # the faults that `skip` would have left out

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Turn an error about one of many files into a fault, or leave the file out."""
        before = len(self.faults)
        with self.collecting():
            yield
        self.files(*self.faults[before:], noted=True)

    def files(self, *reasons: str, noted: bool = False) -> None:
        """Files that cannot be read, each as a sentence; `noted`: they are the last faults already."""
        if self.skip:
            self.skipped += reasons
            if noted:
                del self.faults[len(self.faults) - len(reasons) :]
        else:
            self.broken += reasons
            self.faults += () if noted else reasons

    def note_skipped(self) -> None:
        """Say which files were left out."""
        if self.skipped:
            more = f"; and {len(self.skipped) - _SOME:,} more" if len(self.skipped) > _SOME else ""
            listed = "; ".join(self.skipped[:_SOME])
            self.notes.append(f"{SKIPPED} ({len(self.skipped):,}): {listed}{more}")

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Turn an error about one file into a fault in the list."""
        try:
            yield
        except InputError as error:
            self.faults.append(str(error))
        except OSError as error:  # an unreadable folder, a failing disk
            self.faults.append(f"{error.filename} cannot be read: {error.strerror or error}")

    def refuse(self, name: str) -> None:
        """Raise the first fault, with a hint how to see the others."""
        if self.faults:
            more = len(self.faults) - 1
            tail = f" (and {more} more: `fedstill data check {name}` lists them)" if more else ""
            remedy = "; mend or remove it, or set on_error=skip" if self.faults[0] in self.broken else ""
            raise InputError(f"data set {name!r}: {self.faults[0]}{remedy}{tail}")


def content(path: Path) -> bytes:
    """The bytes of a file, or an error with a clear message."""
    try:
        data = read_file(path)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    if not data:
        raise _empty(path)
    return data


def refuse_empty(path: Path) -> None:
    """For readers that open a file themselves, whose errors for empty files are obscure."""
    check_regular(path)
    if path.stat().st_size == 0:
        raise _empty(path)


def _empty(path: Path) -> InputError:
    return InputError(f"{path} is empty (0 bytes): fetch it again")


def larger_than_memory(what: str) -> InputError:
    """The error for files whose header declares more than fits in memory, mostly because it is damaged."""
    return InputError(f"{what} claims to be larger than memory: fetch or write it again")


def are_splits(parts: Collection[Part | None]) -> bool:
    """Whether folders of these names are the splits of data, and not its classes."""
    return "train" in parts and ("test" in parts or "validation" in parts)


def split_folders(places: Iterable[Path], found: FileFindings) -> dict[Part, Path]:
    """The folders that are named after a split. Two for one split are a fault, since the meaning is ambiguous.

    Without a training folder, or with nothing else, the folders may be classes with unusual names.
    """
    named: dict[Part, list[Path]] = {}
    for place in places:
        if part := PARTS.get(place.name.lower()):
            named.setdefault(part, []).append(place)
    for part, same in named.items():
        if len(same) > 1 and "train" in named and len(named) > 1:
            both = " and ".join(place.name for place in same)
            found.faults.append(f"{same[0].parent} has several folders of {part} data, {both}: make them one")
    return {part: same[0] for part, same in named.items()}


def joined(parts: list[Array]) -> Array:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
