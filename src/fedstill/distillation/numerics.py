"""Softening, normalisation and division whose results and gradients stay finite.

A batch with two equal samples, a feature vector that ReLU set to zero or a class with probability zero must not turn a
whole training run into NaN. NaN inputs stay visible: none of these functions hides a NaN.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# Replaces the logarithm of zero. Its exponential is zero in single and double precision, and no finite output of a
# network comes near it, so ordinary values pass unchanged.
FLOOR = -1e4

_SMALLEST = 1e-12  # a vector shorter than this has no direction


def bounded(log_probabilities: Tensor) -> Tensor:
    """Minus infinity replaced by a very small logarithm, without a gradient.

    >>> bounded(torch.tensor([-1.0, float("-inf")])).tolist()
    [-1.0, -10000.0]
    """
    return log_probabilities.clamp(min=FLOOR)


def soften(log_probabilities: Tensor, temperature: float) -> Tensor:
    """log softmax(z / T) from log-probabilities, which are logits up to a constant that the softmax removes.

    >>> soften(torch.tensor([[0.8, 0.2]]).log(), 2.0).exp().tolist()  # square roots of 4 : 1
    [[0.6666666865348816, 0.3333333134651184]]
    """
    return F.log_softmax(bounded(log_probabilities) / temperature, dim=-1)


def unit(vectors: Tensor) -> Tensor:
    """Vectors (the last axis) normalised to length one; a zero vector stays zero and passes no gradient.

    `F.normalize` divides such a vector by 1e-12, which multiplies its gradient by 1e12.

    >>> unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]])).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    squares = vectors.square().sum(dim=-1, keepdim=True)
    nothing = squares < _SMALLEST**2
    # `where` twice: gradients flow through both branches, so the branch not taken has to be finite as well.
    return vectors * torch.where(nothing, 0.0, torch.where(nothing, 1.0, squares).rsqrt())


def inverse(lengths: Tensor) -> Tensor:
    """1 / length; for length zero, zero without a gradient.

    >>> inverse(torch.tensor([4.0, 0.0])).tolist()
    [0.25, 0.0]
    """
    nothing = lengths < _SMALLEST
    return torch.where(nothing, 0.0, torch.where(nothing, 1.0, lengths).reciprocal())
