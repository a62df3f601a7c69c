"""The checkpoint of a run: one file, whose atomic replacement commits a round.

The checkpoint holds server and fleet state, which version of each client's state counts, the journal so far, and
what is known of the best rounds. The one before it is kept, so that a damaged file costs one round, not the run.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedstill.core.earlier_records import current_checkpoint
from fedstill.core.files import read_file, write_atomically
from fedstill.core.message import Message, under
from fedstill.core.records import RoundRecord, read_round
from fedstill.core.task import Tensors
from fedstill.runtime.sealed import DAMAGED, sealed, unsealed

_log = logging.getLogger(__name__)

NAME = "checkpoint.safetensors"
PREVIOUS = "checkpoint-previous.safetensors"


@dataclass(frozen=True)
class Leader:
    """The round that leads by some measure, with the digest of the model file that keeps it."""

    round: int
    score: float
    digest: str


@dataclass(frozen=True)
class Progress:
    """The complete state of a run after `round` rounds."""

    round: int
    server: Tensors
    fleet: Tensors
    clients: Tensors  # versions of client state, and the round of each client's last accepted reply
    journal: tuple[RoundRecord, ...] = ()
    leaders: dict[str, Leader] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)  # of work that has no rounds

    def pack(self) -> Message:
        leaders = json.dumps({name: asdict(leader) for name, leader in self.leaders.items()})
        journal = ",".join(record.to_json() for record in self.journal)
        facts = f'{{"round":{self.round},"leaders":{leaders},"notes":{json.dumps(self.notes)},"journal":[{journal}]}}'
        tensors = {
            **under("server/", self.server),
            **under("fleet/", self.fleet),
            **under("clients/", self.clients),
        }
        return sealed(tensors, facts)

    @classmethod
    def unpack(cls, message: Message) -> Progress:
        tensors, packed = unsealed(message)
        facts = current_checkpoint(packed)
        leaders = {name: Leader(**leader) for name, leader in facts["leaders"].items()}
        return cls(
            facts["round"],
            tensors.part("server/"),
            tensors.part("fleet/"),
            tensors.part("clients/"),
            tuple(read_round(record) for record in facts["journal"]),
            leaders,
            facts["notes"],
        )


def save(folder: Path, progress: Progress) -> None:
    """Commit a round."""
    current = folder / NAME
    data = progress.pack().encode()
    if current.exists():
        os.replace(current, folder / PREVIOUS)
    write_atomically(current, data)


def candidates(folder: Path) -> tuple[list[Progress], list[str]]:
    """The checkpoints that can be read, newest first, and what is wrong with those that cannot."""
    found, damaged = [], []
    for name in (NAME, PREVIOUS):
        try:
            found.append(_read(folder / name))
        except FileNotFoundError:
            continue
        except DAMAGED as error:
            damaged.append(f"{name} is damaged ({error})")
    return found, damaged


def settle_on(folder: Path, progress: Progress) -> None:
    """Resume from this checkpoint; a newer one, which is damaged or unusable, is removed.

    The next commit would put it in the place of the one before it, which is the only good one.
    """
    try:
        newest = _read(folder / NAME)
    except FileNotFoundError:
        return
    except DAMAGED:
        _log.info("%s is damaged: it is removed", folder / NAME, exc_info=True)
        newest = None
    if newest is None or (newest.round, newest.journal) != (progress.round, progress.journal):
        (folder / NAME).unlink()


def _read(path: Path) -> Progress:
    return Progress.unpack(Message.decode(read_file(path)))
