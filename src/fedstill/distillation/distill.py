"""Distillation: a student is trained from teachers on proxy data.

It runs like centralised training: one client holds the proxy data, a round is an epoch, the optimiser's moments are
kept between rounds, and the learning-rate schedule covers all epochs of a student. The student minimises the objective
(see `distillation/`); the journal contains its terms separately.

An objective with several generations (`self`) trains that many students in sequence; each one except the last becomes
the teacher of the next. `rounds` is the number of epochs of each generation, and only models of the last generation can
be best or selected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedstill.core.dataset import Batch, Dataset
from fedstill.core.egress import Egress
from fedstill.core.errors import InputError
from fedstill.core.fit import Learner, Schedule, Terms, Trained, fit
from fedstill.core.kinds import load_state, state_of
from fedstill.core.message import Message, part, under
from fedstill.core.numbers import count
from fedstill.core.protocols import Abstain, Client, JointRequest, Meter, Method, Profile, Reply, RoundContext, Shape
from fedstill.core.streams import Streams
from fedstill.core.task import Output, Task, Tensors
from fedstill.core.training import Training
from fedstill.distillation import Objective
from fedstill.distillation.ceiling import masking_ceiling
from fedstill.distillation.compatibility import Widths, check_compatibility, check_objective, term_names
from fedstill.distillation.label_modes import under_labels
from fedstill.distillation.objective import Softened
from fedstill.distillation.outputs import named_outputs, output_of
from fedstill.distillation.proxy_data import DistillationSettings, proxy_data
from fedstill.distillation.teachers import TeacherCache, TeacherModel, teacher_outputs
from fedstill.methods.base import MODEL, MODEL_EGRESS, WORK_EGRESS, methods, same_as, work_expected, work_report
from fedstill.tasks.classification import Classification

ADAPTERS = "adapters/"


def before(generation: int) -> str:
    """The prefix of the previous generation's student, this generation's teacher, in state and request."""
    return f"before/{generation}/"


def moments(generation: int) -> str:
    """The prefix of the client's optimiser state; each generation starts with a new optimiser."""
    return f"optimiser/{generation}/"


@dataclass(frozen=True)
class Teaching:
    """The teachers and the objective of a student."""

    objective: Objective
    teachers: Sequence[TeacherModel] = ()


