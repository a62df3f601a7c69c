"""Distillation: a student learns from teachers on proxy data.

It runs as centralised training does: one client holds the proxy, a round is an epoch, the optimiser's moments are kept
and the rate's schedule runs over all epochs of a student. What is minimised is the objective (see `distillation/`), whose
terms are in the journal one by one.

An objective with several generations (`self`) trains that many students in a row; each but the last becomes the teacher
of the next. `rounds` are the epochs of each generation, and only the last one's models count as best or selected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from fedstill.core.dataset import Batch
from fedstill.core.egress import Egress
from fedstill.core.errors import InputError
from fedstill.core.fit import Learner, Schedule, Terms, Trained, fit
from fedstill.core.kinds import load_state, state_of
from fedstill.core.message import Message, part, under
from fedstill.core.protocols import Abstain, Client, Method, Profile, Reply, Shape, Turn
from fedstill.core.settings import Settings
from fedstill.core.streams import Streams
from fedstill.core.task import Output, Tensors
from fedstill.distillation import Objective
from fedstill.distillation.labels import LabelMode, under_labels
from fedstill.distillation.teaching import Lectures, Teacher, said_by
from fedstill.methods.base import MODEL, MODEL_EGRESS, WORK_EGRESS, methods, same_as, work_expected, work_report

ADAPTERS, BEFORE, MOMENTS = "adapters/", "before/", "optimiser/"


class DistillationSettings(Settings):
    labels: LabelMode = Field("use", description="use them; no-ce: without cross-entropy; withhold: hand over none")
    proxy: str | None = Field(None, description="data set to distil on; left out, the training split")
    share: float = Field(1.0, gt=0, le=1, description="of the proxy data, drawn evenly from its classes")
    same_model: bool = Field(False, description="allow a student of the teacher's own architecture")


@methods.register("distill")
class Distillation(Method):
    """A student learns from teachers on proxy data; a round is an epoch."""

    name = "train"
    egress = (*MODEL_EGRESS, *WORK_EGRESS, Egress("adapters/*", "parameters", "what is learnt beside the student"))
    Options = DistillationSettings
    settings: DistillationSettings
    needs = frozenset({"one-architecture", "features", "teacher"})
    pooled = True
    shares = "student"
    defaults: ClassVar = {
        "rounds": 80,
        "objective": "vanilla",
        "training": {"epochs": 1, "keep_optimiser": True, "optimiser": "adam", "rate": 1e-3},
    }
    teachers: Sequence[Teacher] = ()
    objective: Objective

    def taught(self, objective: Objective, teachers: Sequence[Teacher]) -> None:
        """Who teaches, and how; said once, before the run."""
        self.objective = under_labels(objective, self.settings.labels)
        self.teachers, self.lectures = teachers, Lectures(teachers)

    def check(self) -> None:
        name, least = self.objective.name, self.objective.least_teachers
        if len(self.teachers) < least:
            raise InputError(
                f"the objective {name} needs {least} teachers or more, and {len(self.teachers)} were named"
            )
        if len(self.teachers) > 1 and least == 1:
            raise InputError(
                f"the objective {name} learns from one teacher, and {len(self.teachers)} were named: choose the"
                " objective multi-teacher"
            )
        own = self.task.architectures[0]
        if own in {teacher.architecture for teacher in self.teachers} and not self.settings.same_model:
            raise InputError(
                f"the student is the teacher: both are {own}; choose a smaller student, or set method.same_model=true"
            )

    def rounds(self, given: int) -> int:
        return given * self.objective.generations

    def counts(self, round: int, rounds: int) -> bool:
        return round >= rounds - rounds // self.objective.generations

    def start(self, streams: Streams) -> Tensors:
        return self._fresh(streams, 0)

    def prepare(self, state: Tensors, turn: Turn) -> Tensors:
        generation, epoch = divmod(turn.round, turn.rounds // self.objective.generations)
        if epoch or not generation:
            return state
        root = Streams(turn.streams.seed)
        return {**self._fresh(root, generation), **under(BEFORE, part(state, MODEL))}

    def request(self, state: Tensors, who: Profile, turn: Turn) -> Message | None:
        return Message(state)

    def reply(self, client: Client, request: Message, turn: Turn) -> Message:
        (message,) = together([Student(self, client, request, turn)])
        return message

    def expect(self, state: Tensors, who: Profile, request: Message) -> Mapping[str, tuple[Shape, torch.dtype]]:
        learnt = {name: tensor for name, tensor in state.items() if name.startswith((MODEL, ADAPTERS))}
        return {**same_as(learnt), **work_expected(self.terms)}

    def merge(self, state: Tensors, replies: Sequence[Reply], turn: Turn) -> Tensors:
        (reply,) = replies
        return {**state, **{name: tensor for name, tensor in reply.message.items() if name in state}}

    def models(self, server: Tensors) -> Mapping[str, Tensors]:
        return {self.task.architectures[0]: part(server, MODEL)}

    @cached_property
    def terms(self) -> tuple[str, ...]:
        """The names of the objective's loss terms, from a batch that means nothing."""
        adapters = self.adapters(Streams(0))
        words = torch.full((2, len(self._probe[0].logits[0])), 0.5).log()
        student, teacher = (Output(words, torch.eye(2, probe.features.shape[1])) for probe in self._probe)
        return tuple(self.objective.terms(student, teacher, torch.tensor([0, 1]), adapters))

    @cached_property
    def _probe(self) -> tuple[Output, Output]:
        """What student and teachers say of an empty input, for the widths of their features."""
        shape = self.task.shape
        own = self.task.architectures[0]
        blank = {"inputs": torch.linspace(-1, 1, 2 * torch.Size(shape).numel()).reshape(2, *shape)}
        student = Teacher("student", own, self.task.build(own))
        return said_by([student], self.task, blank), said_by(self.teachers, self.task, blank)

    def adapters(self, streams: Streams, generation: int = 0) -> nn.Module | None:
        student, teacher = (output.features.shape[1] for output in self._probe)
        with streams.ambient("adapters"):
            return self.objective.adapters(student, student if generation else teacher)

    def _fresh(self, streams: Streams, generation: int) -> Tensors:
        """A new student, and what is learnt beside it."""
        architecture = self.task.architectures[0]
        own = streams.at("model", architecture) if not generation else streams.at("model", architecture, generation)
        adapters = self.adapters(own, generation)
        beside = {} if adapters is None else under(ADAPTERS, state_of(adapters))
        return {**under(MODEL, state_of(self.task.build(architecture, streams=own))), **beside}


