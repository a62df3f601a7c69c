"""A site's own state in an experiment, by the round that wrote it.

The server says in each request which version counts. What came later than that was never accepted (the server lost the
reply, or was restarted) and is dropped; the version before is kept, in case the server has to go back one round.
"""

from __future__ import annotations

from pathlib import Path

from fedstill.core.errors import RunError
from fedstill.core.files import sweep_temporaries, write_atomically
from fedstill.core.message import Message, MessageError
from fedstill.core.task import Tensors


class States:
    """The versions in one folder: `<round>.safetensors`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        sweep_temporaries(folder)

    def load(self, version: int | None) -> Tensors:
        """The version that counts; those that are of no more use are deleted."""
        held = sorted(self._held())
        counts = -1 if version is None else version
        older = [round for round in held if round < counts]
        for round in [*older[:-1], *(round for round in held if round > counts)]:
            self._path(round).unlink(missing_ok=True)
        if version is None:
            return {}
        try:
            return Message.decode(self._path(version).read_bytes())
        except FileNotFoundError:
            raise RunError(f"this site's state of round {version + 1} is not in {self.folder}: restore it") from None
        except (OSError, MessageError) as error:
            raise RunError(f"this site's state in {self._path(version)} is damaged: {error}") from None

    def save(self, round: int, state: Tensors) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self._path(round), Message(state).encode())

    def _held(self) -> list[int]:
        found = self.folder.glob("*.safetensors") if self.folder.is_dir() else ()
        return [int(path.stem) for path in found if path.stem.isdecimal()]

    def _path(self, round: int) -> Path:
        return self.folder / f"{round}.safetensors"
