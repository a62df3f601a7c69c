"""One client of a finished run queries the others for classes: teachers, training and cost.

The run's clients must have personal models (local-only, ditto, ...). The run is not changed: the client's new model
becomes a separate run. Models from outside a run are queried in the same way (see `offers.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fedstill.core.dataset import class_counts
from fedstill.core.errors import InputError
from fedstill.core.hardware import one_thread
from fedstill.core.kinds import state_of
from fedstill.core.message import Message, part, under
from fedstill.core.protocols import Client, RoundContext
from fedstill.data.bundle import class_number
from fedstill.methods import methods
from fedstill.methods.base import MODEL
from fedstill.models.classifier import Classifier
from fedstill.queries.gain_curve import CurvePoint, GainCurve
from fedstill.queries.guard import choice_in, collapse_warning
from fedstill.queries.peers import QUERY
from fedstill.queries.probe import Probed, tabulated
from fedstill.queries.probe_rule import NearMiss, no_teacher
from fedstill.queries.qkt import QKT, NaiveKD, QKTSettings, QueryTransfer
from fedstill.queries.qkt_light import LightSettings, QKTLight
from fedstill.queries.query import Answered, recalls
from fedstill.queries.query_records import QueriedModel
from fedstill.queries.query_result import experiment_of, keep, settings_of
from fedstill.queries.transfer_loss import QueryObserver
from fedstill.runtime.experiment import Experiment, choose
from fedstill.runtime.plan import Simulation, make_plan
from fedstill.runtime.result import Run

QueryMethod = QKT | NaiveKD | QKTLight  # the methods by which one client can query the others


class Queried(Protocol):
    """What a query needs of those it asks: a run has it, and so have offered models."""

    @property
    def path(self) -> Path: ...

    @property
    def sha256(self) -> str: ...

    @property
    def experiment(self) -> Experiment: ...

    def built(self, *, client: int) -> nn.Module: ...


@dataclass
class Asked:
    """The result of a query.

    `probe` has tables of clients and classes: each model's outputs on noise, and the true fraction of each class in its
    client's data.
    """

    run: Queried
    plan: Simulation
    client: int
    fate: Answered
    probe: Probed
    teachers: tuple[int, ...]
    before: Classifier
    model: Classifier
    epochs: list[tuple[str, int, float]] = field(default_factory=list)  # phase, epochs done, average accuracy
    traffic: dict[str, int] = field(default_factory=dict)  # bytes that the client sends and receives
    settings: dict[str, Any] = field(default_factory=dict)
    curve: list[CurvePoint] = field(default_factory=list)  # gain and forgetting after every epoch of every attempt
    choice: dict[str, float] | None = None  # lambda, epochs and points forgotten, with a limit on forgetting
    names: tuple[str, ...] = ()  # of the asker and its peers, where they are no clients of a run
    offered: tuple[QueriedModel, ...] = ()  # the models that were asked, where they are no clients of a run

    def name(self, client: int) -> str:
        """A client as tables name it."""
        return self.names[client] if self.names else str(client)

    def reported(self, client: int, number: int) -> float | None:
        """The recall of a class that a peer reports of its own held-out data."""
        return self.offered[client - 1].recall.get(number) if self.offered and client else None

    def no_teacher(self) -> list[str]:
        """Of each queried class without a teacher: the rule, the nearest peers, and the setting that admits one."""
        if len(self.probe.clients) < 2:
            return [f"there is no peer to ask for {' or '.join(self.classes[number] for number in self.fate.query)}"]
        rule = self.probe.rule
        return [no_teacher(rule, self.classes[number], near, self.name) for number, near in self.unmatched.items()]

    @property
    def unmeasured(self) -> tuple[int, ...]:
        """Queried classes of which there are no held-out samples: what was gained of them is not known."""
        there = class_counts(self.plan.bundle.test, len(self.classes))
        return tuple(number for number in self.fate.query if not int(there[number]))

    @property
    def classes(self) -> tuple[str, ...]:
        return self.plan.task.classes

    @property
    def answered(self) -> bool:
        return bool(self.teachers)

    @property
    def learnt(self) -> bool:
        """Whether the client has a new model: there are teachers, and a limit on forgetting left an epoch to keep."""
        return self.answered and (self.choice is None or self.choice["epochs"] > 0)

    @property
    def warning(self) -> str | None:
        """The own classes that collapsed, with numbers; None if none did."""
        return collapse_warning(self.fate, self.classes)

    @property
    def unmatched(self) -> dict[int, list[NearMiss]]:
        """The queried classes that no peer knows by the probe's rule, each with the peers that come nearest to it."""
        return self.probe.unmatched(self.fate.query, self.client)

    def keep(self, out: str | Path = "runs") -> Run:
        """Store the client's new model as a run, which can be shown, exported and used like any other."""
        return keep(self, Path(out))


