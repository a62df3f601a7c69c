"""Atomic writing of files: complete or absent, never partial."""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from glob import escape
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from filelock import FileLock, Timeout

from fedstill.core.errors import InputError, RunError

_log = logging.getLogger(__name__)


def from_home(path: str | Path) -> Path:
    """The path with the folder of `~` in it, if the system can have such a path at all."""
    try:
        place = Path(path).expanduser()
        place.exists()
    except (RuntimeError, OSError) as error:  # nobody of that name; a name that is too long
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"{path} cannot be reached: {why}") from None
    return place


def write_atomically(path: Path, data: bytes, *, private: bool = False) -> None:
    """Replace `path` by `data`: a reader, or a crash at any instant, sees the old bytes or the new ones."""
    try:
        replace_whole(path, data, private=private)
    except OSError as error:
        raise disk_trouble(path, error) from error


def replace_whole(path: Path, data: bytes, *, private: bool = False) -> None:
    """The same for callers with a sentence of their own for an OSError; private: for the owner's eyes only."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        if private:
            write_private(temporary, data)
        else:
            with open(temporary, "wb") as file:
                _write_through(file, data)
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def write_private(path: Path, data: bytes) -> None:
    """A new file that only its owner may read, from its first byte on."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        _write_through(file, data)


def write_output(path: Path, data: bytes) -> None:
    """Write, whole or not at all, a file that somebody named; where that fails another name is wanted."""
    try:
        replace_whole(path, data)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from None


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    write_atomically(path, (json.dumps(content, indent=2) + "\n").encode())


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON file's content; None where it is missing or damaged, so that it is made again."""
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError):
        _log.info("%s cannot be read as JSON", path, exc_info=True)
        return None
    return content


def digest_of(data: bytes) -> str:
    """What a file of these bytes is recognised by; empty for no file."""
    return sha256(data).hexdigest() if data else ""


def file_digest(path: Path) -> str | None:
    try:
        return digest_of(path.read_bytes())
    except OSError:
        return None


def take_lock(path: Path) -> FileLock | None:
    """Hold the lock of that file until it is released; None where another process holds it.

    The system frees it when the process dies, however it dies.
    """
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return None
    return lock


def sweep_temporaries(folder: Path, of: str = "") -> None:
    """Delete what writers that were killed left half-written; of one file alone where others may be writing."""
    for path in folder.glob(f".{escape(of)}*.tmp") if folder.is_dir() else ():
        path.unlink(missing_ok=True)


def append_line(path: Path, line: bytes) -> None:
    """Append a line and flush it to the disk."""
    try:
        with open(path, "ab") as file:
            _write_through(file, line)
    except OSError as error:
        raise disk_trouble(path, error) from error


def disk_trouble(path: Path, error: OSError) -> RunError:
    """A disk error as one sentence with a remedy."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        why = "the disk is full: free some space"
    else:
        why = f"{error.strerror or error}: see to the folder"
    return RunError(f"cannot write {path}: {why}, then run the same command again to go on from the last round")


def writable_folder(path: Path) -> Path:
    """Make the folder if need be, and refuse one that cannot be written, before any work."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=path, buffering=0) as probe:  # mostly without a name, so that a kill leaves nothing
            probe.write(b"probe")
    except OSError as error:
        raise InputError(f"cannot write to the folder {path}: {error.strerror or error}; choose another one") from error
    return path


def writable_file(path: Path) -> Path:
    """Refuse a file that cannot be written, before any work."""
    if path.is_dir():
        raise InputError(f"{path} is a folder: name a file in it")
    writable_folder(path.parent)
    return path


def _write_through(file: IO[bytes], data: bytes) -> None:
    """Write and flush to the disk."""
    file.write(data)
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
