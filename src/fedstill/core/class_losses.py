"""The cross-entropy with weights of classes."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def class_weighted_nll(log_probabilities: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """The mean of -log p(label), weighted by the weights of the classes.

    A batch whose classes all weigh nothing teaches nothing: its loss is 0, where the mean would be 0 / 0.

    >>> import torch
    >>> even, first = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([0])
    >>> [class_weighted_nll(even, first, torch.tensor(weights)).item() for weights in ([2.0, 1.0], [0.0, 1.0])]
    [0.6931471824645996, 0.0]
    """
    if weights is not None and not weights[labels].any():
        return F.nll_loss(log_probabilities, labels, weights, reduction="sum")
    return F.nll_loss(log_probabilities, labels, weights)
