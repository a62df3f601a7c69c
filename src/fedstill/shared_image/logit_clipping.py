"""Clipping of logits by their norm, in the losses of clients and server.

The code of *Federated Learning with a Single Shared Image* scales logits whose norm exceeds 1 / c to the norm c, with
c = 2.5. Logits shorter than c are thus lengthened, unless they are shorter than 1 / c, and the loss of a client cannot
fall below a bound. Models of this package return log-probabilities, which are logits up to a constant for each sample:
the norm here is that of logits around their mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from fedstill.core.class_losses import class_weighted_nll
from fedstill.core.dataset import Batch
from fedstill.core.fit import Loss, Terms, task_loss
from fedstill.core.task import Output
from fedstill.tasks.classification import Classification


def clip_norm(log_probabilities: Tensor, norm: float) -> Tensor:
    """Log-probabilities whose centred logits have been scaled to this norm where theirs exceeded its reciprocal.

    >>> centred = lambda rows: (rows - rows.mean(dim=1, keepdim=True)).norm(dim=1)
    >>> logits = torch.tensor([[30.0, -40.0], [0.3, 0.1], [1.0, 0.0]])
    >>> centred(clip_norm(logits.log_softmax(dim=1), 2.5))
    tensor([2.5000, 0.1414, 2.5000])
    """
    logits = log_probabilities - log_probabilities.mean(dim=1, keepdim=True)
    norms = logits.norm(dim=1, keepdim=True)
    scaled = logits * (norm / norms.clamp(min=1e-7))
    return torch.where(norms > 1 / norm, scaled, logits).log_softmax(dim=1)


def clipped(output: Output, norm: float | None) -> Output:
    """A model's output with clipped logits; without a norm, as it is."""
    if norm is None:
        return output
    return replace(output, log_probabilities=clip_norm(output.log_probabilities, norm))


def clipped_loss(task: Classification, norm: float | None) -> Loss:
    """The cross-entropy of clipped logits; without a norm, the task's own loss."""
    if norm is None:
        return task_loss

    def loss(output: Output, batch: Batch, shared: Mapping[str, Tensor]) -> Terms:
        return {
            "cross-entropy": class_weighted_nll(
                clip_norm(output.log_probabilities, norm), task.labels_of(batch), output.class_weights
            )
        }

    return loss
