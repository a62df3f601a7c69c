"""Batches to distil, drawn from named streams or chosen so that logarithms come out by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedstill.core.streams import Streams
from fedstill.core.task import Output
from fedstill.distillation import Objective
from fedstill.distillation.objective import Adapters

Make = Callable[..., Output]


def draw(*shape: int, name: str) -> Tensor:
    return torch.from_numpy(Streams(5).draw(name).standard_normal(shape))


@pytest.fixture
def make_output() -> Make:
    """A random output in double precision; the name decides the numbers."""

    def make(name: str, batch: int = 5, classes: int = 4, width: int = 3) -> Output:
        logits = 2 * draw(batch, classes, name=f"{name} logits")
        return Output(F.log_softmax(logits, dim=1), draw(batch, width, name=f"{name} features"))

    return make


@pytest.fixture
def make_adapters() -> Callable[..., Adapters | None]:
    def make(objective: Objective, student: Output, teacher: Output) -> Adapters | None:
        with Streams(1).ambient("adapters"):
            adapters = objective.adapters(student.features.shape[1], teacher.features.shape[1])
        return None if adapters is None else adapters.to(student.features.dtype)

    return make


@pytest.fixture
def identity() -> Adapters:
    return Adapters(nn.Identity())


@pytest.fixture
def squares() -> tuple[Output, Output, Tensor]:
    """Student, teacher and labels, 2 x 3, of squares: at temperature 2 probabilities are in the ratio of the roots.

    student   (4, 1, 1)/6   softened  (2, 1, 1)/4        teacher   (1, 4, 1)/6    softened  (1, 2, 1)/4
              (1, 1, 1)/3             (1, 1, 1)/3                  (9, 4, 4)/17             (3, 2, 2)/7
    """
    student = torch.tensor([[4 / 6, 1 / 6, 1 / 6], [1 / 3, 1 / 3, 1 / 3]], dtype=torch.float64).log()
    teacher = torch.tensor([[1 / 6, 4 / 6, 1 / 6], [9 / 17, 4 / 17, 4 / 17]], dtype=torch.float64).log()
    ours = torch.tensor([[3.0, 4.0, 0.0], [0.0, 0.0, 2.0]], dtype=torch.float64)
    theirs = torch.tensor([[0.0, 5.0, 0.0], [0.0, 3.0, 4.0]], dtype=torch.float64)
    return Output(student, ours), Output(teacher, theirs), torch.tensor([0, 2])
