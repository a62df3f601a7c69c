"""Doing one run of a study, here or in a worker process: a fresh interpreter with one thread.

A worker reads one JSON object a line: first where things are, then one configuration after another; it answers each
with one line. When its input ends it dies at once, in whatever it is doing: the process that wanted the results is
gone, and a run that was killed goes on from its last round.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import IO, Any, Literal

from fedstill.config import make_experiment
from fedstill.core.errors import FedstillError, InputError
from fedstill.federation.launch import launch, use_plugins


@dataclass(frozen=True)
class Place:
    """Where a study's runs go, and what they need to be told."""

    out: str
    data_root: str | None = None
    device: str = "cpu"
    plugins: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """How a run ended; `busy` means that another process is working on it."""

    state: Literal["done", "failed", "busy"]
    error: str = ""
    details: str = ""


def perform(given: Mapping[str, Any], place: Place) -> Outcome:
    """Do one run; whatever goes wrong is its outcome, so that the next one can go on."""
    try:
        data_root = None if place.data_root is None else Path(place.data_root)
        launch(make_experiment(given), out=Path(place.out), data_root=data_root, device=place.device)
    except FedstillError as error:
        if isinstance(error, InputError) and str(error).startswith("another process is working on"):
            return Outcome("busy")
        return Outcome("failed", " ".join(str(error).split()))
    except Exception as error:
        sentence = " ".join(f"{type(error).__name__}: {error}".split())
        return Outcome("failed", sentence, traceback.format_exc())
    return Outcome("done")


def serve(requests: IO[str], answers: IO[str]) -> None:
    place = Place(**json.loads(requests.readline()))
    use_plugins(place.plugins)
    errands: SimpleQueue[str] = SimpleQueue()
    Thread(target=_listen, args=(requests, errands), daemon=True).start()
    while True:
        answers.write(json.dumps(asdict(perform(json.loads(errands.get()), place))) + "\n")
        answers.flush()


def _listen(requests: IO[str], errands: SimpleQueue[str]) -> None:
    for line in requests:
        errands.put(line)
    os._exit(0)


def main() -> None:
    # Answers go out on a descriptor of their own, so that a print() in a plugin cannot end up among them.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        serve(sys.stdin, answers)
    except (BrokenPipeError, KeyboardInterrupt):
        os._exit(0)


if __name__ == "__main__":
    main()
