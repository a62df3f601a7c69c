"""A run is a directory: its layout, and who may write to it.

config.json            the experiment, its identity, data fingerprint and versions
journal.jsonl          one line a round, nothing in it depends on time
checkpoint.safetensors what the run has reached (and `checkpoint-previous`, the round before)
clients/               state of clients that have any
exchanges/             of a deployment: what sites have answered in the round under way
model-last, -best, -selected.safetensors
predictions.json       what those models say of every test sample
detections.json        the boxes they find in test scenes, where that is the task
answers.json           where clients have queries: what became of them
features.json          of a table of features: means, deviations and categories of its training rows
checks.json            of the data, what a run's own checks need: class counts, repeated samples
metrics.json           of classifiers: AUC, F1 and others, with intervals and of each class
digests.json           of all these and of every field of config.json and result.json
result.json            once the run is finished
timing.json            times, apart from everything that can be compared byte for byte
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedstill.core.errors import BusyError, InputError
from fedstill.core.files import (
    append_line,
    file_digest,
    parse_json,
    read_file,
    read_json,
    read_text_file,
    write_atomically,
    write_json,
)
from fedstill.core.locks import FolderLock, lock_folder
from fedstill.core.message import Message, MessageError, under
from fedstill.core.records import RUN_FORMAT, RecordError, RoundRecord, RunChecks, RunResult, read_result, read_round
from fedstill.core.task import Tensors
from fedstill.data.feature_preparation import Preparation
from fedstill.runtime import checkpoint, digests
from fedstill.runtime.digests import Digests

_log = logging.getLogger(__name__)

_NAMED = re.compile(r"-([0-9a-f]{16})$")  # the name of a folder after its run
READABLE = (2, 3, RUN_FORMAT)  # formats; earlier ones are translated when they are read (core.earlier_records)
MODELS = ("last", "best", "selected")
RECEIVED = "received"  # a site's folder of what it was sent at the end of runs
_PREPARATION = "features"


class RunFolder:
    """Reads and writes one run's directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reused = False  # whether the run was found finished
        self._lock: FolderLock | None = None

    def create(self, config: dict[str, Any]) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        if not (self.path / "config.json").exists():
            write_json(self.path / "config.json", {"format": RUN_FORMAT, **config})

    def upgrade(self) -> None:
        """Declare today's format, before anything is written in it: earlier versions then refuse the folder."""
        config = self.config()
        if config["format"] != RUN_FORMAT:
            write_json(self.path / "config.json", {**config, "format": RUN_FORMAT})

    @property
    def has_begun(self) -> bool:
        """Whether some round was committed."""
        return any((self.path / name).exists() for name in (checkpoint.NAME, checkpoint.PREVIOUS, "result.json"))

    def lock(self) -> FolderLock:
        """Held while a process works on the run; the system frees it when that process dies, however it dies."""
        self._lock = lock_folder(self.path)
        if self._lock is None:
            raise BusyError(f"another process is working on {self.path}: wait for it, or choose another --out")
        return self._lock

    def check_lock(self) -> None:
        """Before something is committed: refuse to write where another process may have taken the folder's place."""
        if self._lock is not None:
            self._lock.check()

    def config(self) -> dict[str, Any]:
        path = self.path / "config.json"
        try:
            config: dict[str, Any] = parse_json(read_text_file(path))
            version = config["format"]
        except FileNotFoundError:
            raise InputError(f"{self.path} is not a run: it has no config.json") from None
        except NotADirectoryError:
            raise InputError(f"{self.path} is a file: name the folder of a run") from None
        except KeyError as error:
            raise InputError(f"{path} cannot be read as a run's configuration: it has no {error}") from None
        except (OSError, ValueError, TypeError) as error:
            raise InputError(f"{path} cannot be read as a run's configuration: {error}") from None
        if version not in READABLE:
            raise InputError(
                f"{self.path} was written in format {version}, and this version of fedstill reads formats"
                f" {' and '.join(map(str, READABLE))}: run the experiment again"
            )
        Digests(self.path).check_content("config.json", config)
        if is_of_another_run(self.path, config):
            raise InputError(
                f"{self.path} holds the files of another run ({config['identity']}) than its name says: delete it, and"
                " the experiment is run when it is needed"
            )
        return config

    def result(self) -> RunResult | None:
        """The run's result; None where it is missing or damaged, so that it is made again."""
        content = read_json(self.path / "result.json")
        if content is None:
            return None
        Digests(self.path).check_content("result.json", content)
        try:
            return read_result(content)
        except RecordError:
            _log.info("the result in %s cannot be read: the run is repeated", self.path, exc_info=True)
            return None

    def save_result(self, result: RunResult) -> None:
        """The last file of a run, after digests of all of them."""
        content = result.to_dict()
        digests.save(self.path, content)
        write_json(self.path / "result.json", content)

    def predictions(self) -> dict[str, list[int] | None]:
        """By model, the class said of every test sample, and the truth under `labels`; empty where none is."""
        return self._whole("predictions.json")

    def save_predictions(self, truth: list[int] | None, said: dict[str, list[int] | None]) -> None:
        content = json.dumps({"labels": truth, **said}) + "\n"
        write_atomically(self.path / "predictions.json", content.encode())

    def artefact(self, name: str) -> dict[str, Any]:
        """What a slice has kept with the run; empty where there is nothing."""
        return self._whole(f"{name}.json")

    def save_preparation(self, made: Preparation) -> None:
        self.save_artefact(_PREPARATION, made.to_dict())

    def preparation(self) -> Preparation | None:
        """How cells of a table became features; None for other data, or in folders of earlier versions."""
        content = self.artefact(_PREPARATION)
        return Preparation.from_dict(content) if content else None

    def checks(self) -> RunChecks | None:
        """What the run kept about its data; None where there was none, or in folders of earlier versions."""
        content = self.artefact("checks")
        return RunChecks.model_validate(content) if content else None

    def _whole(self, name: str) -> dict[str, Any]:
        """A JSON file as the run wrote it; empty where it is missing or damaged, refused where it was edited."""
        content = read_json(self.path / name)
        if content is None:
            return {}
        Digests(self.path).check_bytes(name, read_file(self.path / name))
        return content

    def save_artefact(self, name: str, content: dict[str, Any]) -> None:
        write_atomically(self.path / f"{name}.json", (json.dumps(content) + "\n").encode())

    def timing(self) -> dict[str, Any]:
        """Seconds of rounds and of checkpoints; a damaged file costs nothing but these."""
        held = read_json(self.path / "timing.json") or {}
        return {name: _seconds(held.get(name)) for name in ("rounds", "checkpoints")}

    def save_timing(self, timing: dict[str, Any]) -> None:
        """Written non-atomically: losing a time is harmless."""
        (self.path / "timing.json").write_text(json.dumps(timing) + "\n")

    def journal(self) -> list[RoundRecord]:
        """The rounds so far, as committed; a damaged journal is read from the checkpoint instead."""
        try:
            data = read_file(self.path / "journal.jsonl")
            records = [read_round(parse_json(line)) for line in data.splitlines()]
        except FileNotFoundError:
            return []
        except ValueError as error:
            found, _ = checkpoint.candidates(self.path)
            if not found and isinstance(error, RecordError):
                raise InputError(
                    f"{self.path} was written by another version of fedstill, or with another --plugin"
                    f" (its journal: {error}): run the experiment again"
                ) from None
            return list(found[0].journal) if found else []
        Digests(self.path).check_bytes("journal.jsonl", data)
        return records

    def append_journal(self, record: RoundRecord) -> None:
        append_line(self.path / "journal.jsonl", _line(record))

    def restore_journal(self, records: tuple[RoundRecord, ...]) -> bool:
        """Restore the file from the checkpoint; True if they differed."""
        path = self.path / "journal.jsonl"
        right = b"".join(_line(record) for record in records)
        if path.exists() and read_file(path) == right:
            return False
        write_atomically(path, right)
        return True

    def model_path(self, which: str, round: int | None = None) -> Path:
        """Where a finished run keeps a model; with a round, where a running one keeps that round's."""
        return self.path / (f"model-{which}.safetensors" if round is None else f"model-{which}.{round}.safetensors")

    def save_models(self, which: str, data: bytes, round: int | None = None) -> None:
        """Keep packed models; a method without shared models keeps none."""
        if data:
            write_atomically(self.model_path(which, round), data)

    def holds(self, which: str, leader: checkpoint.Leader) -> bool:
        """Whether the leading round's model is there and undamaged."""
        paths = (self.model_path(which, leader.round), self.model_path(which))
        return not leader.digest or any(file_digest(path) == leader.digest for path in paths)

    def drop_leaders(self, *kept: dict[str, checkpoint.Leader]) -> None:
        """Delete the models of rounds that lead no more."""
        named = {self.model_path(which, leader.round) for leaders in kept for which, leader in leaders.items()}
        for path in set(self.path.glob("model-*.*.safetensors")) - named:
            path.unlink()

    def publish_leaders(self, leaders: dict[str, checkpoint.Leader]) -> None:
        """The run is finished: give the leading models the names that people look for."""
        for which, leader in leaders.items():
            if (path := self.model_path(which, leader.round)).exists():
                os.replace(path, self.model_path(which))
        self.drop_leaders()

    def load_models(self, which: str) -> dict[str, Tensors]:
        """Models by architecture, as saved."""
        path = self.model_path(which)
        data = read_file(path)
        try:
            packed = Message.decode(data)
        except MessageError as error:
            raise InputError(f"{path} is damaged ({error}): run the experiment again") from None
        Digests(self.path).check_bytes(path.name, data)
        architectures = sorted({name.split("/", 1)[0] for name in packed})
        return {architecture: packed.part(f"{architecture}/") for architecture in architectures}


