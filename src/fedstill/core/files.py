"""Files that are whole or not there at all."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from glob import escape
from pathlib import Path
from tempfile import TemporaryFile

from fedstill.core.errors import InputError, RunError


def from_home(path: str | Path) -> Path:
    """The path with the folder of `~` in it, if the system can have such a path at all."""
    try:
        place = Path(path).expanduser()
        place.exists()
    except (RuntimeError, OSError) as error:  # nobody of that name; a name that is too long
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"{path} cannot be reached: {why}") from None
    return place


def write_atomically(path: Path, data: bytes) -> None:
    """Replace `path` by `data`: a reader, or a crash at any instant, sees the old bytes or the new ones."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise disk_trouble(path, error) from error


def sweep_temporaries(folder: Path, of: str = "") -> None:
    """Delete what writers that were killed left half-written; of one file alone where others may be writing."""
    for path in folder.glob(f".{escape(of)}*.tmp") if folder.is_dir() else ():
        path.unlink(missing_ok=True)


def append_line(path: Path, line: bytes) -> None:
    """Add a line and see it to the disk."""
    try:
        with open(path, "ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise disk_trouble(path, error) from error


def disk_trouble(path: Path, error: OSError) -> RunError:
    """A disk's complaint as one sentence that says what to do."""
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


def _sync_folder(folder: Path) -> None:
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
