"""A log that an auditor can read: a line for every message that left, and for every request that was refused.

`egress.jsonl` is appended to and never changed. Each line contains the sha256 of the line before it, so that a changed,
removed or inserted line breaks the chain; `fedstill deploy log` checks it. A full file is renamed to
`egress-0001.jsonl` and so on, and the next one continues the chain. Lines that are taken off the end leave a chain that
is whole: to notice that, note the last line's digest elsewhere, as `fedstill deploy log` prints it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from typing import Any

from fedstill.core.errors import InputError, RunError
from fedstill.core.files import append_line, disk_trouble

LOG_FILE = "egress.jsonl"
FIRST = "0" * 64  # stands for the line before the first
FULL = 16 * 2**20  # bytes of one file


@dataclass(frozen=True)
class LogLine:
    """A line of the log, and where it is."""

    file: Path
    number: int  # of all, from 1
    facts: Mapping[str, Any]
    digest: str


class EgressLog:
    """The log in a site's or a server's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.last: str | None = None  # the digest of the last line

    @property
    def path(self) -> Path:
        return self.folder / LOG_FILE

    def add(self, **facts: Any) -> None:
        """Append a line, and flush it to the disk before anything leaves."""
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
        for path in self.files():
            for line in path.read_bytes().splitlines():
                number += 1
                where = f"line {number} of the log, in {path}"
                try:
                    facts = json.loads(line)
                    chained = facts["previous"] == before
                except (ValueError, KeyError, TypeError, RecursionError):
                    raise RunError(f"{where}, cannot be read: the log was changed or damaged") from None
                if not chained:
                    raise RunError(f"{where}, does not follow the line before it: the log was changed or damaged")
                before = sha256(line).hexdigest()
                yield LogLine(path, number, facts, before)

    def files(self) -> list[Path]:
        """The files of the log, the oldest first."""
        found = sorted(self.folder.glob("egress-[0-9][0-9][0-9][0-9].jsonl"))
        return [*found, *([self.path] if self.path.exists() else [])]

    def _last_digest(self) -> str:
        """The digest of the last line; a line that a power failure cut is ended, and breaks no chain of whole ones."""
        files = self.files()
        if not files:
            return FIRST
        data = files[-1].read_bytes()
        if data and not data.endswith(b"\n"):
            try:
                json.loads(data.rpartition(b"\n")[2])
            except ValueError:
                self._cut(files[-1], data)
                data = data.rpartition(b"\n")[0] + b"\n" if b"\n" in data else b""
            else:
                append_line(files[-1], b"\n")
        whole = data.splitlines()
        if whole:
            return sha256(whole[-1]).hexdigest()
        return FIRST if len(files) == 1 else sha256(files[-2].read_bytes().splitlines()[-1]).hexdigest()

    def _cut(self, path: Path, data: bytes) -> None:
        """Take an incomplete last line off: what it was about to say had not left."""
        try:
            with open(path, "r+b") as file:
                file.truncate(data.rfind(b"\n") + 1)
        except OSError as error:
            raise disk_trouble(path, error) from error

    def _rotate(self) -> None:
        number = 1 + len(self.files()[:-1])
        target = self.folder / f"egress-{number:04d}.jsonl"
        if number > 9999 or target.exists():
            raise RunError(f"{self.path} is full and {target.name} exists: move older files of the log elsewhere")
        self.path.rename(target)


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
            }
        )
    return found


def read_log(folder: Path) -> list[LogLine]:
    """The lines of the log in a folder, whose chain is checked."""
    log = EgressLog(folder)
    if not log.files():
        raise InputError(f"{folder} holds no {LOG_FILE}: nothing has left from here")
    return list(log.lines())
