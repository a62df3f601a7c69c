"""Softening, normalising and dividing with results that stay finite, and so do their gradients.

A batch with two equal samples, a feature vector that ReLU has silenced or a class that a model rules out must not turn
a whole training run into NaN. What is not a number on the way in stays visible: none of these hides a NaN.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# Stands for the logarithm of zero. Its exponential is zero in single and double precision, and no network's finite
# output comes near it, so ordinary numbers pass unchanged.
FLOOR = -1e4

_SMALLEST = 1e-12  # a vector shorter than this has no direction


def bounded(log_probabilities: Tensor) -> Tensor:
    """Minus infinity replaced by a very small logarithm, through which no gradient flows.

    >>> bounded(torch.tensor([-1.0, float("-inf")])).tolist()
    [-1.0, -10000.0]
    """
    return log_probabilities.clamp(min=FLOOR)


def soften(log_probabilities: Tensor, temperature: float) -> Tensor:
    """log softmax(z / T), from log-probabilities: they are logits up to a constant, which the softmax takes away.

    >>> soften(torch.tensor([[0.8, 0.2]]).log(), 2.0).exp().tolist()  # square roots of 4 : 1
    [[0.6666666865348816, 0.3333333134651184]]
    """
    return F.log_softmax(bounded(log_probabilities) / temperature, dim=-1)


def unit(vectors: Tensor) -> Tensor:
    """Vectors (the last axis) scaled to length one; a vector of length zero stays zero and passes no gradient.

    `F.normalize` divides such a vector by 1e-12, which multiplies its gradient by 1e12.

    >>> unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]])).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    squares = vectors.square().sum(dim=-1, keepdim=True)
    nothing = squares < _SMALLEST**2
    # `where` twice: a gradient flows through both branches, so the one not taken has to be finite as well.
    return vectors * torch.where(nothing, 0.0, torch.where(nothing, 1.0, squares).rsqrt())


def inverse(lengths: Tensor) -> Tensor:
    """1 / length; zero, without a gradient, for no length at all.

    >>> inverse(torch.tensor([4.0, 0.0])).tolist()
    [0.25, 0.0]
    """
    nothing = lengths < _SMALLEST
    return torch.where(nothing, 0.0, torch.where(nothing, 1.0, lengths).reciprocal())