@methods.register("distill")
class Distillation(Method):
    """Knowledge distillation: a student is trained from teachers on proxy data; one round is one epoch."""

    name = "train"
    egress = (*MODEL_EGRESS, *WORK_EGRESS, Egress("adapters/*", "parameters", "what is learnt beside the student"))
    Options = DistillationSettings
    settings: DistillationSettings
    needs = frozenset({"one-architecture", "teacher"})
    pooled = True
    shares = "student"
    defaults: ClassVar = {
        "rounds": 150,
        "objective": "vanilla",
        "training": {"epochs": 1, "keep_optimiser": True},
    }
    # Some objectives have large values (squared errors of log-probabilities): Adam tolerates this, SGD diverges.
    defaults_by_kind: ClassVar = {"image": {"training": {"optimiser": "adam", "rate": 1e-3}}}
    wants = frozenset({"teaching"})
    trains_jointly = True
    refuses: ClassVar = {
        "attack": "distillation has one client, which holds the proxy: leave `attack` out",
        "on-site": "distillation is evaluated where the proxy data is: leave evaluation=on-site out",
        "local_update": "a student is trained on its teachers' outputs, which a local update is not given: write an"
        " objective of your own instead",
    }

    def __init__(
        self,
        settings: DistillationSettings,
        task: Task,
        training: Training,
        inputs: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(settings, task, training)
        if inputs is not None:  # without inputs the method of a finished run can be read, but not run
            teaching: Teaching = inputs["teaching"]
            self.objective = under_labels(teaching.objective, settings.labels)
            self.teachers, self.teacher_cache = teaching.teachers, TeacherCache(teaching.teachers)

    def refusal(self, setting: str) -> str | None:
        if setting == "loss" and not self.objective.hard_label_weight:
            return (
                f"the objective {self.objective.name} reads no labels here, and so has no use for a loss of your own:"
                " leave training.loss out"
            )
        return super().refusal(setting)

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
        if self.objective.compares_features and not self._widths.student:
            raise InputError(
                f"the objective {name} compares features, and the student {own} gives none: name a layer of it, e.g."
                " features='fc1', or choose an objective on logits, such as vanilla"
            )
        widths = self._widths.teachers
        if self.objective.compares_features and not all(widths):
            silent = self.teachers[widths.index(0)].name
            raise InputError(
                f"the objective {name} compares features, and the teacher {silent} gives none: let it return"
                " (logits, features), or choose an objective on logits, such as vanilla"
            )

    def training_data(
        self, train: Dataset, bundle: Any, load: Callable[[str], Any], streams: Streams
    ) -> tuple[Dataset, str]:
        return proxy_data(self.settings, self.objective, train, bundle, load, streams)

    def ceiling(self, teacher_outputs: Callable[[], Tensor], data: Dataset) -> float | None:
        """The masking ceiling, for `vanilla` and `self` with labelled proxy data."""
        objective, labels = self.objective, data.labels()
        if objective.name not in ("vanilla", "self") or labels is None or labels.ndim > 1:
            return None
        if not objective.hard_label_weight:
            return None
        if self.training.loss is not None:  # the ceiling is that of the cross-entropy
            return None
        settings = objective.settings
        assert isinstance(settings, Softened)
        found = masking_ceiling(teacher_outputs(), labels, settings.alpha, settings.temperature, objective.generations)
        return found.accuracy

    def rounds(self, given: int) -> int:
        return given * self.objective.generations

    def selectable(self, round: int, rounds: int) -> bool:
        return round >= rounds - rounds // self.objective.generations

    def start(self, streams: Streams) -> Tensors:
        return self._fresh(streams, 0)

    def prepare(self, state: Tensors, context: RoundContext) -> Tensors:
        """Starts a new generation; possibly late, if the round in which it should have started failed."""
        generation = context.round // (context.rounds // self.objective.generations)
        if not generation or part(state, before(generation)):
            return state
        return {
            **self._fresh(Streams(context.streams.seed), generation),
            **under(before(generation), part(state, MODEL)),
        }

    def request(self, state: Tensors, who: Profile, context: RoundContext) -> Message | None:
        return Message(state)

    def reply(self, client: Client, request: Message, context: RoundContext) -> Message:
        (message,) = together([JointStudent(self, client, request, context)])
        return message

    def reply_jointly(self, requests: Sequence[JointRequest]) -> list[Message]:
        students = []
        for one in requests:
            if not isinstance(one.method, Distillation):
                raise TypeError(f"{type(one.method).__name__} is no distillation")
            students.append(JointStudent(one.method, one.client, one.request, one.context))
        return together(students)

    def expect(self, state: Tensors, who: Profile, request: Message) -> Mapping[str, tuple[Shape, torch.dtype]]:
        learnt = {name: tensor for name, tensor in state.items() if name.startswith((MODEL, ADAPTERS))}
        return {**same_as(learnt), **work_expected(self.terms)}

    def aggregate(self, state: Tensors, replies: Sequence[Reply], context: RoundContext) -> Tensors:
        (reply,) = replies
        return {**state, **{name: tensor for name, tensor in reply.message.items() if name in state}}

    def models(self, server: Tensors) -> Mapping[str, Tensors]:
        return {self.task.architectures[0]: part(server, MODEL)}

    @cached_property
    def terms(self) -> tuple[str, ...]:
        return term_names(self.task, self.objective, self.teachers, self._widths, self.adapters(Streams(0)))

    @cached_property
    def _widths(self) -> Widths:
        return check_compatibility(self.task, self.teachers)

    def adapters(self, streams: Streams, generation: int = 0) -> nn.Module | None:
        student, teacher = self._widths.student, sum(self._widths.teachers)
        with streams.ambient("adapters"):
            return self.objective.adapters(student, student if generation else teacher)

    def _fresh(self, streams: Streams, generation: int) -> Tensors:
        """A new student and its adapters."""
        architecture = self.task.architectures[0]
        own = streams.at("model", architecture) if not generation else streams.at("model", architecture, generation)
        adapters = self.adapters(own, generation)
        beside = {} if adapters is None else under(ADAPTERS, state_of(adapters))
        return {**under(MODEL, state_of(self.task.build(architecture, streams=own))), **beside}


class JointStudent:
    """One student in joint training: its method, the client that holds the proxy data, and that client's request."""

    def __init__(self, method: Distillation, client: Client, request: Message, context: RoundContext) -> None:
        self.method, self.client, training = method, client, method.training
        epochs = context.rounds // method.objective.generations
        self.generation, epoch = divmod(context.round, epochs)
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
        training.begin(self.optimiser, epoch, epochs, len(client.data))
        taught_by = request.part(before(self.generation))
        self.before = (
            TeacherModel("before", architecture, client.task.build(architecture, taught_by)) if taught_by else None
        )
        self.labelled = client.data.labels() is not None

    @property
    def asks(self) -> int:
        """The number of teacher forward passes per sample; cached outputs cost nothing (see `TeacherCache`)."""
        if self.before is not None:
            return 1
        return len(self.method.teachers) if self.client.task.augments else 0

    def learner(self, voice: str) -> Learner:
        """The learner of this student, which reads the teacher outputs whose names start with this prefix."""

        def loss(output: Output, batch: Batch, said: Mapping[str, Tensor]) -> Terms:
            # Without a teacher (`labels-only`) the student's own output takes its place, and the objective ignores
            # it.
            teacher = output_of(said, voice) if said else output
            labels = batch["labels"].to(output.log_probabilities.device) if self.labelled else None
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


def together(students: Sequence[JointStudent]) -> list[Message]:
    """One epoch of joint training for students that share proxy data, teachers, seed and schedule.

    The teachers run once per batch. Each student matches its separate training bit for bit, and each client is charged
    for the work of separate training.
    """
    _check_agreement(students)
    method, client = students[0].method, students[0].client
    # Batches contain labels if some students may use them; the others do not receive them.
    data = next((student.client.data for student in students if student.labelled), client.data)
    voices = ["" if student.before is None else f"{number}/" for number, student in enumerate(students)]

    def speak(batch: Batch) -> Mapping[str, Tensor]:
        said: dict[str, Tensor] = {}
        if not method.teachers:
            return said
        if "" in voices and client.task.augments:
            said |= named("", teacher_outputs(method.teachers, client.task, batch))
        elif "" in voices:
            said |= method.teacher_cache.of(client.task, data, batch)
        for voice, student in zip(voices, students, strict=True):
            if student.before is not None:
                said |= named(voice, teacher_outputs([student.before], client.task, batch))
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
    return {f"{voice}{name}": tensor for name, tensor in named_outputs(output).items()}


def _check_agreement(students: Sequence[JointStudent]) -> None:
    if any(_lesson(student) != _lesson(students[0]) for student in students):
        raise ValueError("students that learn together need the same proxy, teachers, round, seed and schedule")


def _lesson(student: JointStudent) -> tuple[object, ...]:
    """What must be equal for joint training, since the teacher outputs are shared.

    Teachers are compared by identity, not by name: two runs of one method may share names and models.
    """
    method, task = student.method, student.client.task
    assert isinstance(task, Classification)
    return (
        student.client.streams,
        len(student.client.data),
        (method.settings.proxy, method.settings.share),
        (task.shape, task.augmentation, task.own_loss, task.precision),
        [id(teacher) for teacher in method.teachers],
        (method.training.epochs, method.training.batch, method.training.clip),
    )
