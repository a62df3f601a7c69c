"""Executing the runs of a study, here or in a worker process. A run that was killed resumes from its last round."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from fedstill.core.errors import BusyError, FedstillError, UnusableError
from fedstill.core.own_parts import OwnParts
from fedstill.core.records import RoundRecord
from fedstill.data.bundle import Bundle
from fedstill.data.lookup import load
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.experiment import Experiment
from fedstill.runtime.identity import Known
from fedstill.runtime.joint_training import OnProgress, train_jointly
from fedstill.runtime.launch import launch
from fedstill.runtime.observers import Observer

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Place:
    """Output folder and environment of a study's runs."""

    out: str
    data_root: str | None = None
    device: str = "cpu"
    own: OwnParts = field(default_factory=OwnParts)
    known: Known = field(default_factory=dict)  # parts as they were when the study was planned


@dataclass(frozen=True)
class JobOutcome:
    """How a run ended; `busy` means that another process is working on it, `refused` that it can have no result."""

    state: Literal["done", "failed", "busy", "refused"]
    error: str = ""
    details: str = ""
    note: str = ""  # what was repaired on the way


def perform(lesson: Sequence[Mapping[str, Any]], place: Place, told: OnProgress | None = None) -> list[JobOutcome]:
    """Do these runs, together if there are several; whatever goes wrong is an outcome, so that the next can go on."""
    root = None if place.data_root is None else Path(place.data_root)
    out = Path(place.out)
    try:
        experiments = [make_experiment(given) for given in lesson]
        if len(experiments) > 1:
            ended = train_jointly(experiments, out, root, place.device, told, _loaded, place.known)
            return [_outcome(one if isinstance(one, Exception) else None) for one in ended]
        (experiment,) = experiments
        bundle = _loaded(experiment.data, root)
        how: dict[str, Any] = {"data_root": root, "device": place.device, "bundle": bundle, "known": place.known}
        launch(experiment, out=out, observers=_observers(told), **how)
        return [JobOutcome("done")]
    except Exception as error:
        _log.info("a job failed", exc_info=True)
        return [_outcome(error)] * len(lesson)


@lru_cache(maxsize=2)
def _loaded(data: str, root: Path | None) -> Bundle:
    """Runs of a study share few data sets, and loading takes as long as training something small."""
    return load(data, root)


def forget_data() -> None:
    """A study begins: files may have changed since the last one in this process."""
    _loaded.cache_clear()


def _outcome(error: Exception | None) -> JobOutcome:
    match error:
        case None:
            return JobOutcome("done")
        case BusyError():
            return JobOutcome("busy")
        case UnusableError():
            return JobOutcome("refused", " ".join(str(error).split()))
        case FedstillError():
            return JobOutcome("failed", " ".join(str(error).split()))
    sentence = " ".join(f"{type(error).__name__}: {error}".split())
    return JobOutcome("failed", sentence, "".join(traceback.format_exception(error)))


def _observers(told: OnProgress | None) -> list[Observer]:
    return [] if told is None else [_Teller(told)]


class _Teller(Observer):
    """Reports the finished fraction of a run."""

    def __init__(self, told: OnProgress) -> None:
        self.told = told
        self.rounds = 1

    def start(self, experiment: Experiment, journal: Sequence[RoundRecord]) -> None:
        self.rounds = experiment.rounds

    def round(self, record: RoundRecord) -> None:
        self.told(record.round / self.rounds)

    def note(self, text: str) -> None:
        """Not shown: the study has its own display."""

    def warn(self, text: str) -> None:
        """Not shown: the run has repaired the damage."""

    def finish(self) -> None:
        """Nothing to do: the outcome is returned."""


def perform_lessons(receive: Callable[[], Any], send: Callable[[Any], None]) -> None:
    """In a worker: execute one group of runs after another, and send its progress, then its outcomes."""
    place: Place = receive()
    place.own.install()
    while True:
        send(perform(receive(), place, told=lambda share: send(float(share))))
