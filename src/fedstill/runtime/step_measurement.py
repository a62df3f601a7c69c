"""What parts of a run cost, measured in rehearsals: runs of few steps in a temporary folder.

A rehearsal has one client, or as few as the method allows, a few batches of the data, and few rounds. It takes nothing
from the streams of the run that it stands for, so no result depends on it. Where a round is cheap, several rehearsals
that differ in one thing tell what is paid by step, batch, client and round; where it is dear, its steps are nearly all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path
from time import process_time
from typing import Any

import torch

from fedstill.core.dataset import Subset
from fedstill.core.errors import InputError
from fedstill.core.kinds import state_of
from fedstill.core.memory import measured_peak
from fedstill.core.message import Message
from fedstill.data.bundle import Bundle
from fedstill.engines import make_engine
from fedstill.methods import methods
from fedstill.runtime.experiment import Experiment, TeacherSource, choose
from fedstill.runtime.plan import Simulation, make_plan
from fedstill.runtime.run import execute
from fedstill.runtime.run_load import StepCost, held_samples

_BATCHES, _MORE_BATCHES = 2, 6  # of a client in a rehearsal
_ROUNDS, _EVALUATED = 5, 4  # of a rehearsal, and the one that is evaluated
_TEST, _FEWER = 128, 48  # samples; a few do not show what evaluation costs for each client
_PROBE = {"batches": 1, "tested": _FEWER, "rounds": 3}  # of the first one
_CHEAP = 0.1  # CPU seconds of a batch below which further rehearsals tell steps from the rest
_FEWEST, _MOST, _ENOUGH = 6, 40, 0.4  # epochs of one of them, and the CPU seconds that they should take
_MORE_CLIENTS = 4  # times as many as at least
_CLIENTS = (1, 2, 5)  # methods differ in how few they allow
_PEERS = (5, 10, 1000)  # of those that learn from each other; the more, the more of them answer
_ENDLESS = 10**6  # epochs of patience
_PLAIN = {"partition": "iid", "participation": "everyone", "dropout": "none"}


def between_peers(experiment: Experiment) -> bool:
    """Whether clients learn once, from each other: all is in one round, and depends on which classes they lack."""
    return experiment.rounds == 1 and getattr(methods[experiment.method.name], "personal", False) is True


def samples_of_a_client(experiment: Experiment, train: int) -> int:
    """In a rehearsal: as many as in the run, if these are few."""
    return min(_BATCHES * experiment.training.batch, ceil(held_samples(experiment, train)))


def measure_cost(experiment: Experiment, bundle: Bundle, teacher: str | None, folder: Path) -> StepCost:
    """Measured now, with as few clients as the method allows; refused where it allows no rehearsal."""
    patience = getattr(experiment.method, "patience", None)
    if patience is not None:  # a run that stops early costs less
        method = experiment.method.model_copy(update={"patience": _ENDLESS})
        experiment = experiment.model_copy(update={"method": method})
    rehearsals = _Rehearsals(experiment, bundle, teacher, folder)
    last = None
    peers = between_peers(experiment)
    for clients in sorted({min(number, experiment.clients) for number in (_PEERS if peers else _CLIENTS)}):
        try:
            return rehearsals.between_peers(clients) if peers else rehearsals.in_rounds(clients)
        except InputError as error:  # too few
            last = error
    assert last is not None
    raise last


@dataclass(frozen=True)
class _Rehearsed:
    """CPU seconds of a rehearsal's rounds and of the rest of it; and how much it had of what."""

    rounds: Sequence[float]
    once: float
    models: int  # that are evaluated
    batches: int
    tested: int

    @property
    def round(self) -> float:
        """Of one without evaluation; the first warms caches up."""
        return min(self.rounds[1 : self._evaluated])

    @property
    def evaluation(self) -> float:
        return max(0.0, self.rounds[self._evaluated] - self.round)

    @property
    def _evaluated(self) -> int:
        return min(_EVALUATED, len(self.rounds)) - 1


