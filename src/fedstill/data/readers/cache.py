"""Clouds that took long to prepare, kept on disk.

The name of an entry says everything that it depends on: the files it was made of (names, sizes, times of change),
the reader and its version, the number of points; or, of clouds that are made by code, that code. Whatever changes has
another name, so nothing stale is ever read. An entry that cannot be read, or written, costs time and nothing else.
"""

from __future__ import annotations

import logging
import os
import re
import zipfile
import zlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from platformdirs import user_cache_dir

from fedstill.core.errors import FedstillError
from fedstill.core.files import from_home, write_atomically

_log = logging.getLogger(__name__)

VARIABLE = "FEDSTILL_CACHE"
FORMAT = 1  # of the entries themselves; readers count their own versions


def cache_folder() -> Path:
    """FEDSTILL_CACHE, else the user's cache directory."""
    named = os.environ.get(VARIABLE)
    place = from_home(named) if named else Path(user_cache_dir("fedstill", appauthor=False))
    return place / "clouds"


@dataclass(frozen=True)
class Slot:
    """The place of one entry. Entries of the same source differ in their key only."""

    source: str
    key: str

    @classmethod
    def of(cls, home: Path, files: Iterable[Path], made_by: str) -> Slot:
        """For clouds made of these files under `home` by a reader; files that are gone raise OSError."""
        key = blake2b(f"format {FORMAT}, {made_by}".encode(), digest_size=16)
        for path in files:
            facts = path.stat()
            key.update(f"\n{path.relative_to(home).as_posix()}\0{facts.st_size}\0{facts.st_mtime_ns}".encode())
        where = blake2b(f"{home.resolve()}\0{made_by}".encode(), digest_size=6).hexdigest()
        return cls(f"{re.sub('[^A-Za-z0-9]+', '-', home.name)[:40]}-{where}", key.hexdigest())

    @classmethod
    def made(cls, what: str, code: Iterable[Path]) -> Slot:
        """For what these files of code make, with their settings in words; files that are gone raise OSError."""
        key = blake2b(f"format {FORMAT}, {what}, numpy {np.__version__}".encode(), digest_size=16)
        for path in code:
            key.update(f"\n{path.name}\0".encode() + path.read_bytes())
        return cls(re.sub("[^A-Za-z0-9]+", "-", what), key.hexdigest())

    @property
    def path(self) -> Path:
        return cache_folder() / f"{self.source}-{self.key}.npz"

    def fetch(self) -> tuple[NDArray[np.float32], list[str]] | None:
        """Clouds and notes, or None if there are none that can be trusted."""
        arrays = self.fetch_arrays("clouds", "notes")
        if arrays is None:
            return None
        clouds, notes = arrays
        whole = clouds.dtype == np.float32 and clouds.ndim == 3 and clouds.shape[2] == 3 and notes.dtype.kind == "U"
        return (clouds, [str(note) for note in notes]) if whole else None

    def fetch_arrays(self, *names: str) -> list[NDArray[Any]] | None:
        """The arrays of these names, or None if they cannot be read; archives have checksums, so damage is noticed."""
        try:
            with np.load(self.path, allow_pickle=False) as archive:
                return [archive[name] for name in names]
        except FileNotFoundError:
            return None
        except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error, NotImplementedError):
            _log.info("the cache file %s cannot be read: its contents are made again", self.path, exc_info=True)
            return None

    def keep(self, clouds: NDArray[np.float32], notes: list[str]) -> None:
        """Write the entry and delete older ones of the same source."""
        self.keep_arrays(clouds=clouds, notes=np.array(notes, dtype=np.str_))

    def keep_arrays(self, **arrays: NDArray[Any]) -> None:
        """The same for arrays of any names."""
        data = BytesIO()
        np.savez(data, **arrays)  # type: ignore[arg-type]
        with suppress(OSError, FedstillError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path, data.getbuffer().tobytes())
            for older in self.path.parent.glob(f"{self.source}-*.npz"):
                if older != self.path:
                    older.unlink(missing_ok=True)
