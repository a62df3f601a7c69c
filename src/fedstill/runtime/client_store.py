"""Clients' states, by client and round: in a file each, or at the sites."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path

import torch
from torch import Tensor

from fedstill.core.errors import InputError, RunError
from fedstill.core.files import read_file, write_atomically
from fedstill.core.message import Message, MessageError, digest
from fedstill.core.protocols import Reply, StateVersion
from fedstill.core.task import Tensors
from fedstill.runtime.checkpoint import candidates

_log = logging.getLogger(__name__)


class ClientStore:
    """Client state by client and round, in `clients/<id>.<round>.safetensors`.

    A version written in a round counts only once the round's checkpoint names it, so a crash, a refused reply or a
    skipped round leaves everybody's state as it was.
    """

    def __init__(self, folder: Path, clients: int) -> None:
        self.folder = folder
        self.rounds = torch.full((clients,), -1)  # the version that counts; -1: no state yet
        self.digests = torch.zeros(clients, dtype=torch.int64)
        self._staged: dict[int, tuple[int, int]] = {}
        self._outdated: list[Path] = []

    @classmethod
    def of(cls, run: Path, clients: int) -> ClientStore:
        """The committed state in a run's folder; a deployment's server has none there."""
        store = cls(run / "clients", clients)
        found, _ = candidates(run)
        if found:
            store.restore(found[0].clients)
        if store.digests.ndim > 1:  # as a `SiteStore` keeps them
            raise InputError(
                f"the clients of {run} keep their own models at their sites: look in a site's folder, under `received`"
            )
        return store

    def load(self, client: int) -> Tensors:
        version, checksum = self._staged.get(client, (int(self.rounds[client]), int(self.digests[client])))
        if version < 0:
            return {}
        path = self._path(client, version)
        try:
            data = read_file(path)
            if _checksum(data) != checksum:
                raise MessageError("its digest is not the one recorded")
            return Message.decode(data)
        except (OSError, MessageError) as error:
            raise RunError(f"the state of client {client} in {path} is damaged: {error}") from error

    def stage(self, client: int, round: int, state: Tensors) -> None:
        """Write a new version; it counts for the rest of this round, and for good once committed."""
        if not state and int(self.rounds[client]) < 0:
            return
        data = Message(state).encode()
        self.folder.mkdir(exist_ok=True)
        write_atomically(self._path(client, round), data)
        self._staged[client] = (round, _checksum(data))

    def take(self, reply: Reply, round: int) -> None:
        """Stage the client state of an accepted reply."""
        if reply.state is not None:
            self.stage(reply.profile.id, round, reply.state)

    def kept(self, client: int) -> StateVersion | None:
        """The version that counts now; None: there is none."""
        version, _ = self._staged.get(client, (int(self.rounds[client]), 0))
        return StateVersion(version) if version >= 0 else None

    def digest(self, client: int) -> str:
        return digest(self.load(client))

    def discard(self) -> None:
        """Forget what was staged: the round was skipped."""
        for client, (round, _) in self._staged.items():
            self._path(client, round).unlink(missing_ok=True)
        self._staged.clear()

    def versions(self) -> dict[str, Tensor]:
        """What a checkpoint keeps, with the staged versions in place."""
        rounds, digests = self.rounds.clone(), self.digests.clone()
        for client, (round, checksum) in self._staged.items():
            rounds[client], digests[client] = round, checksum
        return {"rounds": rounds, "digests": digests}

    def committed(self) -> None:
        """The checkpoint is on disk. Versions that neither it nor the one before names are deleted."""
        for path in self._outdated:
            path.unlink(missing_ok=True)
        self._outdated = [
            self._path(client, int(self.rounds[client])) for client in self._staged if int(self.rounds[client]) >= 0
        ]
        self.restore(self.versions())

    def restore(self, versions: Tensors) -> None:
        self.rounds, self.digests = versions["rounds"], versions["digests"]
        self._staged.clear()

    def sound(self) -> bool:
        """Whether every version that counts is there and undamaged."""
        return next(self.damaged(), None) is None

    def damaged(self) -> Iterator[str]:
        """The files of versions that count which are missing or damaged."""
        for client in self.holders():
            try:
                self.load(client)
            except RunError:
                _log.info("client state is damaged", exc_info=True)
                path = self._path(client, int(self.rounds[client]))
                yield f"{path.parent.name}/{path.name}"

    def holders(self) -> list[int]:
        return _holders(self.rounds, self._staged)

    def sweep(self, older: Sequence[Tensors] = ()) -> None:
        """Delete what an interrupted round left behind; the versions of an older checkpoint stay one more round."""
        named = self._named(self.rounds)
        self._outdated = sorted(set().union(*(self._named(versions["rounds"]) for versions in older)) - named)
        for path in self.folder.glob("*.safetensors") if self.folder.exists() else ():
            if path not in named and path not in self._outdated:
                path.unlink()

    def _named(self, rounds: Tensor) -> set[Path]:
        return {self._path(client, int(rounds[client])) for client in torch.nonzero(rounds >= 0).flatten().tolist()}

    def _path(self, client: int, round: int) -> Path:
        return self.folder / f"{client}.{round}.safetensors"


def _checksum(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little", signed=True)


class SiteStore:
    """The server's record of states that stay at the sites: the round that wrote each one, and its digest.

    It has the interface of a `ClientStore`, so that a round does not depend on where states are.
    """

    def __init__(self, clients: int) -> None:
        self.rounds = torch.full((clients,), -1)
        self.digests = torch.zeros(clients, 32, dtype=torch.uint8)
        self._staged: dict[int, tuple[int, bytes]] = {}

    def load(self, client: int) -> Tensors:
        """Nothing is sent along: a request names the version."""
        return {}

    def take(self, reply: Reply, round: int) -> None:
        if reply.kept:
            self._staged[reply.profile.id] = (round, bytes.fromhex(reply.kept))

    def kept(self, client: int) -> StateVersion | None:
        version, _ = self._staged.get(client, (int(self.rounds[client]), b""))
        return StateVersion(version, self.digest(client)) if version >= 0 else None

    def digest(self, client: int) -> str:
        known = bytes(self.digests[client].tolist())
        return self._staged.get(client, (0, known))[1].hex()

    def discard(self) -> None:
        self._staged.clear()

    def versions(self) -> dict[str, Tensor]:
        rounds, digests = self.rounds.clone(), self.digests.clone()
        for client, (round, told) in self._staged.items():
            rounds[client], digests[client] = round, torch.tensor(list(told), dtype=torch.uint8)
        return {"rounds": rounds, "digests": digests}

    def committed(self) -> None:
        self.restore(self.versions())

    def restore(self, versions: Tensors) -> None:
        self.rounds, self.digests = versions["rounds"], versions["digests"]
        self._staged.clear()

    def sound(self) -> bool:
        """Cannot be checked here: a site that has lost its state replies with an error."""
        return True

    def holders(self) -> list[int]:
        return _holders(self.rounds, self._staged)

    def sweep(self, older: Sequence[Tensors] = ()) -> None:
        """Sites delete their own files."""


Store = ClientStore | SiteStore


def _holders(rounds: Tensor, staged: Iterable[int]) -> list[int]:
    """The clients that have state, including those staged in the current round."""
    return sorted({*torch.nonzero(rounds >= 0).flatten().tolist(), *staged})
