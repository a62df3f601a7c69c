"""The base class of distillation objectives: loss terms from the outputs of student and teacher on the same batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from pydantic import Field
from torch import Tensor, nn

from fedstill.core.class_losses import class_weighted_nll
from fedstill.core.errors import InputError
from fedstill.core.registry import Registry
from fedstill.core.settings import Settings
from fedstill.core.task import OWN_LOSS, Output
from fedstill.distillation.numerics import bounded
from fedstill.distillation.outputs import finds_boxes, named_outputs, output_of

Terms = dict[str, Tensor]


class Mixed(Settings):
    """The weight between labels and teacher."""

    alpha: float = Field(
        0.5, ge=0, le=1, description="alpha: weight of the teacher's term; the label term has 1 - alpha"
    )


class Softened(Mixed):
    """The weight between labels and teacher, and the temperature of soft targets."""

    temperature: float = Field(2.0, gt=0, description="T: soft targets are softmax(logits / T), their loss times T^2")


@dataclass(frozen=True)
class Lesson:
    """The inputs of an objective for one batch; labels are None if there are none, or if they must not be read."""

    student: Output
    teacher: Output
    labels: Tensor | None
    adapters: nn.Module | None

    @property
    def log_probabilities(self) -> tuple[Tensor, Tensor]:
        """The outputs of the student and of the teacher."""
        return self.student.log_probabilities, self.teacher.log_probabilities

    @property
    def features(self) -> tuple[Tensor, Tensor]:
        return self.student.features, self.teacher.features


class Objective(ABC):
    """Named loss terms, already weighted; the student minimises their sum.

    Student and teacher return an `Output`: log-probabilities (batch, classes) and features (batch, width);
    the outputs of detectors are in `outputs.py`. An objective holds settings and no changing state; learnable layers
    are in `adapters`.

    `labelled` is False in the label-free controls: the cross-entropy is removed, and labels are not read even if they
    are present, so that both controls are the same computation (see `under_labels`).
    """

    name: ClassVar[str]
    Options: ClassVar[type[Settings]] = Settings  # the settings under `objective` in a configuration
    compares_features: ClassVar[bool] = False
    targets_labels: ClassVar[bool] = False  # True: a term beside the cross-entropy needs a target class
    assessable: ClassVar[bool] = True  # False: a student trained without labels does not measure the teacher
    least_teachers: ClassVar[int] = 1
    students: ClassVar[frozenset[str]] = frozenset({"classifier"})  # kinds it supports: `classifier`, `detector`

    def __init__(self, settings: Settings | None = None, labelled: bool = True) -> None:
        self.settings = self.Options() if settings is None else settings
        self.labelled = labelled

    @abstractmethod
    def label_weight(self) -> float:
        """The weight of the cross-entropy with the labels, where there are labels."""

    @abstractmethod
    def from_teacher(self, lesson: Lesson) -> Terms:
        """The terms that depend on the teacher."""

    def adapters(self, student_width: int, teacher_width: int) -> Adapters | None:
        """The learnable layers beside the student, newly initialised from torch's global generator; None: none."""
        return None

    def terms(
        self, student: Output, teacher: Output, labels: Tensor | None = None, adapters: nn.Module | None = None
    ) -> Terms:
        """The terms of one batch; labels with weight zero are not read."""
        if has_several_classes(student):
            student, teacher = (_by_class(output) for output in (student, teacher))
            labels = None if labels is None else labels.long().flatten()
        terms = self.from_teacher(Lesson(student, _frozen(teacher), labels if self.labelled else None, adapters))
        if self.hard_label_weight == 0:
            return terms
        told = self.from_labels(student, self.given(labels))
        return {**{name: self.hard_label_weight * term for name, term in told.items()}, **terms}

    def from_labels(self, student: Output, labels: Tensor) -> Terms:
        """The unweighted label terms: a cross-entropy; for a detector or with the user's own loss, the task's terms."""
        if finds_boxes(student) or OWN_LOSS in student.terms:
            return dict(student.terms)
        return {"cross-entropy": cross_entropy(student.log_probabilities, labels, student.class_weights)}

    @property
    def hard_label_weight(self) -> float:
        return self.label_weight() if self.labelled else 0.0

    @property
    def reads(self) -> frozenset[str]:
        """What it requires beside log-probabilities: `labels`, `features`."""
        labels = self.hard_label_weight > 0 or (self.labelled and self.targets_labels)
        return frozenset({"labels"} if labels else ()) | frozenset({"features"} if self.compares_features else ())

    @property
    def generations(self) -> int:
        """The number of students that are trained, each from the previous one; the last one is reported."""
        return 1

    def label_free(self) -> Self:
        """The same objective without labels."""
        return type(self)(self.label_free_settings(), labelled=False)

    def label_free_settings(self) -> Settings:
        return self.settings

    def given(self, labels: Tensor | None) -> Tensor:
        if labels is None:
            raise InputError(f"objective {self.name!r} reads labels, and the batch has none")
        return labels

    def compared(self, lesson: Lesson) -> tuple[Tensor, Tensor]:
        """The features of both, in a space where they can be compared."""
        return self.mapped(lesson, *lesson.features)

    def mapped(self, lesson: Lesson, student: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
        """The features, mapped by the adapters."""
        if lesson.adapters is None:
            raise InputError(f"objective {self.name!r} learns adapters beside the student, and was given none")
        mapped: tuple[Tensor, Tensor] = lesson.adapters(student, teacher)
        return mapped


def cross_entropy(log_probabilities: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """Mean over the batch of -log p(label).

    >>> import torch
    >>> cross_entropy(torch.tensor([[0.5, 0.5], [0.125, 0.875]]).log(), torch.tensor([0, 0])).item() / torch.log(
    ...     torch.tensor(2.0)
    ... ).item()  # (1 + 3) / 2 bits
    2.0
    """
    return class_weighted_nll(bounded(log_probabilities), labels, weights)


def has_several_classes(output: Output) -> bool:
    """Whether outputs are (samples, classes, 2): the probabilities that a sample has not, and has, each class."""
    return output.log_probabilities.ndim == 3 and not finds_boxes(output)


def _by_class(output: Output) -> Output:
    """Each class of each sample as a question with two answers; features stay those of samples."""
    return replace(output, log_probabilities=output.log_probabilities.flatten(0, 1))


def _frozen(teacher: Output) -> Output:
    """The teacher's output as constants."""
    return output_of({name: constant(tensor) for name, tensor in named_outputs(teacher).items()})


def constant(tensor: Tensor) -> Tensor:
    """The tensor without a gradient; one from inference mode is copied, to take part in a backward pass."""
    return tensor.clone() if tensor.is_inference() else tensor.detach()


objectives: Registry[type[Objective]] = Registry("objective")


class Adapters(nn.Module):
    """Learnable layers that map the features of student and teacher to a common space.

    They are trained with the student and discarded after the run: a released student contains none of them. Their
    initial weights come from torch's global generator, so they are built inside a `Streams.ambient` scope.
    """

    def __init__(self, student: nn.Module, teacher: nn.Module | None = None) -> None:
        super().__init__()
        self.student = student
        self.teacher = nn.Identity() if teacher is None else teacher

    def forward(self, student: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
        return self.student(student), self.teacher(teacher)


def projection(student_width: int, teacher_width: int) -> Adapters:
    """phi: a linear map of the student's features to the teacher's width; the teacher's features are unchanged.

    It is used even if the widths agree: equal width does not mean equal axes.

    >>> import torch
    >>> student, teacher = projection(3, 5)(torch.zeros(2, 3), torch.ones(2, 5))
    >>> tuple(student.shape), teacher.min().item()
    ((2, 5), 1.0)
    """
    return Adapters(nn.Linear(student_width, teacher_width))


def heads(student_width: int, teacher_width: int, width: int) -> Adapters:
    """One linear head for each side, into a common space of dimension `width`."""
    return Adapters(nn.Linear(student_width, width), nn.Linear(teacher_width, width))
