"""What a run will cost, in CPU seconds and memory, from a rehearsal of few steps that is measured once on a machine.

A rehearsal is a run of its own in a temporary folder: one client, or as few as the method allows, a few batches of the
data, four rounds. It takes nothing from the streams of the run that it stands for, so no result depends on it. What
was measured is kept in the user's cache folder, under everything that can change it.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from hashlib import blake2b
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

import torch

from fedstill.core.cpu import cpu_kind
from fedstill.core.dataset import Subset
from fedstill.core.errors import FedstillError, InputError
from fedstill.core.files import read_json, write_json
from fedstill.core.hardware import one_thread
from fedstill.core.kinds import state_of
from fedstill.core.memory import measured_peak
from fedstill.core.message import Message
from fedstill.core.numbers import duration, size
from fedstill.data.bundle import Bundle
from fedstill.data.readers.cache import cache_folder
from fedstill.engines import make_engine
from fedstill.methods import methods
from fedstill.runtime.experiment import BEHAVIOUR, Experiment, TeacherSource, choose
from fedstill.runtime.identity import parts_of
from fedstill.runtime.plan import Simulation, make_plan
from fedstill.runtime.run import execute
from fedstill.runtime.run_load import StepCost, load_of

_log = logging.getLogger(__name__)

FORMAT = 3
VARIABLE = "FEDSTILL_ESTIMATES"
_BATCHES, _ROUNDS, _EVALUATED = 2, 5, 4  # of a rehearsal: batches of a client, rounds, and the one that is evaluated
_TEST, _FEWER = 128, 48  # samples; a few do not show what evaluation costs for each client
_CHEAP = 0.2  # CPU seconds of a round below which more epochs are measured, too, to tell steps from the rest
_FEWEST, _MOST, _ENOUGH = 6, 40, 0.4  # epochs of that, and the CPU seconds that they should take
_MORE = 4  # times as many clients, to tell what each costs from the rest of a round
_CLIENTS = (1, 2, 5)  # methods differ in how few they allow
_PEERS = (5, 10, 1000)  # of those that learn from each other; the more, the more of them answer
_ENDLESS = 10**6  # epochs of patience
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
            cost = _rehearsed(experiment, bundle, teacher, Path(folder))
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
        "made with": [
            FORMAT,
            BEHAVIOUR,
            sorted(f"{part} {parts[part]}" for part in parts if not part.startswith(_NO_PARTS)),
            torch.__version__,
            cpu_kind(),
            "one thread",
        ],
    }
    if _between_peers(experiment):
        facts["peers"] = experiment.model_dump(mode="json", include={"partition", "queries", "clients"})
    digest = blake2b(json.dumps(facts, sort_keys=True, default=str).encode(), digest_size=12).hexdigest()
    return cache_folder().parent / "estimates" / f"{digest}.json"


def _rehearsed(experiment: Experiment, bundle: Bundle, teacher: str | None, folder: Path) -> StepCost:
    last = None
    patience = getattr(experiment.method, "patience", None)
    if patience is not None:  # a run that stops early costs less
        method = experiment.method.model_copy(update={"patience": _ENDLESS})
        experiment = experiment.model_copy(update={"method": method})
    peers = _between_peers(experiment)
    for clients in sorted({min(number, experiment.clients) for number in (_PEERS if peers else _CLIENTS)}):
        try:
            if peers:
                return _measured_peers(experiment, bundle, clients, folder)
            plan = _small(experiment, bundle, clients, 1, teacher, folder)
        except InputError as error:
            last = error
            continue
        return _measured(experiment, bundle, clients, plan, teacher, folder)
    assert last is not None
    raise last


def _between_peers(experiment: Experiment) -> bool:
    """Whether clients learn once, from each other: all is in one round, and depends on which classes they lack."""
    return experiment.rounds == 1 and getattr(methods[experiment.method.name], "personal", False) is True


def _small(
    experiment: Experiment,
    bundle: Bundle,
    clients: int,
    epochs: int,
    teacher: str | None,
    folder: Path,
    batches: int = _BATCHES,
    tested: int = _TEST,
) -> Simulation:
    """The plan of a rehearsal."""
    batch = experiment.training.batch
    changes: dict[str, Any] = {
        "clients": clients,
        "rounds": _ROUNDS,
        "evaluate_every": _EVALUATED,
        "min_replies": 1,
        "validation": 0.0,
        "initial": None,
        "training": experiment.training.model_copy(update={"epochs": epochs}),
        **{part: choose(part, name) for part, name in _PLAIN.items()},
    }
    if _between_peers(experiment):
        changes |= {"rounds": 1, "evaluate_every": 1, "partition": experiment.partition}
    if teacher is not None:
        changes["teachers"] = (_untrained(teacher, experiment, bundle, folder),)
    train = _evenly(len(bundle.train), clients * batches * batch)
    test = _evenly(len(bundle.test), tested)
    part = replace(bundle, train=Subset(bundle.train, train), test=Subset(bundle.test, test), validation=None)
    return make_plan(experiment.model_copy(update=changes), bundle=replace(part, sites=0, sources={}))


_PLAIN = {"partition": "iid", "participation": "everyone", "dropout": "none"}


def _evenly(size: int, wanted: int) -> torch.Tensor:
    """So many rows, of all classes where these are stored one after the other."""
    rows: torch.Tensor = torch.linspace(0, size - 1, min(size, wanted)).round().to(torch.int64).unique()
    return rows


def _untrained(architecture: str, experiment: Experiment, bundle: Bundle, folder: Path) -> TeacherSource:
    """A file of weights that nobody has trained."""
    from fedstill.runtime.plan import make_task

    file = folder / "teacher.safetensors"
    if not file.exists():
        model = make_task(experiment, bundle).build(architecture)
        file.write_bytes(Message({name.partition("/")[2]: one for name, one in state_of(model).items()}).encode())
    return TeacherSource(file=str(file), model=architecture)


def _measured(
    experiment: Experiment, bundle: Bundle, clients: int, plan: Simulation, teacher: str | None, folder: Path
) -> StepCost:
    def rounds(plan: Simulation, name: str) -> tuple[Sequence[float], float]:
        began = process_time()
        with make_engine("in-process", 1, "cpu") as engine:
            made = execute(plan, engine, folder / name, clock=process_time)
        seconds = made.timing()["rounds"]
        return seconds, process_time() - began - sum(seconds)

    with measured_peak() as peak:
        (_, *twice, evaluated, _), once = rounds(plan, "few")  # the first round warms caches up
        plain = min(twice)
        evaluation, server = max(0.0, evaluated - plain), 0.0
        several = min(_MORE * clients, experiment.clients)
        if several > clients and (plain < _CHEAP or "shared samples" in methods[experiment.method.name].wants):
            (_, *more, _, _), _ = rounds(_small(experiment, bundle, several, 1, teacher, folder), "several")
            each = max(0.0, min(more) - plain) / (several - clients)
            server = max(0.0, plain - clients * each)
            plain -= server
    steps = sum(max(1, ceil(profile.samples / experiment.training.batch)) for profile in plan.profiles)
    step, client = plain / steps, 0.0
    if plain < _CHEAP:
        epochs = min(_MOST, max(_FEWEST, round(_ENOUGH / max(plain, _ENOUGH / _MOST))))
        (_, *more, _, _), _ = rounds(_small(experiment, bundle, clients, epochs, teacher, folder), "more")
        step = max(0.0, min(more) - server - plain) / (steps * (epochs - 1))
        client = max(0.0, plain - steps * step) / clients
    models = 1 + (clients if plan.method.personal else 0)
    sample = evaluation / (models * len(plan.bundle.test))
    return StepCost(step, client, sample, max(0.0, once), peak.bytes, server=server)


def _measured_peers(experiment: Experiment, bundle: Bundle, clients: int, folder: Path) -> StepCost:
    """From runs of one round that differ in one thing: samples tested, epochs, and samples that clients hold."""
    plans = {
        name: _small(experiment, bundle, clients, epochs, None, folder, batches, tested)
        for name, epochs, batches, tested in (
            ("warm", 1, _BATCHES, _FEWER),
            ("plain", 1, _BATCHES, _FEWER),
            ("tested", 1, _BATCHES, _TEST),
            ("epochs", 1 + _FEWEST, _BATCHES, _FEWER),
            ("batches", 1, 3 * _BATCHES, _FEWER),
        )
    }
    seconds, once = dict[str, float](), dict[str, float]()
    with measured_peak() as peak:
        for name, plan in plans.items():
            began = process_time()
            with make_engine("in-process", 1, "cpu") as engine:
                seconds[name] = sum(execute(plan, engine, folder / name, clock=process_time).timing()["rounds"])
            once[name] = process_time() - began - seconds[name]

    def beside(name: str) -> float:
        return max(0.0, seconds[name] - seconds["plain"])

    def batches(name: str) -> int:
        return sum(max(1, ceil(profile.samples / experiment.training.batch)) for profile in plans[name].profiles)

    step = beside("epochs") / (batches("epochs") * _FEWEST)
    batch = max(0.0, beside("batches") / max(1, batches("batches") - batches("plain")) - step)
    client = max(0.0, seconds["plain"] - batches("plain") * (step + batch)) / clients
    sample = beside("tested") / (
        (1 + clients) * max(1, len(plans["tested"].bundle.test) - len(plans["plain"].bundle.test))
    )
    return StepCost(step, client, sample, max(0.0, once["plain"]), peak.bytes, batch)