@dataclass
class _Rehearsals:
    """Rehearsals of an experiment, each in a folder of its own below this one."""

    experiment: Experiment
    bundle: Bundle
    teacher: str | None
    folder: Path
    made: list[str] = field(default_factory=list)

    def in_rounds(self, clients: int) -> StepCost:
        """Of a run of several rounds, or of one in which the server makes a model of all clients' replies."""
        how = _PROBE
        with measured_peak() as peak:
            few = self.rehearse(clients, **how)
            if cheap := few.round < _CHEAP * few.batches:
                how = {}
                few = self.rehearse(clients)
        plain, server = few.round, 0.0
        several = min(_MORE_CLIENTS * clients, self.experiment.clients)
        # On samples that are shared the server trains, too, however many clients there are.
        if several > clients and (cheap or "shared samples" in methods[self.experiment.method.name].wants):
            each = max(0.0, self.rehearse(several, **how).round - plain) / (several - clients)
            server = max(0.0, plain - clients * each)
            plain -= server
        step, batch = self._step_and_batch(few, clients) if cheap else (plain / few.batches, 0.0)
        client = max(0.0, plain - few.batches * (step + batch)) / clients
        sample = few.evaluation / (few.models * few.tested)
        return StepCost(step, client, sample, few.once, peak.bytes, batch, server)

    def _step_and_batch(self, few: _Rehearsed, clients: int) -> tuple[float, float]:
        """CPU seconds of a step; and of a batch, however many steps are taken on it."""
        epochs = min(_MOST, max(_FEWEST, round(_ENOUGH / max(few.round, _ENOUGH / _MOST))))
        more = self.rehearse(clients, epochs=epochs)
        step = max(0.0, more.round - few.round) / (few.batches * (epochs - 1))
        if held_samples(self.experiment, len(self.bundle.train)) <= _BATCHES * self.experiment.training.batch:
            return step, 0.0  # it is among what is paid by client
        longer = self.rehearse(clients, batches=_MORE_BATCHES)
        further = max(1, longer.batches - few.batches)
        return step, max(0.0, (longer.round - few.round) / further - step)

    def between_peers(self, clients: int) -> StepCost:
        """From runs of one round that differ in one thing: samples tested, epochs, and samples that clients hold."""
        with measured_peak() as peak:
            self.rehearse(clients, tested=_FEWER)
            plain = self.rehearse(clients, tested=_FEWER)
            tested = self.rehearse(clients)
            epochs = self.rehearse(clients, epochs=1 + _FEWEST, tested=_FEWER)
            batches = self.rehearse(clients, batches=3 * _BATCHES, tested=_FEWER)

        def beside(other: _Rehearsed) -> float:
            return max(0.0, sum(other.rounds) - sum(plain.rounds))

        step = beside(epochs) / (epochs.batches * _FEWEST)
        batch = max(0.0, beside(batches) / max(1, batches.batches - plain.batches) - step)
        client = max(0.0, sum(plain.rounds) - plain.batches * (step + batch)) / clients
        sample = beside(tested) / ((1 + clients) * max(1, tested.tested - plain.tested))
        return StepCost(step, client, sample, plain.once, peak.bytes, batch)

    def rehearse(
        self, clients: int, epochs: int = 1, batches: int = _BATCHES, tested: int = _TEST, rounds: int = _ROUNDS
    ) -> _Rehearsed:
        plan = self._plan(self._changes(clients, epochs, rounds), clients, batches, tested)
        self.made.append(f"rehearsal-{len(self.made)}")
        began = process_time()
        with make_engine("in-process", 1, "cpu") as engine:
            made = execute(plan, engine, self.folder / self.made[-1], clock=process_time)
        seconds = made.timing()["rounds"]
        once = max(0.0, process_time() - began - sum(seconds))
        batches = sum(max(1, ceil(profile.samples / self.experiment.training.batch)) for profile in plan.profiles)
        models = 1 + (clients if plan.method.personal else 0)
        return _Rehearsed(seconds, once, models, batches, len(plan.bundle.test))

    def _plan(self, changes: Mapping[str, Any], clients: int, batches: int, tested: int) -> Simulation:
        """Clients have that many batches at most, and no more samples than in the run unless they have more batches."""
        experiment, train = self.experiment, self.bundle.train
        held = batches * experiment.training.batch
        if batches <= _BATCHES and not between_peers(experiment):
            held = min(held, samples_of_a_client(experiment, len(train)))
        part = replace(
            self.bundle,
            train=Subset(train, _evenly(len(train), clients * held)),
            test=Subset(self.bundle.test, _evenly(len(self.bundle.test), tested)),
            validation=None,
        )
        return make_plan(experiment.model_copy(update=changes), bundle=replace(part, sites=0, sources={}))

    def _changes(self, clients: int, epochs: int, rounds: int) -> Mapping[str, Any]:
        changes: dict[str, Any] = {
            "clients": clients,
            "rounds": rounds,
            "evaluate_every": min(rounds, _EVALUATED),
            "min_replies": 1,
            "validation": 0.0,
            "initial": None,
            "training": self.experiment.training.model_copy(update={"epochs": epochs}),
            **{part: choose(part, name) for part, name in _PLAIN.items()},
        }
        if between_peers(self.experiment):
            changes |= {"rounds": 1, "evaluate_every": 1, "partition": self.experiment.partition}
        if self.teacher is not None:
            changes["teachers"] = (self._untrained(self.teacher),)
        return changes

    def _untrained(self, architecture: str) -> TeacherSource:
        """A file of weights that nobody has trained."""
        from fedstill.runtime.plan import make_task

        file = self.folder / "teacher.safetensors"
        if not file.exists():
            model = make_task(self.experiment, self.bundle).build(architecture)
            file.write_bytes(Message({name.partition("/")[2]: one for name, one in state_of(model).items()}).encode())
        return TeacherSource(file=str(file), model=architecture)


def _evenly(size: int, wanted: int) -> torch.Tensor:
    """So many rows, of all classes where these are stored one after the other."""
    rows: torch.Tensor = torch.linspace(0, size - 1, min(size, wanted)).round().to(torch.int64).unique()
    return rows
