"""The only file here that uses more of the package than its public functions and command line.

Whoever moves or renames what is imported, or what is called by name, below has to follow here and nowhere else; none
of it computes anything.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

from fedstill.detection.pretraining import Pretraining
from fedstill.runtime.experiment import BEHAVIOUR
from fedstill.runtime.identity import identity_from
from fedstill.tasks.class_metrics import NAMES

# A run's folder: what is not compared number by number, and which file holds the state that a run goes on from.
# checks.json counts test samples, metrics.json has further metrics; they came after the recording, and no result
# depends on them.
NOT_COMPARED = ("config.json", "timing.json", "digests.json", "checks.json", "metrics.json")
CHECKPOINT, EARLIER_CHECKPOINT = "checkpoint.safetensors", "checkpoint-previous.safetensors"
CONFIGURATION = "config.json"


class InterruptAfter:
    """An observer that ends a run after some record of its journal, as Ctrl-C would."""

    def __init__(self, records: int) -> None:
        self.left = records

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._told

    def _told(self, *given: Any, **named: Any) -> None:
        from fedstill.core.records import RoundRecord

        self.left -= sum(isinstance(one, RoundRecord) for one in (*given, *named.values()))
        if self.left <= 0:
            raise KeyboardInterrupt


def registered() -> dict[str, set[str]]:
    """What can be chosen by name, as `fedstill list` has it."""
    return {shelf: set(names) for shelf, names in json.loads(typed("list", "--json")).items()}


def typed(*words: str) -> str:
    """What a command prints, run in this process."""
    from fedstill.cli import main

    out = io.StringIO()
    with patch.object(sys, "argv", ["fedstill", *words]), redirect_stdout(out):
        try:
            main()
        except SystemExit as left:
            if left.code:
                raise RuntimeError(f"fedstill {' '.join(words)} ended with {left.code}") from None
    return out.getvalue()


def failed(results: Any) -> dict[Any, str]:
    """The cells of a study that have no result although they should, in both stages."""
    students = results.students
    return {**results.failures, **({} if students is None else students.failures)}


def save_results(results: Any, path: Path) -> None:
    results.save(path)


def pretraining_identity(made: Any) -> str:
    """Without what is known of parts and torch, as it was recorded."""
    settings = Pretraining.model_validate(made.record["pretraining"])
    return settings.digest(made.record["fingerprint"])


def run_identity(run: Any) -> str:
    """The same of a run: the digest of settings and data, where its folder's name is made of that."""
    name, config = run.path.name.rpartition("-")[2], run.config
    digest = run.experiment.digest(config["reads"]) if "reads" in config else name
    made_of = identity_from(digest, config.get("parts", {}), made_by=config.get("torch", ""))
    return str(digest if made_of == name else name)


def former_results(results: Any) -> Any:
    """A study's results as they were when they were recorded, with one behaviour version for all of them."""
    if results is None:
        return None
    runs = {
        cell: {key: _former(value) if key == "figures" else value for key, value in vars(row).items() if key != "made"}
        for cell, row in results.runs.items()
    }
    source = {**results.source, "behaviour": BEHAVIOUR}
    return {**vars(results), "runs": runs, "source": source, "students": former_results(results.students)}


def _former(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Without the metrics that came after the recording."""
    return {name: value for name, value in figures.items() if name not in NAMES}


def pretraining_record(made: Any) -> Mapping[str, Any]:
    """Without the settings and the scores of a probe that it did not have when it was recorded."""
    settings = {key: value for key, value in made.record["pretraining"].items() if key not in Pretraining.added_later}
    return {key: value for key, value in made.record.items() if key != "probe"} | {"pretraining": settings}


def change_rates(monkeypatch: Any, by: float) -> None:
    """Let every local training use a learning rate that is off by so much, which no setting says."""
    from fedstill.core.training import Training

    usual = Training.factor  # of the rate
    monkeypatch.setattr(Training, "factor", lambda self, turn, turns: usual(self, turn, turns) + by / self.rate)


def rooms(scenes: int, points: int) -> Any:
    """Procedural rooms; the built-in data set has 1,200 of them, which take a minute to make."""
    from fedstill.detection.rooms import make_rooms

    return make_rooms(scenes, points=points)
