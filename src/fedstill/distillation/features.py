"""Objectives that compare features sample by sample, through a learnt map phi."""

from __future__ import annotations

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedstill.distillation.intermediate import Intermediate, IntermediateSettings
from fedstill.distillation.numerics import unit
from fedstill.distillation.objective import Adapters, Lesson, Terms, objectives, projection


def hint(student: Tensor, teacher: Tensor, normalise: bool = True) -> Tensor:
    """Mean squared difference of feature vectors over batch and width, normalised to length one or unnormalised.

    >>> import torch
    >>> student, teacher = torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 4.0]])
    >>> hint(student, teacher).item(), hint(student, teacher, normalise=False).item()  # (1 + 1) / 2, (4 + 16) / 2
    (1.0, 10.0)
    """
    return F.mse_loss(unit(student), unit(teacher)) if normalise else F.mse_loss(student, teacher)


def attention(student: Tensor, teacher: Tensor) -> Tensor:
    """Mean squared difference of attention over batch and width: squared activations, normalised to length one.

    >>> import torch
    >>> attention(torch.tensor([[1.0, 0.0]]), torch.tensor([[-5.0, 0.0]])).item()  # neither sign nor size play a part
    0.0
    """
    return F.mse_loss(unit(student.square()), unit(teacher.square()))


class FeatureSettings(IntermediateSettings):
    normalise: bool | None = Field(
        None, description="scale features to unit length before comparing; unset: yes, unless beta is `reference`"
    )


@objectives.register("feature")
class Feature(Intermediate):
    """FitNets hints: (1-a-b) CE + a T^2 KL + b MSE(phi(f_s), f_t) of normalised features.

    *FitNets: Hints for Thin Deep Nets*, Romero et al., 2014, https://arxiv.org/abs/1412.6550

    The paper trains on hints first and on the other terms afterwards; here they are one sum, and phi is one linear
    layer on pooled features. The reference weight is 100, on features that are *not* normalised, so `beta: reference`
    does not normalise them either: 100 times the error of vectors of length one would still be negligible (at most 400
    / width). With `normalise: true` the public weight is applied to the normalised term.
    """

    name = "feature"
    Options = FeatureSettings
    settings: FeatureSettings

    def adapters(self, student_width: int, teacher_width: int) -> Adapters:
        return projection(student_width, teacher_width)

    def from_features(self, lesson: Lesson) -> Terms:
        chosen = self.settings.normalise
        normalise = not self.as_reference if chosen is None else chosen
        return {"hint": self.beta(reference=100) * hint(*self.compared(lesson), normalise)}


@objectives.register("attention")
class Attention(Intermediate):
    """Attention transfer: (1-a-b) CE + a T^2 KL + b MSE(A_s, A_t), A = normalised squared activations.

    *Paying More Attention to Attention*, Zagoruyko and Komodakis, 2016, https://arxiv.org/abs/1612.03928

    In the paper A is a map over positions, summed over channels, at several depths. Pooled features have no positions:
    here A is over channels, at one depth, and the student's features are first mapped to the teacher's width by phi.
    The reference weight is 1000, on the same mean of squares of vectors of length one.
    """

    name = "attention"

    def adapters(self, student_width: int, teacher_width: int) -> Adapters:
        return projection(student_width, teacher_width)

    def from_features(self, lesson: Lesson) -> Terms:
        return {"attention": self.beta(reference=1000) * attention(*self.compared(lesson))}
