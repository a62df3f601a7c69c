"""A log that an auditor can read: a line for every message that left, and for every request that was refused.

A site has one of what it sent; the server has one of what it sent and received (`deploy/server_log.py`).

`egress.jsonl` is appended to and never changed. Each line contains the sha256 of the line before it, so that a changed,
removed or inserted line breaks the chain; `fedstill deploy log` checks it. A full file is renamed to
`egress-0001.jsonl` and so on, and the next one continues the chain. Lines that are taken off the end leave a chain that
is whole: to notice that, note the last line's digest elsewhere, as `fedstill deploy log` prints it, and give it to
`fedstill deploy log --noted` later.
"""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import Any

from fedstill.core.errors import InputError, RunError
from fedstill.core.files import append_line, disk_trouble, parse_json, read_file

LOG_FILE = "egress.jsonl"
FIRST = "0" * 64  # stands for the line before the first
FULL = 16 * 2**20  # bytes of one file
REFUSALS = 1000  # kinds of refusals that are counted one by one in an hour; the others together
_HOUR = 3600.0  # seconds
_TRIES = 5  # at reading a log that is being rotated
_LONGEST = 500  # characters of a sentence: some of it may be what a server sent

Place = tuple[str, int, str, int]  # run, round, exchange, attempt


@dataclass(frozen=True)
class LogLine:
    """A line of the log, and where it is."""

    file: Path
    number: int  # of all, from 1
    facts: Mapping[str, Any]
    digest: str


@dataclass(frozen=True)
class Departed:
    """The places of what left, by the log."""

    times: Mapping[Place, int]  # how often each was answered
    known: Set[Place]  # those with any line
    whole: bool  # whether the log begins with its first line: older files may be kept elsewhere


