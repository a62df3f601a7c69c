"""What a run will cost, in CPU seconds and memory, from steps that are measured once on a machine.

What was measured (see `step_measurement`) is kept in the user's cache folder, under everything that can change it.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from fedstill.core.cpu import cpu_kind
from fedstill.core.errors import FedstillError
from fedstill.core.files import read_json, write_json
from fedstill.core.hardware import one_thread
from fedstill.core.numbers import duration, size
from fedstill.data.bundle import Bundle
from fedstill.data.readers.cache import cache_folder
from fedstill.runtime.experiment import BEHAVIOUR, Experiment
from fedstill.runtime.identity import parts_of
from fedstill.runtime.plan import Simulation
from fedstill.runtime.run_load import StepCost, load_of
from fedstill.runtime.step_measurement import between_peers, measure_cost, samples_of_a_client

_log = logging.getLogger(__name__)

FORMAT = 4
VARIABLE = "FEDSTILL_ESTIMATES"
_LEFT_OUT = {"seed", "rounds", "data", "clients", "partition", "participation", "dropout", "teachers", "validation"}
_LEFT_OUT |= {"evaluate_every", "select_by", "min_replies", "queries", "fleet", "clusters", "initial"}
_NO_PARTS = ("data set ", "partition ", "participation ", "dropout ")


def may_measure() -> bool:
    """Whether a step may be measured that was not before: not if FEDSTILL_ESTIMATES is `cached` or `off`."""
    return os.environ.get(VARIABLE) not in ("cached", "off")


def estimate_text(plan: Simulation, done: int, measure: bool) -> str | None:
    """What the rest of a run will cost after so many rounds; None where nothing is known."""
    by = measured_cost if measure and may_measure() else cached_cost
    cost = by(plan.experiment, plan.bundle)
    if cost is None:
        return None
    load = load_of(plan.experiment, len(plan.bundle.train), len(plan.bundle.test), plan.method.personal)
    seconds = load.seconds(cost) * (1 - done / plan.rounds)
    return f"estimate: {core_time(seconds)}, up to {size(cost.memory)} of memory"


def core_time(seconds: float) -> str:
    """CPU time as it is usually told.

    >>> core_time(9000), " ".join(core_time(90).split())
    ('2.5 core-hours', '1 min 30 s of one core')
    """
    return f"{seconds / 3600:.1f} core-hours" if seconds >= 3600 else f"{duration(seconds)} of one core"


def cached_cost(experiment: Experiment, bundle: Bundle, teacher: str | None = None) -> StepCost | None:
    """What was measured on this machine before."""
    if os.environ.get(VARIABLE) == "off":
        return None
    found = read_json(_file(experiment, bundle, teacher))
    try:
        return None if found is None else StepCost(**found["cost"])
    except (KeyError, TypeError):
        return None


def measured_cost(experiment: Experiment, bundle: Bundle, teacher: str | None = None) -> StepCost | None:
    """The same, measured now unless it is cached; None where no rehearsal is possible."""
    if (known := cached_cost(experiment, bundle, teacher)) is not None:
        return known
    try:
        with one_thread(), TemporaryDirectory() as folder:
            cost = measure_cost(experiment, bundle, teacher, Path(folder))
    except FedstillError:
        _log.info("%s cannot be rehearsed", experiment.method.name, exc_info=True)
        return None
    file = _file(experiment, bundle, teacher)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, {"format": FORMAT, "cost": asdict(cost)})
    except (OSError, FedstillError):
        _log.info("%s cannot be written: what was measured is not kept", file, exc_info=True)
    return cost


def _file(experiment: Experiment, bundle: Bundle, teacher: str | None) -> Path:
    """By everything that can change what is measured."""
    settings = experiment.model_dump(mode="json", exclude=_LEFT_OUT)
    settings["method"] = {name: value for name, value in settings["method"].items() if name != "labels"}
    parts, _ = parts_of(experiment)
    facts = {
        "settings": settings,
        "teachers": [teacher, *(one.model for one in experiment.teachers)],
        "data": [bundle.kind, bundle.shape, len(bundle.classes), experiment.points],
        "samples of a client": samples_of_a_client(experiment, len(bundle.train)),
        "made with": [
            FORMAT,
            BEHAVIOUR,
            sorted(f"{part} {parts[part]}" for part in parts if not part.startswith(_NO_PARTS)),
            torch.__version__,
            cpu_kind(),
            "one thread",
        ],
    }
    if between_peers(experiment):
        facts["peers"] = experiment.model_dump(mode="json", include={"partition", "queries", "clients"})
    digest = blake2b(json.dumps(facts, sort_keys=True, default=str).encode(), digest_size=12).hexdigest()
    return cache_folder().parent / "estimates" / f"{digest}.json"
