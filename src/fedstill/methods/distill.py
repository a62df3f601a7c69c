"""Distillation: a student learns from teachers on proxy data.

It runs as centralised training does: one client holds the proxy, a round is an epoch, the optimiser's moments are kept
and the rate's schedule runs over all epochs of a student. What is minimised is the objective (see `distillation/`),
whose terms are in the journal one by one.

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
from fedstill.core.numbers import count
from fedstill.core.protocols import Abstain, Client, Meter, Method, Profile, Reply, Shape, Turn
from fedstill.core.settings import Settings
from fedstill.core.streams import Streams
from fedstill.core.task import Output, Tensors
from fedstill.distillation import Objective
from fedstill.distillation.acquaintance import Widths, check_objective, introduce, term_names
from fedstill.distillation.labels import LabelMode, under_labels
from fedstill.distillation.teaching import Lectures, Teacher, said_by
from fedstill.distillation.words import spoken, words
from fedstill.methods.base import MODEL, MODEL_EGRESS, WORK_EGRESS, methods, same_as, work_expected, work_report
from fedstill.tasks.classification import Classification

ADAPTERS = "adapters/"


def before(generation: int) -> str:
    """Where state and request keep the student of the generation before, who teaches this one."""
    return f"before/{generation}/"


def moments(generation: int) -> str:
    """Where the client keeps its optimiser; by generation, so that no student starts with another one's."""
    return f"optimiser/{generation}/"


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
        "rounds": 150,
        "objective": "vanilla",
        "training": {"epochs": 1, "keep_optimiser": True},
    }
    # Some objectives are large numbers (squared errors of log-probabilities): Adam does not mind, SGD diverges.
    defaults_by_kind: ClassVar = {"image": {"training": {"optimiser": "adam", "rate": 1e-3}}}
    teachers: Sequence[Teacher] = ()
    objective: Objective
    lectures: Lectures

    def taught(self, objective: Objective, teachers: Sequence[Teacher]) -> None:
        """Who teaches, and how; said once, before the run."""
        self.objective = under_labels(objective, self.settings.labels)
        self.teachers, self.lectures = teachers, Lectures(teachers)

    def check(self) -> None:
        check_objective(self.objective, self.task)
        name, least = self.objective.name, self.objective.least_teachers
        if self.teachers and not least:
            raise InputError(f"the objective {name} learns from nobody: leave its teachers out")
        if len(self.teachers) < least:
            raise InputError(
                f"the objective {name} needs {least} teachers or more, and {len(self.teachers)} were named"
            )
        if len(self.teachers) > 1 and least == 1:
            several = "classifier" in self.objective.students
            instead = "choose the objective multi-teacher" if several else "leave all but one out"
            raise InputError(
                f"the objective {name} learns from one teacher, and {len(self.teachers)} were named: {instead}"
            )
        own = self.task.architectures[0]
        if own in {teacher.architecture for teacher in self.teachers} and not self.settings.same_model:
            raise InputError(
                f"the student is the teacher: both are {own}; choose a smaller student, or set method.same_model=true"
            )
        widths = self._widths.teachers
        if self.objective.compares_features and not all(widths):
            silent = self.teachers[widths.index(0)].name
            raise InputError(
                f"the objective {name} compares features, and the teacher {silent} gives none: let it return"
                " (logits, features), or choose an objective on logits, such as vanilla"
            )

    def rounds(self, given: int) -> int:
        return given * self.objective.generations

    def counts(self, round: int, rounds: int) -> bool:
        return round >= rounds - rounds // self.objective.generations

    def start(self, streams: Streams) -> Tensors:
        return self._fresh(streams, 0)

    def prepare(self, state: Tensors, turn: Turn) -> Tensors:
        """A new generation starts here; also late, where the round in which it should have started was lost."""
        generation = turn.round // (turn.rounds // self.objective.generations)
        if not generation or part(state, before(generation)):
            return state
        return {**self._fresh(Streams(turn.streams.seed), generation), **under(before(generation), part(state, MODEL))}

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
        return term_names(self.task, self.objective, self.teachers, self._widths, self.adapters(Streams(0)))

    @cached_property
    def _widths(self) -> Widths:
        return introduce(self.task, self.teachers)

    def adapters(self, streams: Streams, generation: int = 0) -> nn.Module | None:
        student, teacher = self._widths.student, sum(self._widths.teachers)
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
        self.generation, epoch = divmod(turn.round, epochs)
        architecture = client.profile.architecture
        self.model = client.task.build(architecture, request.part(MODEL))
        self.adapters = method.adapters(Streams(0), self.generation)
        learnt = list(self.model.parameters())
        if self.adapters is not None:
            load_state(self.adapters, request.part(ADAPTERS))
            learnt += self.adapters.to(learnt[0].device).parameters()
        self.optimiser = training.make_optimiser(learnt)
        if (slow := getattr(self.model, "slow_parameters", None)) is not None:
            self.optimiser.slow_down(list(slow()), training.encoder_rate)
        if training.keep_optimiser:
            self.optimiser.load(part(client.state, moments(self.generation)))
        self.optimiser.rate = training.rate_in(epoch, epochs)
        taught_by = request.part(before(self.generation))
        self.before = Teacher("before", architecture, client.task.build(architecture, taught_by)) if taught_by else None
        self.labelled = client.data.labels() is not None

    @property
    def asks(self) -> int:
        """How many teachers speak to it anew of every sample; remembered lectures are no work (see `Lectures`)."""
        if self.before is not None:
            return 1
        return len(self.method.teachers) if self.client.task.augments else 0

    def learner(self, voice: str) -> Learner:
        """Listens to what was said under this name."""

        def loss(output: Output, batch: Batch, said: Mapping[str, Tensor]) -> Terms:
            # Without a teacher (`labels-only`) it is its own, whom it does not listen to.
            teacher = spoken(said, voice) if said else output
            labels = batch["labels"].to(output.logits.device) if self.labelled else None
            return self.method.objective.terms(output, teacher, labels, self.adapters)

        return Learner(self.model, loss, self.optimiser, self.client.streams)

    def conclude(self, trained: Trained) -> Message:
        if trained.steps == 0:
            raise Abstain(f"no step: no batch of at least two in {count(len(self.client.data), 'sample')}")
        if self.method.training.keep_optimiser:
            self.client.state = under(moments(self.generation), self.optimiser.moments())
        beside = {} if self.adapters is None else under(ADAPTERS, state_of(self.adapters))
        report = work_report(trained, self.method.terms)
        return Message({**under(MODEL, state_of(self.model)), **beside, **report})


