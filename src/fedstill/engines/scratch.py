"""A temporary folder that does not outlive its process, not even one that was killed."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from filelock import FileLock

from fedstill.core.locks import take_lock

_PREFIX, _LOCK = "fedstill-", ".lock"


class Scratch:
    """A folder for data that workers map: removed on `cleanup`, at exit, or else by the next `sweep`.

    A killed process cannot tidy up, and what it leaves is a copy of somebody's data. So each folder has a lock beside
    it, which the system frees however its holder dies: a folder whose lock is free is of no more use to anybody.
    """

    def __init__(self, root: Path | None = None) -> None:
        path = (root or Path(tempfile.gettempdir())) / f"{_PREFIX}{uuid4().hex}"
        lock = take_lock(Path(f"{path}{_LOCK}"))  # before the folder is there: nobody shall find it without a holder
        assert lock is not None, "the name is new"
        path.mkdir(mode=0o700)
        self.name = str(path)
        self.cleanup = weakref.finalize(self, _remove, path, lock)


def sweep(root: Path | None = None) -> None:
    """Remove the folders of processes that are no more."""
    for file in (root or Path(tempfile.gettempdir())).glob(f"{_PREFIX}*{_LOCK}"):
        with suppress(OSError):  # somebody else's
            if (lock := take_lock(file)) is not None:
                _remove(Path(str(file).removesuffix(_LOCK)), lock)


def _remove(path: Path, lock: FileLock) -> None:
    shutil.rmtree(path, ignore_errors=True)
    Path(lock.lock_file).unlink(missing_ok=True)
    lock.release()
