"""The three kinds of model state: parameters, float buffers, counters.

* **parameters** go through the method (server optimisers, control variates, proximal terms);
* **float buffers** (BatchNorm's running statistics) are plainly averaged, never put through anything else;
* **integer buffers** (`num_batches_tracked`) take the maximum.

A model's state carries its kinds in its names (`parameters/…`, `buffers/…`, `counters/…`), on the wire, in
checkpoints and in egress manifests, so that no code has to guess a tensor's kind from its name or type.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

PARAMETERS = "parameters/"
BUFFERS = "buffers/"
COUNTERS = "counters/"


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """A copy of a model's state, named by kind.

    >>> sorted(state_of(nn.BatchNorm1d(2, affine=False)))
    ['buffers/running_mean', 'buffers/running_var', 'counters/num_batches_tracked']
    """
    return {name: tensor.detach().cpu().clone() for name, tensor in names_by_kind(model).items()}


def names_by_kind(model: nn.Module) -> dict[str, Tensor]:
    """A model's own tensors, not copies, named by kind.

    What trains a model, sends its state and throws it away needs no copy.

    >>> model = nn.Linear(2, 3)
    >>> names_by_kind(model)["parameters/bias"] is model.bias
    True
    """
    if all(_is_plain(part) for part in model.modules()):
        return dict(_named_by_kind(model, ""))
    parameters = parameter_names(model)
    state = model.state_dict(keep_vars=True)
    return {kind_of(name, tensor, parameters) + name: tensor for name, tensor in state.items()}


def _is_plain(part: nn.Module) -> bool:
    """Whether a module adds its parameters and buffers to a `state_dict`, and nothing else."""
    kind: Any = type(part)
    return _saves_plainly(kind) and not (part._state_dict_hooks or part._state_dict_pre_hooks)


@lru_cache(maxsize=256)
def _saves_plainly(kind: type[nn.Module]) -> bool:
    changeable = ("state_dict", "_save_to_state_dict", "get_extra_state", "named_parameters", "named_modules")
    return all(getattr(kind, name) is getattr(nn.Module, name) for name in changeable)


def _named_by_kind(part: nn.Module, prefix: str) -> Iterator[tuple[str, Tensor]]:
    """The entries of a `state_dict` in its order, several times as fast."""
    for name, parameter in part._parameters.items():
        if parameter is not None:
            yield f"{PARAMETERS}{prefix}{name}", parameter
    for name, buffer in part._buffers.items():
        if buffer is not None and name not in part._non_persistent_buffers_set:
            yield f"{BUFFERS if buffer.is_floating_point() else COUNTERS}{prefix}{name}", buffer
    for name, child in part._modules.items():
        if child is not None:
            yield from _named_by_kind(child, f"{prefix}{name}.")


def load_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Copy a state named by kind into a model; every tensor must be there."""
    model.load_state_dict({name.split("/", 1)[1]: tensor for name, tensor in state.items()})


def norm_layers(model: nn.Module) -> dict[str, _BatchNorm]:
    """BatchNorm layers by name, in the order of their definition; found by type, never by name.

    >>> list(norm_layers(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))))
    ['1']
    """
    return {name: part for name, part in model.named_modules() if isinstance(part, _BatchNorm)}


def norm_names(model: nn.Module) -> list[str]:
    """The state names of all that belongs to BatchNorm layers: weights, statistics and counters."""
    layers = norm_layers(model)
    return [name for name in state_of(model) if name.split("/", 1)[1].rpartition(".")[0] in layers]


def running(model: nn.Module, statistic: str) -> dict[str, str]:
    """The state names of a running statistic (`running_mean`, `running_var`) by BatchNorm layer that keeps it."""
    tracked = [name for name, layer in norm_layers(model).items() if layer.running_var is not None]
    return {name: BUFFERS + (f"{name}.{statistic}" if name else statistic) for name in tracked}


def only(kind: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of one kind, under their full names."""
    return {name: tensor for name, tensor in state.items() if name.startswith(kind)}


def average(states: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> dict[str, Tensor]:
    """Parameters and float buffers by weighted mean, integer buffers by maximum.

    Sums run in double precision and in the order given (callers sort by client id), so that the mean of equal
    single-precision models is that model to the bit.
    """
    total = float(sum(weights))
    if not states or len(states) != len(weights) or min(weights) < 0 or not 0 < total < math.inf:
        raise ValueError("an average needs states, and finite weights, none negative and not all zero")
    if any(state.keys() != states[0].keys() for state in states):
        raise ValueError("an average needs states with the same names")
    shares = [weight / total for weight in weights]
    return {name: _combine(name, [state[name] for state in states], shares) for name in states[0]}


def _combine(name: str, tensors: list[Tensor], shares: list[float]) -> Tensor:
    if name.startswith(COUNTERS):
        return torch.stack(tensors).amax(dim=0)
    total = torch.zeros_like(tensors[0], dtype=torch.float64)
    for tensor, share in zip(tensors, shares, strict=True):
        total.add_(tensor, alpha=share)
    return total.to(tensors[0].dtype)


def parameter_names(model: nn.Module) -> set[str]:
    """The names in a model's `state_dict` that are parameters; tied ones under each of their names."""
    return {name for name, _ in model.named_parameters(remove_duplicate=False)}


def kind_of(name: str, tensor: Tensor, parameters: set[str]) -> str:
    """The kind of a tensor in a `state_dict`, given the names of the parameters."""
    if name in parameters:
        return PARAMETERS
    return BUFFERS if tensor.is_floating_point() else COUNTERS