class Student:
    """One student in a lesson: its method, the client that holds the proxy, and what that client was sent."""

    def __init__(self, method: Distillation, client: Client, request: Message, turn: Turn) -> None:
        self.method, self.client, training = method, client, method.training
        epochs = turn.rounds // method.objective.generations
        generation, epoch = divmod(turn.round, epochs)
        self.model = client.task.build(client.profile.architecture, request.part(MODEL))
        self.adapters = method.adapters(Streams(0), generation)
        if self.adapters is not None:
            load_state(self.adapters, request.part(ADAPTERS))
        beside = [] if self.adapters is None else list(self.adapters.parameters())
        self.optimiser = training.make_optimiser([*self.model.parameters(), *beside])
        if training.keep_optimiser and epoch:
            self.optimiser.load(part(client.state, MOMENTS))
        self.optimiser.rate = training.rate_in(epoch, epochs)
        before = request.part(BEFORE)
        architecture = client.profile.architecture
        self.before = Teacher("before", architecture, client.task.build(architecture, before)) if before else None

    def learner(self) -> Learner:
        return Learner(self.model, self.loss, self.optimiser, self.client.streams)

    def loss(self, output: Output, batch: Batch, shared: Mapping[str, Tensor]) -> Terms:
        whose = f"{id(self)}/" if self.before else ""
        teacher = Output(shared[f"{whose}logits"], shared[f"{whose}features"])
        return self.method.objective.terms(output, teacher, batch.get("labels"), self.adapters)

    def conclude(self, trained: Trained) -> Message:
        if trained.steps == 0:
            raise Abstain(f"no step: {len(self.client.data)} sample(s) make no batch of at least two")
        if self.method.training.keep_optimiser:
            self.client.state = {**self.client.state, **under(MOMENTS, self.optimiser.moments())}
        beside = {} if self.adapters is None else under(ADAPTERS, state_of(self.adapters))
        report = work_report(trained, self.method.terms)
        return Message({**under(MODEL, state_of(self.model)), **beside, **report})


def together(students: Sequence[Student]) -> list[Message]:
    """One epoch of students that share proxy, teachers, seed and schedule: the teachers speak once per batch.

    Each student gets the bits it would get alone.
    """
    first = students[0]
    method, client = first.method, first.client
    learners = [student.learner() for student in students]
    changing = client.task.augments

    def shared(batch: Batch) -> Mapping[str, Tensor]:
        said: dict[str, Tensor] = {}
        if any(student.before is None for student in students):
            if changing:
                client.meter.add(len(batch["sample_id"]) * len(method.teachers))
                output = said_by(method.teachers, client.task, batch)
                said |= {"logits": output.logits, "features": output.features}
            else:
                said |= method.lectures.of(client.task, client.data, batch)
        for student in students:
            if student.before is not None:
                output = said_by([student.before], client.task, batch)
                said |= {f"{id(student)}/logits": output.logits, f"{id(student)}/features": output.features}
        return said

    training = method.training
    results = fit(
        learners,
        client.task,
        client.data,
        Schedule(range(training.epochs), training.batch, training.clip),
        client.streams,
        client.meter,
        shared=shared,
        augment=client.task.augment,
    )
    return [student.conclude(trained) for student, trained in zip(students, results, strict=True)]