def is_of_another_run(path: Path, config: Mapping[str, Any]) -> bool:
    """Whether a folder is named after one run and holds another one, as a copied folder does.

    >>> is_of_another_run(Path("fedavg-digits-0123456789abcdef"), {"identity": "fedcba9876543210"})
    True
    >>> is_of_another_run(Path("my-best-run"), {"identity": "fedcba9876543210"})
    False

    What a site received is named after the server's run; its identity has the site's own data in it.

    >>> is_of_another_run(Path("received/fedavg-clinics-0123456789abcdef"), {"identity": "fedcba9876543210"})
    False
    """
    named = _NAMED.search(path.name)
    return (
        named is not None and path.absolute().parent.name != RECEIVED and named[1] != config.get("identity", named[1])
    )


def folder_of(identity: str | None, out: Path) -> Path | None:
    """The run of that identity in a folder of runs; None also where the identity is not known yet."""
    if identity is None:
        return None
    return next((path.parent for path in out.glob(f"*-{identity}/config.json")), None)


def pack_models(models: dict[str, Tensors]) -> bytes:
    """Shared models as they are kept, each below its architecture's name; nothing where none is shared."""
    named = {n: t for name, state in models.items() for n, t in under(f"{name}/", state).items()}
    return Message(named).encode() if named else b""


def _line(record: RoundRecord) -> bytes:
    return record.to_json().encode() + b"\n"


def _seconds(held: Any) -> list[float]:
    """The times of a list; none of one that is damaged."""
    times = held if isinstance(held, list) else []
    return times if all(isinstance(one, int | float) for one in times) else []
