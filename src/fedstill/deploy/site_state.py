"""A site's own state in a run, by the round that wrote it and its digest.

The server says in each request which version counts. The version before is kept, in case the server has to go back one
round, and so is what this site wrote in the round under way: a server that was killed in it may ask again for an
exchange before the last. Anything else was never accepted and is dropped. Since the digest is part of its name, a state
can be missing but never be mistaken for another.
"""

from __future__ import annotations

import re
from pathlib import Path

from fedstill.core.errors import RunError
from fedstill.core.files import disk_trouble, read_file, sweep_temporaries, write_atomically
from fedstill.core.message import Message, MessageError, digest
from fedstill.core.protocols import StateVersion
from fedstill.core.task import Tensors

_NAME = re.compile(r"(\d+)-([0-9a-f]{64})\.safetensors")


class SiteStates:
    """The versions in one folder: `<round>-<digest>.safetensors`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        sweep_temporaries(folder)

    def load(self, kept: StateVersion | None, round: int = -1) -> Tensors:
        """The version that counts, in a round where one is under way; those that are of no more use are deleted."""
        held = self._held()
        counts = -1 if kept is None else kept.round
        older = [version for version in held if version.round < counts]
        useful = {kept, *(version for version in older if version.round == older[-1].round)}
        useful |= {version for version in held if version.round == round}
        for version in held:
            if version not in useful:
                self._path(version).unlink(missing_ok=True)
        if kept is None:
            return {}
        path = self._path(kept)
        try:
            state = Message.decode(read_file(path))
        except FileNotFoundError:
            what = f"the state of round {kept.round + 1} that the server knows"
            raise RunError(f"this site does not have {what}: restore it in {self.folder}") from None
        except (OSError, MessageError) as error:
            raise RunError(f"this site's state in {path} is damaged: {error}") from None
        if digest(state) != kept.digest:
            raise RunError(f"this site's state in {path} is damaged: its digest is not the one in its name")
        return state

    def save(self, round: int, state: Tensors) -> str:
        """Keep a new version, and give its digest."""
        made = StateVersion(round, digest(state))
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise disk_trouble(self.folder, error) from error
        write_atomically(self._path(made), Message(state).encode())
        return made.digest

    def _held(self) -> list[StateVersion]:
        names = [path.name for path in self.folder.glob("*.safetensors")] if self.folder.is_dir() else []
        found = [StateVersion(int(match[1]), match[2]) for name in names if (match := _NAME.fullmatch(name))]
        return sorted(found, key=lambda version: (version.round, version.digest))

    def _path(self, version: StateVersion) -> Path:
        return self.folder / f"{version.round}-{version.digest}.safetensors"