@dataclass(frozen=True)
class CheckedQuery:
    """A validated query that has not been executed yet."""

    run: Queried
    plan: Simulation
    client: int
    wanted: tuple[int, ...]
    method: QueryMethod

    def examine(self) -> Asked:
        """The probe of all models, and who would teach; nothing is trained."""
        with one_thread():
            return _examined(self)[0]

    @property
    def experiment(self) -> Experiment:
        """The experiment that is stored with the result."""
        return experiment_of(self.run, self.client, self.wanted, settings_of(self.method))


def make_question(
    run: str | Path | Run,
    client: int,
    classes: str | int | Sequence[str | int],
    settings: Mapping[str, Any],
    method: str = "qkt",
    data_root: str | Path | None = None,
    device: str = "cpu",
) -> CheckedQuery:
    """Validate a query; refuses queries that are not possible."""
    held = Run.of(run)
    plan = _plan(held, None if data_root is None else Path(data_root), device)
    if not 0 <= client < len(plan.profiles):
        raise InputError(f"there is no client {client} in {held.path}: clients are 0 to {len(plan.profiles) - 1}")
    return checked_query(held, plan, client, classes, settings, method)


def checked_query(
    run: Queried,
    plan: Simulation,
    client: int,
    classes: str | int | Sequence[str | int],
    settings: Mapping[str, Any],
    method: str,
) -> CheckedQuery:
    """A query whose classes and settings are validated for the plan."""
    several = [classes] if isinstance(classes, str | int) else classes
    wanted = tuple(sorted({class_number(name, plan.task.classes) for name in several}))
    return CheckedQuery(run, plan, client, wanted, _method(method, settings, plan))


def look(run: Run, settings: Mapping[str, Any], data_root: Path | None = None, device: str = "cpu") -> Probed:
    """Probe every client's model, as any of them would before a query; nothing is trained."""
    plan = _plan(run, data_root, device)
    method = _method("qkt", settings, plan)
    models = _own_models(run, plan)
    with one_thread():
        probe = _probes(plan, method.settings, models, 0)
        return replace(probe, recalls=torch.stack([_recalls(plan, one) for one in models.values()]).numpy())


def _probes(plan: Simulation, settings: QKTSettings, models: dict[int, nn.Module], client: int) -> Probed:
    """Each model's outputs on noise, computed by a client, and the fraction of each class in its client's data."""
    student = _client(plan, client, state_of(models[client]), ())
    counts = torch.stack([_counts(plan, who.id) for who in plan.profiles])
    transfer = QueryTransfer(student, settings, plan.experiment.training)
    outputs = {number: transfer.probed(number, one) for number, one in models.items()}
    return tabulated(outputs, plan.task.classes, counts.double().numpy(), settings.rule)


def _own_models(run: Queried, plan: Simulation) -> dict[int, nn.Module]:
    return {who.id: run.built(client=who.id).to(plan.task.device) for who in plan.profiles}


def answer(question: CheckedQuery, observers: Sequence[QueryObserver] = ()) -> Asked:
    """Run the query and the client's training; its accuracy is measured after every epoch."""
    with one_thread():
        return _answered(question, observers)