def together(students: Sequence[Student]) -> list[Message]:
    """One epoch of students that share proxy, teachers, seed and schedule: the teachers speak once per batch.

    Each student gets the bits it would get alone, and its client counts the work it would do alone.
    """
    _check_agreement(students)
    method, client = students[0].method, students[0].client
    # Where some of them may see labels, batches have labels; the others are not shown them.
    data = next((student.client.data for student in students if student.labelled), client.data)
    voices = ["" if student.before is None else f"{number}/" for number, student in enumerate(students)]

    def speak(batch: Batch) -> Mapping[str, Tensor]:
        said: dict[str, Tensor] = {}
        if not method.teachers:
            return said
        if "" in voices and client.task.augments:
            said |= named("", said_by(method.teachers, client.task, batch))
        elif "" in voices:
            said |= method.lectures.of(client.task, data, batch)
        for voice, student in zip(voices, students, strict=True):
            if student.before is not None:
                said |= named(voice, said_by([student.before], client.task, batch))
        return said

    training, meter = method.training, Meter()
    results = fit(
        [student.learner(voice) for student, voice in zip(students, voices, strict=True)],
        client.task,
        data,
        Schedule(range(training.epochs), training.batch, training.clip),
        client.streams,
        meter,
        shared=speak,
        augment=client.task.augment,
    )
    samples = meter.backward // len(students)
    for student in students:
        student.client.meter.add(samples * (1 + student.asks), samples)
    return [student.conclude(trained) for student, trained in zip(students, results, strict=True)]


def named(voice: str, output: Output) -> dict[str, Tensor]:
    return {f"{voice}{name}": tensor for name, tensor in words(output).items()}


def _check_agreement(students: Sequence[Student]) -> None:
    if any(_lesson(student) != _lesson(students[0]) for student in students):
        raise ValueError("students that learn together need the same proxy, teachers, round, seed and schedule")


def _lesson(student: Student) -> tuple[object, ...]:
    """What must be the same for all, or one would hear what was said to another. Teachers are whom they are, not what
    they are called: two runs of one method may have names and models in common."""
    method, task = student.method, student.client.task
    assert isinstance(task, Classification)
    return (
        student.client.streams,
        len(student.client.data),
        (method.settings.proxy, method.settings.share),
        (task.shape, task.augmentation),
        [id(teacher) for teacher in method.teachers],
        (method.training.epochs, method.training.batch, method.training.clip),
    )
