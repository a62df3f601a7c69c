"""Locks against two processes that write one folder; the system frees them when their process dies, however it dies."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from filelock import FileLock, Timeout

from fedstill.core.errors import RunError

LOCK_FILE = ".lock"
_HELD = (errno.EACCES, errno.EAGAIN, errno.EWOULDBLOCK)  # by another process, in the words of different systems


def take_lock(path: Path) -> FileLock | None:
    """Hold the lock of that file until it is released; None where another process holds it."""
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return None
    return lock


class FolderLock:
    """A folder that this process alone may write.

    A lock file can be deleted while it is held, and the next process would make and lock another one. So the folder
    itself is locked too, where the system can; elsewhere `check` notices that the file has gone.
    """

    def __init__(self, folder: Path, descriptor: int | None, file: FileLock) -> None:
        self.folder, self._descriptor, self._file = folder, descriptor, file
        self._place = folder if descriptor is not None else folder / LOCK_FILE
        self._locked = _identified(self._place)

    def check(self) -> None:
        """Refuse to go on, before anything is written, where another process may have taken the folder's place."""
        if self._locked is None or _identified(self._place) != self._locked:
            raise RunError(
                f"{self._place} was deleted or replaced while this process worked on {self.folder}, and another process"
                " may be writing there now: nothing more is written; run the same command again to go on from what is"
                " there"
            )

    def release(self) -> None:
        self._file.release()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def lock_folder(folder: Path) -> FolderLock | None:
    """Hold a folder until it is released; None where another process holds it."""
    descriptor, free = _locked_folder(folder)
    if not free:
        return None
    try:
        if (file := take_lock(folder / LOCK_FILE)) is not None:
            return FolderLock(folder, descriptor, file)
    except BaseException:
        _close(descriptor)
        raise
    _close(descriptor)
    return None


def _locked_folder(folder: Path) -> tuple[int | None, bool]:
    """A descriptor that holds the folder, None where the system locks no folders; and whether nobody else holds it."""
    try:
        import fcntl
    except ImportError:  # not a POSIX system
        return None, True
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        return None, error.errno not in _HELD  # network file systems may lock only what is open for writing
    return descriptor, True


def _close(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)


def _identified(path: Path) -> tuple[int, int] | None:
    """What tells a file or folder from another one of its name; None where there is none."""
    with suppress(OSError):
        found = path.stat()
        return found.st_dev, found.st_ino
    return None