def _examined(question: CheckedQuery) -> tuple[Asked, Client, dict[int, nn.Module]]:
    """The query before any training: who would teach; the client, and everybody's model."""
    run, plan, client = question.run, question.plan, question.client
    wanted, method = question.wanted, question.method
    models = _own_models(run, plan)
    before = models[client]
    if not isinstance(before, Classifier):
        raise InputError(
            "classes can be asked for where each sample has one, and of models with a head: name the last layer of your"
            " own model, e.g. head='fc'"
        )
    counts = _counts(plan, client)
    student = _client(plan, client, state_of(before), wanted)
    probe = _probes(plan, method.settings, models, client)
    peers = {number: one for number, one in models.items() if number != client}
    teachers = QueryTransfer(student, method.settings, method.training).teachers(peers)
    known = tuple(number for number, one in peers.items() if any(one is teacher for teacher in teachers))
    recalled = _recalls(plan, before)
    fate = Answered(recalled, recalled, counts, wanted)
    asked = Asked(run, plan, client, fate, probe, known, before, before)
    asked.settings = settings_of(method)
    return asked, student, models


def _answered(question: CheckedQuery, observers: Sequence[QueryObserver]) -> Asked:
    asked, student, models = _examined(question)
    if not asked.answered:
        return asked
    plan, client, wanted, fate = question.plan, question.client, question.wanted, asked.fate
    peers = {number: one for number, one in models.items() if number != client}
    recalled, counts = fate.before, fate.counts
    start = ("before", 0, fate.accuracy(recalled))
    curve = GainCurve(question.method.settings.query_weight, fate, asked.curve)

    def watched(phase: str, epoch: int, now: nn.Module) -> None:
        found = _recalls(plan, now)
        if curve.add(phase, epoch, found):
            asked.epochs[:] = [start]
        asked.epochs.append((phase, epoch, fate.accuracy(found)))
        for observer in observers:
            observer.epoch(*asked.epochs[-1])

    question.method.learn(student, peers, _turn(plan), watched)
    asked.choice = choice_in(student.state)
    learnt = plan.task.build(plan.profiles[client].architecture, part(student.state, MODEL))
    assert isinstance(learnt, Classifier)
    asked.model, asked.fate = learnt, Answered(recalled, _recalls(plan, learnt), counts, wanted)
    sizes = {number: Message(state_of(one)).nbytes for number, one in models.items()}
    asked.traffic = {"up": sizes[client], "down": sum(size for number, size in sizes.items() if number != client)}
    return asked


def _plan(run: Run, data_root: Path | None, device: str) -> Simulation:
    if not run.finished:
        raise InputError(f"the run {run.path} is not finished: run the same command again to go on")
    plan = make_plan(run.experiment, data_root, device)
    if not plan.method.personal:
        raise InputError(
            f"the clients of {run.path} have no models of their own: ask in a run of local-only, ditto or another"
            " method that gives them some"
        )
    if plan.fingerprint != run.config["fingerprint"]:
        raise InputError(f"{run.experiment.data} is not the data that {run.path} was trained on")
    return plan


def _method(name: str, settings: Mapping[str, Any], plan: Simulation) -> QueryMethod:
    kind = methods[name]
    if not issubclass(kind, QueryMethod):
        raise InputError(f"{name} does not answer one client's query: choose qkt, qkt-light or naive-kd")
    method: QueryMethod = kind(
        choose("method", {"name": name, **settings}).settings, plan.task, plan.experiment.training
    )
    if isinstance(method.settings, LightSettings) and method.settings.first_phase != "student":
        raise InputError("one client asks: set first_phase to student")
    if method.settings.tune:
        raise InputError(
            "tune stops by samples that a client is shown in a study, and one that asks in a finished run is shown"
            " none: leave it out"
        )
    method.check()
    return method


def _client(plan: Simulation, number: int, model: dict[str, Tensor], wanted: tuple[int, ...]) -> Client:
    flags = torch.zeros(len(plan.task.classes), dtype=torch.bool)
    flags[list(wanted)] = True
    return plan.clients(plan.profiles[number], {**under(MODEL, model), QUERY: flags}, _turn(plan))


def _turn(plan: Simulation) -> RoundContext:
    """The round context of the first transfer of a run."""
    return RoundContext.of(plan.streams, 0, 1, len(plan.profiles), "transfer")


def _counts(plan: Simulation, client: int) -> Tensor:
    return class_counts(plan.clients.shards.of(plan.clients.data, client), len(plan.task.classes))


def _recalls(plan: Simulation, model: nn.Module) -> Tensor:
    return recalls(plan.task.score([model], plan.bundle.test)["confusion"])
