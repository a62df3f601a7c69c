"""FedProx's term as the released code of the single-image paper computes it; for comparison only.

    published    mu/2 sum_k (w_k - a_k)^2      gradient of weight k:  mu (w_k - a_k)
    released     mu/2 (sum_k (w_k - a_k))^2    gradient of weight k:  mu sum_j (w_j - a_j), for all k the same

The released term is zero wherever the differences cancel, so that it holds no single weight back; and along the one
direction that it does see, its curvature is mu times the number of weights.
"""

from __future__ import annotations

import torch
from torch import nn

from fedstill.core.fit import Correct
from fedstill.core.task import Tensors
from fedstill.methods.gradients import gradients_of


def squared_sum(model: nn.Module, mu: float, anchor: Tensors) -> Correct:
    """The callback that adds the released term's gradient; `anchor` is keyed by parameter.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> model.weight.data, model.weight.grad = torch.tensor([[3.0, 1.0]]), torch.zeros(1, 2)
    >>> squared_sum(model, 0.5, {"weight": torch.tensor([[1.0, 2.0]])})(model)
    >>> model.weight.grad  # the differences are 2 and -1
    tensor([[0.5000, 0.5000]])
    """
    named = dict(model.named_parameters())
    anchors = {name: anchor[name].to(weight.device) for name, weight in named.items()}

    @torch.no_grad()
    def correct(_: nn.Module) -> None:
        total = torch.stack([(weight - anchors[name]).sum() for name, weight in named.items()]).sum()
        torch._foreach_add_(list(gradients_of(named).values()), float(mu * total))

    return correct
