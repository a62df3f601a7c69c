"""Linear and quadratic terms of a client's loss, added directly to the gradient.

    loss + <push, w> + pull/2 ||w - anchor||^2    has the gradient    g + push + pull (w - anchor)

Adding the terms after the backward pass costs two passes over the weights; a loss term would build a graph over every
parameter at each step. Parameters without a gradient are not changed, as in the optimiser: a bias before BatchNorm has
no effect, and is not regularised.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from fedstill.core.fit import Correct
from fedstill.core.task import Tensors


def correction(
    model: nn.Module, *, push: Tensors | None = None, pull: float = 0.0, anchor: Tensors | None = None
) -> Correct:
    """The callback between backward pass and optimiser step; `push` and `anchor` are keyed by parameter."""
    named = dict(model.named_parameters())
    push, anchor = (_beside(named, tensors) for tensors in (push, anchor))

    @torch.no_grad()
    def correct(_: nn.Module) -> None:
        gradients = gradients_of(named)
        if push is not None:
            torch._foreach_add_(list(gradients.values()), _in_order(push, gradients))
        if anchor is not None:
            away = torch._foreach_sub(_in_order(named, gradients), _in_order(anchor, gradients))
            torch._foreach_add_(list(gradients.values()), away, alpha=pull)

    return correct


def gradients_of(named: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """The gradients that exist, by parameter name; names are computed once per model, not at each step."""
    return {name: weight.grad for name, weight in named.items() if weight.grad is not None}


def _in_order(tensors: Tensors, names: Iterable[str]) -> tuple[Tensor, ...]:
    return tuple(tensors[name] for name in names)


def _beside(named: dict[str, nn.Parameter], tensors: Tensors | None) -> Tensors | None:
    """The tensors, moved to the devices of their parameters."""
    return None if tensors is None else {name: tensors[name].to(weight.device) for name, weight in named.items()}
