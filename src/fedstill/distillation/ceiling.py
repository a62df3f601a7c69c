"""The masking ceiling: how many proxy labels vanilla distillation can learn despite its teacher, without training.

For one sample, with the teacher at temperature T giving p and the student r (and q at temperature 1, q ~ r^T), the
gradient of (1-a) CE + a T^2 KL with respect to the student's logits vanishes where

    r_j + k q_j = p_j + k [j = y],    k = (1-a) / (a T)

The left side increases with r_j and has the same two constants for all classes, so the student ranks the classes like
the right side: **the label y wins exactly if no class exceeds it by k in the teacher's softened probabilities**. With
two classes that is a log-odds of T ln((1+k)/(1-k)) against it: 2.2 nats, a teacher that is 90 % confident in the wrong
class, at a = 0.5 and T = 2.

A student with unlimited capacity that sees each sample unaugmented would reach this optimum. Real students share
weights between samples, so the ceiling is a prediction, not a bound on test accuracy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedstill.core.errors import InputError
from fedstill.distillation.numerics import bounded, soften

_STEPS = 200
_CLOSE = 1e-12


@dataclass(frozen=True)
class Ceiling:
    """The optimal student on each sample: its log-probabilities, and whether its most likely class is the label."""

    optimum: Tensor
    keeps_label: Tensor

    @property
    def accuracy(self) -> float:
        """The fraction of samples on which the optimum predicts the label."""
        return float(self.keeps_label.double().mean())


def masking_threshold(alpha: float, temperature: float) -> float:
    """Log-odds of the wrong class of two above which the label loses; infinite if it never does.

    >>> masking_threshold(0.5, 2.0) == 2 * math.log(3)
    True
    """
    margin = _margin(alpha, temperature)
    return math.inf if margin >= 1 else temperature * math.log((1 + margin) / (1 - margin))


def masking_ceiling(
    teacher_log_probabilities: Tensor, labels: Tensor, alpha: float, temperature: float, generations: int = 1
) -> Ceiling:
    """The optimum of (1-a) CE + a T^2 KL(teacher || student) for each row, in double precision.

    Later `generations` learn from the optimum of the previous one, as in `self`.

    >>> teacher = torch.tensor([[0.11, 0.89], [0.09, 0.91]]).log()  # the threshold is 9 : 1
    >>> masking_ceiling(teacher, torch.tensor([0, 0]), 0.5, 2.0).keeps_label.tolist()
    [True, False]
    """
    if not 0 <= alpha <= 1 or temperature <= 0 or generations < 1:
        raise InputError(
            "a masking ceiling needs alpha in 0..1, a positive temperature and at least one generation,"
            f" not {alpha}, {temperature} and {generations}"
        )
    if teacher_log_probabilities.shape[:1] != labels.shape:
        raise InputError(f"{len(teacher_log_probabilities)} rows of the teacher do not go with {len(labels)} labels")
    if teacher_log_probabilities.isnan().any():
        raise InputError("the teacher's log-probabilities are not all numbers: it has no masking ceiling")
    log_teacher = F.log_softmax(bounded(teacher_log_probabilities.detach().double()), dim=1)
    true = F.one_hot(labels, log_teacher.shape[1]).bool()
    keeps = torch.empty(0)
    for _ in range(generations):
        aims = soften(log_teacher, temperature)
        # Not `p + where(true, k, 0)`: for two Python scalars `where` returns single precision.
        ahead = torch.where(true, aims.exp() + _margin(alpha, temperature), aims.exp())
        keeps = ahead.argmax(dim=1) == labels
        log_teacher = _optimum(log_teacher, aims, true, alpha, temperature)
    return Ceiling(log_teacher, keeps)


def _margin(alpha: float, temperature: float) -> float:
    """k: the margin by which the label may be behind."""
    return math.inf if alpha == 0 else (1 - alpha) / (alpha * temperature)


def _optimum(log_teacher: Tensor, aims: Tensor, true: Tensor, alpha: float, temperature: float) -> Tensor:
    """log q, where r + k q = p + k [y]; `aims` is log p.

    With s = k / sum_j r_j^T the classes decouple: r_j + s r_j^T = c_j. This leaves one unknown per sample, log s; the
    sum of the r_j decreases with it and has to be one.
    """
    if alpha == 1:
        return log_teacher
    if alpha == 0:
        return torch.where(true, 0.0, -math.inf).to(aims)
    log_margin = math.log(_margin(alpha, temperature))
    log_sums = torch.where(true, torch.logaddexp(aims, torch.full_like(aims, log_margin)), aims)  # log c
    # The sum of r^T lies between its values for one certain class and for uniform probabilities; one more on both
    # sides lets Newton overshoot.
    alike = (1 - temperature) * math.log(aims.shape[1])
    low = torch.full_like(aims[:, :1], log_margin - max(0.0, alike) - 1)
    high = torch.full_like(aims[:, :1], log_margin - min(0.0, alike) + 1)
    log_scale = (low + high) / 2
    log_softened = torch.minimum(log_sums, (log_sums - log_scale) / temperature)
    for _ in range(_STEPS):
        log_softened, slope = _alone(log_softened, log_scale, log_sums, temperature)
        excess = log_softened.logsumexp(dim=1, keepdim=True)
        found = excess.abs() < _CLOSE
        if bool(found.all()):
            break
        low, high = torch.where(excess > 0, log_scale, low), torch.where(excess > 0, high, log_scale)
        # Newton's step if it stays within the bracket, else bisection.
        step = log_scale - excess / (F.softmax(log_softened, dim=1) * slope).sum(dim=1, keepdim=True)
        step = torch.where((step > low) & (step < high), step, (low + high) / 2)
        log_scale = torch.where(found, log_scale, step)
    return F.log_softmax(temperature * log_softened, dim=1)


def _alone(x: Tensor, log_scale: Tensor, log_sums: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """x = log r with r + s r^T = c for each class, and its derivative by log s, starting from a guess.

    In logarithms the left side is convex with a slope between 1 and T: Newton's method moves above the root from any
    start, and then converges to it from above.
    """
    share = torch.zeros_like(x)
    for _ in range(_STEPS):
        power = log_scale + temperature * x
        share = torch.sigmoid(power - x)  # share of s r^T in the sum
        step = (torch.logaddexp(x, power) - log_sums) / (1 - share + temperature * share)
        x = x - step
        if float((step.abs() / (1 + x.abs())).max()) < _CLOSE:
            break
    return x, -share / (1 - share + temperature * share)
