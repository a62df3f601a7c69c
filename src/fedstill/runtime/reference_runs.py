"""The run that a run is to be held against: each client alone, or a student without its teacher.

The reference is the same experiment but for its method or objective. It is looked for beside the run, by its identity,
so that a stale one is never found. Nothing is trained for it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, sqrt
from pathlib import Path
from typing import Any

from fedstill.core.errors import InputError
from fedstill.core.numbers import points, share
from fedstill.core.records import ReferenceRecord
from fedstill.core.task import Task
from fedstill.methods import methods
from fedstill.runtime.experiment import DEFAULT_PARTS, Experiment, choose
from fedstill.runtime.identity import fingerprint_of, identify, stale_parts
from fedstill.runtime.run_folder import RunFolder, folder_of

_log = logging.getLogger(__name__)
LOCAL_ONLY, LABELS_ONLY = "local-only", "labels-only"
_WITHOUT = ("attack", "privacy", "mitigation")  # concern replies, and a client alone sends none
_SURE = 2.0  # standard errors of a difference on the test samples
_WHAT = {LOCAL_ONLY: "what clients reach alone", LABELS_ONLY: "what the student reaches without a teacher"}


@dataclass(frozen=True)
class Reference:
    """What a run is held against; without a folder, no such run was found beside it."""

    kind: str
    experiment: Experiment
    folder: Path | None = None
    accuracy: float | None = None

    def record(self) -> ReferenceRecord:
        run = None if self.folder is None else str(self.folder)
        return ReferenceRecord(kind=self.kind, run=run, accuracy=self.accuracy)

    def sentence(self, accuracy: float | None) -> str | None:
        """The reference's figure and the distance to it; None where there is none."""
        if self.accuracy is None or accuracy is None:
            return None
        gap = accuracy - self.accuracy
        return (
            f"{_WHAT[self.kind]} ({self.kind}): {share(self.accuracy)}, {points(gap)} {'less' if gap > 0 else 'more'}"
        )

    def missing(self) -> str:
        """What is not known where the reference was not found."""
        return f"{_WHAT[self.kind]} is not known"

    def caution(self, accuracy: float | None, samples: int) -> str | None:
        """A sentence if the run is not ahead by more than the test samples explain; None where that is not known."""
        if self.accuracy is None or accuracy is None or not samples:
            return None
        noise = _SURE * sqrt((accuracy * (1 - accuracy) + self.accuracy * (1 - self.accuracy)) / samples)
        if accuracy - self.accuracy > noise:
            return None
        return (
            f"the accuracy of {share(accuracy)} is not ahead of {_WHAT[self.kind]}, {share(self.accuracy)}"
            f" ({self.kind}), by more than the noise of the test samples ({points(noise)})"
        )


def reference_of(experiment: Experiment, config: Mapping[str, Any], task: Task, folder: Path) -> Reference | None:
    """The reference of a run in that folder with that configuration; None where none applies."""
    wanted = reference_experiment(experiment)
    if wanted is None or task.finds_boxes or "reads" not in config or stale_parts(config):
        return None
    kind = LABELS_ONLY if methods[experiment.method.name].pooled else LOCAL_ONLY
    data = str(config["fingerprint"])
    reads = str(config["reads"]) if kind == LABELS_ONLY else fingerprint_of(wanted, data, task)
    return _found(kind, wanted, folder_of(identify(wanted, reads).name, folder.parent))


def reference_experiment(experiment: Experiment) -> Experiment | None:
    """The experiment that differs only in having no federation, or no teacher; None where there is none."""
    method = methods[experiment.method.name]
    if "teaching" in method.wants:
        return _without_teacher(experiment)
    if method.pooled or experiment.method.name == LOCAL_ONLY or experiment.clients < 2:
        return None
    changed = {part: choose(part, DEFAULT_PARTS[part]) for part in _WITHOUT}
    changed["method"] = choose("method", LOCAL_ONLY)
    return experiment.model_copy(update={**changed, "norm_limit": None, "min_replies": 1, "secure": None})


def _without_teacher(experiment: Experiment) -> Experiment | None:
    """A student that was trained without labels has no such reference."""
    settings = experiment.method.settings.model_dump()
    if experiment.objective is None or not experiment.teachers or settings["labels"] != "use":
        return None
    changed = {"objective": choose("objective", LABELS_ONLY), "teachers": ()}
    method = choose("method", {"name": experiment.method.name, **settings, "same_model": False})
    return experiment.model_copy(update={**changed, "method": method})


def _found(kind: str, wanted: Experiment, folder: Path | None) -> Reference:
    try:
        result = None if folder is None else RunFolder(folder).result()
    except InputError as error:  # it was edited, which `fedstill verify` reports: nothing is held against it
        _log.info("%s is not compared with: %s", folder, error)
        result = None
    accuracy = None if result is None else result.accuracy.get("last")
    if folder is None or accuracy is None or not isfinite(accuracy):
        return Reference(kind, wanted)
    return Reference(kind, wanted, folder, float(accuracy))
