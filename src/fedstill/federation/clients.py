"""The clients of a simulation: made on demand from shards, with state that is kept in a file each.

Memory grows with those who take part, not with the population: a client that is not asked is two numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import torch
from torch import Tensor

from fedstill.core.dataset import Dataset, Subset
from fedstill.core.errors import RunError
from fedstill.core.files import write_atomically
from fedstill.core.message import Message, MessageError
from fedstill.core.protocols import Client, Profile, Turn
from fedstill.core.task import Task, Tensors
from fedstill.data.partitions import Shards
from fedstill.federation.checkpoint import candidates


@dataclass(frozen=True)
class SimulatedClients:
    """A client factory over one data set cut into shards."""

    task: Task
    data: Dataset
    shards: Shards
    test: tuple[Dataset, Shards] | None = None  # cut in the same way, where models are evaluated on site

    def __call__(self, profile: Profile, state: Tensors, turn: Turn) -> Client:
        shard = Subset(self.data, self.shards.rows(profile.id))
        test = None if self.test is None else Subset(self.test[0], self.test[1].rows(profile.id))
        return Client(profile, self.task, shard, turn.streams.at("client", profile.id), state, test=test)


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
        """The committed state in a run's folder."""
        store = cls(run / "clients", clients)
        found, _ = candidates(run)
        if found:
            store.restore(found[0].clients)
        return store

    def load(self, client: int) -> Tensors:
        version, digest = self._staged.get(client, (int(self.rounds[client]), int(self.digests[client])))
        if version < 0:
            return {}
        path = self._path(client, version)
        try:
            data = path.read_bytes()
            if _digest(data) != digest:
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
        self._staged[client] = (round, _digest(data))

    def discard(self) -> None:
        """Forget what was staged: the round was skipped."""
        for client, (round, _) in self._staged.items():
            self._path(client, round).unlink(missing_ok=True)
        self._staged.clear()

    def versions(self) -> dict[str, Tensor]:
        """What a checkpoint keeps, with the staged versions in place."""
        rounds, digests = self.rounds.clone(), self.digests.clone()
        for client, (round, digest) in self._staged.items():
            rounds[client], digests[client] = round, digest
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
        try:
            for client in self.holders():
                self.load(client)
        except RunError:
            return False
        return True

    def holders(self) -> list[int]:
        """The clients that have state, those of the round being played included."""
        return sorted({*torch.nonzero(self.rounds >= 0).flatten().tolist(), *self._staged})

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


def _digest(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little", signed=True)