class EgressLog:
    """The log in a site's or a server's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.last: str | None = None  # the digest of the last line
        self._lock = threading.Lock()
        self._refusals: Counter[tuple[Any, ...]] = Counter()  # how often each was noted
        self._counted_from = monotonic()

    @property
    def path(self) -> Path:
        return self.folder / LOG_FILE

    def add(self, **facts: Any) -> None:
        """Append a line, and flush it to the disk before anything leaves."""
        with self._lock:
            self._add(facts)

    def refuse(self, why: str, **place: Any) -> None:
        """A line for a refusal; of equal ones the 1st, 2nd, 4th, 8th, ..., and so of all that are too many: no disk is
        filled, however a server varies what it asks.
        """
        why = why[:_LONGEST]
        key: tuple[Any, ...] = (why, *place.values())
        with self._lock:
            if monotonic() - self._counted_from > _HOUR:
                self._refusals.clear()
                self._counted_from = monotonic()
            others = key not in self._refusals and len(self._refusals) >= REFUSALS
            if others:
                key = ()  # counted together from now on
            self._refusals[key] += 1
            times = self._refusals[key]
            if times & (times - 1) == 0:
                kinds = {"kinds": "others"} if others else {}
                self._add({"what": "refused", **place, **kinds, "times": times, "sentence": why})

    def _add(self, facts: Mapping[str, Any]) -> None:
        if self.last is None:
            self.last = self._last_digest()
        if self.path.exists() and self.path.stat().st_size > FULL:
            self._rotate()
        told = {"at": datetime.now(UTC).isoformat(timespec="milliseconds"), **facts, "previous": self.last}
        line = json.dumps(told).encode()
        append_line(self.path, line + b"\n")
        self.last = sha256(line).hexdigest()

    def lines(self) -> Iterator[LogLine]:
        """Every line in order; a broken chain is an error that names its place."""
        before, number = FIRST, 0
        content = self._content()
        self._check_complete([path for path, _ in content])
        for path, data in content:
            for line in data.splitlines():
                number += 1
                where = f"line {number} of the log, in {path}"
                try:
                    facts = json.loads(line)
                    chained = facts["previous"] == before
                except (ValueError, KeyError, TypeError, RecursionError):
                    raise RunError(f"{where}, cannot be read: the log was changed or damaged") from None
                if not chained:
                    elsewhere = ", or the files before it were moved: bring them back" if number == 1 else ""
                    raise RunError(
                        f"{where}, does not follow the line before it: the log was changed or damaged{elsewhere}"
                    )
                before = sha256(line).hexdigest()
                yield LogLine(path, number, facts, before)

    def _content(self) -> list[tuple[Path, bytes]]:
        """Every file as it is at one moment: a process may write this log meanwhile, and begin a new file.

        A last line without its end is left out: it is being written, or a power failure cut it, and nothing left for
        it. Of the lines before it none is missing.
        """
        for _ in range(_TRIES):
            files = self.files()
            try:
                content = [(path, _read(path)) for path in files]
            except FileNotFoundError:
                continue
            if self.files() == files:
                break
        else:
            raise RunError(f"the log in {self.folder} is being rotated: run the same command again")
        if content and not content[-1][1].endswith(b"\n"):
            path, data = content.pop()
            whole, newline, rest = data.rpartition(b"\n")
            content.append((path, data if _is_json(rest) else whole + newline))
        return content

    def _check_complete(self, files: Sequence[Path]) -> None:
        """Name the first file that is not here, where others show that there was one."""
        last = max((int(path.stem[-4:]) for path in files if path.name != LOG_FILE), default=0)
        for number in range(1, last):
            path = self.folder / f"egress-{number:04d}.jsonl"
            if path not in files:
                raise RunError(f"{path} is missing: bring it back from where it is kept to have the chain checked")

    def files(self) -> list[Path]:
        """The files of the log, the oldest first."""
        found = sorted(self.folder.glob("egress-[0-9][0-9][0-9][0-9].jsonl"))
        return [*found, *([self.path] if self.path.exists() else [])]

    def departed(self) -> Departed:
        """How many replies left for each place, as far as the files that are here tell.

        A failure counts too, once for its place, where it has a line each time that it was repeated.
        """
        replied, failed, again, whole = Counter[Place](), Counter[Place](), set[Place](), None
        for path in self.files():
            for line in _read(path).splitlines():
                try:
                    facts = json.loads(line)
                    whole = facts["previous"] == FIRST if whole is None else whole
                    if facts["what"] not in ("sent", "failed", "sent again") or "attempt" not in facts:
                        continue
                    place = (str(facts["run"]), facts["round"] - 1, str(facts["exchange"]), facts["attempt"] - 1)
                    if facts["what"] == "sent":
                        replied[place] += 1
                    elif facts["what"] == "failed":
                        failed[place] = 1
                    again.add(place)
                except (ValueError, KeyError, TypeError, RecursionError):  # `lines` says what is wrong with the log
                    continue
        return Departed(replied | failed, again, whole is not False)

    def _last_digest(self) -> str:
        """The digest of the last line; a line that a power failure cut is ended, and breaks no chain of whole ones."""
        files = self.files()
        if not files:
            return FIRST
        data = _read(files[-1])
        if data and not data.endswith(b"\n"):
            if _is_json(data.rpartition(b"\n")[2]):
                append_line(files[-1], b"\n")
            else:
                self._cut(files[-1], data)
                data = data.rpartition(b"\n")[0] + b"\n" if b"\n" in data else b""
        for path in reversed(files):  # a file that was just begun may have no whole line
            if whole := (data if path == files[-1] else _read(path)).splitlines():
                return sha256(whole[-1]).hexdigest()
        return FIRST

    def _cut(self, path: Path, data: bytes) -> None:
        """Take an incomplete last line off: what it was about to say had not left."""
        try:
            with open(path, "r+b") as file:
                file.truncate(data.rfind(b"\n") + 1)
        except OSError as error:
            raise disk_trouble(path, error) from error

    def _rotate(self) -> None:
        number = 1 + max((int(path.stem[-4:]) for path in self.files()[:-1]), default=0)
        target = self.folder / f"egress-{number:04d}.jsonl"
        if number > 9999 or target.exists():
            raise RunError(f"{self.path} is full and {target.name} exists: move older files of the log elsewhere")
        self.path.rename(target)


def _read(path: Path) -> bytes:
    try:
        return read_file(path)
    except FileNotFoundError:
        raise
    except OSError as error:  # a folder in its place, or one that this user may not read
        raise RunError(f"{path} cannot be read: {error.strerror or error}") from None


def _is_json(line: bytes) -> bool:
    try:
        parse_json(line)
    except ValueError:
        return False
    return True


def described(message: Mapping[str, Any], leaves: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each tensor of a message with its kind and receiver, by the manifest's lines of its exchange."""
    found = []
    for name, tensor in message.items():
        line = next((one for one in leaves if fnmatchcase(name, str(one["name"]))), {})
        found.append(
            {
                "name": name,
                "kind": line.get("kind", "undeclared"),
                "to": line.get("to", "server"),
                "shape": list(tensor.shape),
                **({"masked": True} if line.get("masked") else {}),
            }
        )
    return found


def read_log(folder: Path, noted: str | None = None) -> list[LogLine]:
    """The lines of the log in a folder, whose chain is checked; it must hold the line whose digest was `noted`."""
    if noted is not None and not re.fullmatch(r"[0-9a-fA-F]{64}", noted.strip()):
        raise InputError(f"{noted!r} is no digest: give the 64 letters and digits that this command printed")
    log = EgressLog(folder)
    if not log.files():
        raise InputError(f"{folder} holds no {LOG_FILE}: nothing has left from here")
    lines = list(log.lines())
    if noted is not None and noted.strip().lower() not in (line.digest for line in lines):
        raise RunError(
            f"no line of the log in {folder} has the digest {noted}: lines were removed from its end, or it was written"
            " anew, since that digest was noted"
        )
    return lines
