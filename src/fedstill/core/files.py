"""Atomic writing of files: complete or absent, never partial."""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from glob import escape
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

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


def check_regular(path: Path) -> None:
    """Refuse a pipe, a device or a loop of links, which could be read without end; a missing file is none of these."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise InputError(f"{path} is a link that leads back to itself: remove it") from None
        return  # opening it reports why that fails
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise InputError(f"{path} is a pipe, a device or a socket, and no file: remove it")


def read_file(path: Path) -> bytes:
    """The bytes of a file; a pipe, a device or a loop of links is an `InputError`."""
    check_regular(path)
    return path.read_bytes()


def read_text_file(path: Path, encoding: str = "utf-8") -> str:
    """The text of a file, likewise."""
    check_regular(path)
    return path.read_text(encoding=encoding)


def parse_json(text: str | bytes) -> Any:
    """What JSON means; text that is nested too deeply is a `ValueError` like any that is damaged.

    >>> parse_json('{"a": [1]}')
    {'a': [1]}
    >>> parse_json("[" * 100_000)
    Traceback (most recent call last):
        ...
    ValueError: it is nested too deeply
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    write_atomically(path, (json.dumps(content, indent=2) + "\n").encode())


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON file's content; None where it is missing or damaged, so that it is made again."""
    try:
        content: dict[str, Any] = parse_json(read_text_file(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError):
        _log.info("%s cannot be read as JSON", path, exc_info=True)
        return None
    if not isinstance(content, dict):
        _log.info("%s holds no JSON object", path)
        return None
    return content


def digest_of(data: bytes) -> str:
    """What a file of these bytes is recognised by; empty for no file."""
    return sha256(data).hexdigest() if data else ""


def file_digest(path: Path) -> str | None:
    try:
        return digest_of(read_file(path))
    except OSError:
        return None


def sweep_temporaries(folder: Path, of: str = "") -> None:
    """Delete what writers that were killed left half-written; of one file alone where others may be writing."""
    for path in folder.glob(f".{escape(of)}*.tmp") if folder.is_dir() else ():
        path.unlink(missing_ok=True)


def append_line(path: Path, line: bytes) -> None:
    """Append a line and flush it to the disk; where that fails, as on a full disk, no part of the line stays.

    A pipe is refused: opening it would wait for a reader without end.
    """
    if path.is_fifo():
        raise RunError(f"{path} is a pipe, and no file: remove it")
    new = not path.exists()
    try:
        with open(path, "ab", buffering=0) as file:
            before = os.fstat(file.fileno()).st_size
            try:
                _append_through(file, line)
            except OSError:
                with suppress(OSError):  # what is left then is cut off by the next reader, as after a power failure
                    os.ftruncate(file.fileno(), before)
                raise
        if new:
            _sync_folder(path.parent)
    except OSError as error:
        raise disk_trouble(path, error) from error


def _append_through(file: IO[bytes], line: bytes) -> None:
    """Write all of it, also where the system takes a part at a time, and flush it to the disk."""
    while line:
        line = line[file.write(line) :]
    os.fsync(file.fileno())


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


def check_folder(path: Path) -> None:
    """Refuse a folder that cannot be made or written; nothing is written here."""
    above = next(one for one in (path, *path.absolute().parents) if one.exists())
    if not above.is_dir():
        raise InputError(f"cannot write to the folder {path}: {above} is a file; choose another one")
    if not os.access(above, os.W_OK | os.X_OK):
        raise InputError(f"cannot write to the folder {path}: Permission denied; choose another one")


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


def size_on_disk(paths: Sequence[Path]) -> int:
    """The bytes of these files, and of all files below these folders."""
    files = [file for path in paths for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file()]
    total = 0
    for file in files:
        with suppress(FileNotFoundError):  # a run that goes on replaces its files
            total += file.stat().st_size
    return total
