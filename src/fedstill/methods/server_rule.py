"""The server rule of a method on plain `state_dict`s, for models that were not trained by Fedstill."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from fedstill.core.errors import InputError
from fedstill.core.kinds import kind_of, parameter_names
from fedstill.core.message import TYPES, part, under
from fedstill.core.settings import Settings, make_settings
from fedstill.core.task import Task, Tensors
from fedstill.core.training import Training
from fedstill.methods.base import MODEL, methods
from fedstill.methods.fedavg import FedAvg, ModelSettings

_STATISTICS = ("running_mean", "running_var")
_BESIDE = (*_STATISTICS, "num_batches_tracked")


class ServerRule:
    """The rule of a method for the clients' models, with the memory that the method keeps on the server.

    `model` tells parameters from buffers; without it they are told by name (see `kinds_of`). `momentum` is that of the
    clients' SGD, which FedNova reads.
    """

    def __init__(
        self, kind: type[FedAvg], settings: Settings, model: nn.Module | None = None, momentum: float = 0.0
    ) -> None:
        if isinstance(settings, ModelSettings) and settings.buffers == "recalibrate":
            raise InputError(
                "buffers='recalibrate' asks clients for new statistics in an exchange of Fedstill's own: choose"
                " 'average', or train with fedstill.run"
            )
        # A rule reads settings and training; no task is there whose models could be built.
        training = make_settings(Training, {"momentum": momentum}, kind.__name__)
        self.method = kind(settings, cast(Task, None), training)
        self.model = model
        self.memory: dict[str, Tensor] = {}

    def __call__(
        self,
        current: Tensors,
        states: Sequence[Tensors],
        weights: Sequence[float] | None = None,
        steps: Sequence[int] | None = None,
    ) -> dict[str, Tensor]:
        """The next `state_dict`; weights count in means, steps are the optimiser steps that each client took."""
        _check_states(current, states)
        kinds = kinds_of(current, self.model)
        server = self._server({kinds[name] + name: _plain(tensor) for name, tensor in current.items()})
        counted = self._steps(steps, len(states))
        replies = [
            {**under(MODEL, {kinds[name] + name: _plain(state[name]) for name in current}), **taken}
            for state, taken in zip(states, counted, strict=True)
        ]
        after = self.method.rule(server, replies, self._weights(weights, len(states)))
        self.memory = _memory(after)
        model = part(after, MODEL)
        return {name: model[kinds[name] + name].to(tensor.device) for name, tensor in current.items()}

    def _server(self, model: Tensors) -> Tensors:
        fresh = self.method.server_state(model)
        if not self.memory:
            return fresh
        if _shapes(self.memory) != _shapes(_memory(fresh)):
            raise InputError("this rule remembers another model: make a new rule for each model")
        return {**fresh, **self.memory}

    def _weights(self, given: Sequence[float] | None, clients: int) -> list[float]:
        if given is None or self.method.settings.weighting == "uniform":
            return [1.0] * clients
        weights = [float(weight) for weight in given]
        if len(weights) != clients:
            raise InputError(f"{len(weights)} weights do not fit {clients} models: pass one weight for each model")
        if min(weights) < 0 or not 0 < sum(weights) < math.inf:
            raise InputError("weights must be finite, none negative and not all zero: pass numbers of samples")
        return weights

    def _steps(self, given: Sequence[int] | None, clients: int) -> list[dict[str, Tensor]]:
        if not self.method.reads_steps:
            return [{}] * clients
        if given is None or len(given) != clients or min(given) < 1:
            raise InputError("normalised averaging divides by steps: pass the number of each client's steps, from 1")
        return [{"steps": torch.tensor(int(taken))} for taken in given]


def server_rule_of(name: str) -> type[FedAvg]:
    """The method of this name, if its rule works with clients that only train and return one model."""
    kind, choose = methods[name], "choose for example fedavg, fedadam or fedmedian, or train with fedstill.run"
    if not issubclass(kind, FedAvg):
        raise InputError(f"method {name!r} does not aggregate one shared model: {choose}")
    if kind.pooled:
        raise InputError(f"method {name!r} trains on pooled data, so that its server aggregates nothing: {choose}")
    if kind.reply is not FedAvg.reply or kind.request is not FedAvg.request:
        raise InputError(f"clients of method {name!r} exchange or keep more than one shared model: {choose}")
    if kind.aggregate is not FedAvg.aggregate:
        raise InputError(f"method {name!r} has its own `aggregate`: define `rule` in its place, which needs no round")
    if kind.loss is not FedAvg.loss or kind.correct is not FedAvg.correct:
        raise InputError(
            f"method {name!r} changes the clients' training and averages as fedavg does: choose fedavg, and change the"
            " loss or the gradients in your client"
        )
    return kind


def kinds_of(state: Tensors, model: nn.Module | None = None) -> dict[str, str]:
    """The kind of each tensor: exactly by the model; without it, by name.

    By name, floats are parameters unless they are called `running_mean` or `running_var` beside another tensor of a
    normalisation layer. All other tensors are counters.

    >>> kinds_of(nn.BatchNorm1d(2).state_dict())["running_var"], kinds_of({"running_var": torch.ones(2)})
    ('buffers/', {'running_var': 'parameters/'})
    """
    if model is None:
        parameters = {
            name for name, tensor in state.items() if tensor.is_floating_point() and not _tracked(name, state)
        }
    elif model.state_dict().keys() != state.keys():
        raise InputError("the states have other names than model.state_dict(): pass the model that was trained")
    else:
        parameters = parameter_names(model)
    return {name: kind_of(name, tensor, parameters) for name, tensor in state.items()}


def _tracked(name: str, state: Tensors) -> bool:
    """Whether this is a running statistic of a normalisation layer."""
    layer, dot, own = name.rpartition(".")
    return own in _STATISTICS and any(layer + dot + other in state for other in _BESIDE if other != own)


def _check_states(current: Tensors, states: Sequence[Tensors]) -> None:
    """Refuse models that do not fit each other."""
    if not states:
        raise InputError("there are no models to aggregate: pass the state_dict of at least one client")
    wrong = [name for name, tensor in current.items() if tensor.dtype not in TYPES]
    if wrong or not current:
        raise InputError(f"tensor {wrong[0]!r} is neither real nor integer" if wrong else "the states hold no tensors")
    for client, state in enumerate(states):
        if state.keys() != current.keys():
            odd = min(state.keys() ^ current.keys())
            raise InputError(f"model {client} does not fit, {odd!r} is missing on one side: pass models of one kind")
        for name, tensor in current.items():
            if state[name].shape != tensor.shape or state[name].is_floating_point() != tensor.is_floating_point():
                raise InputError(
                    f"tensor {name!r} of model {client} is {tuple(state[name].shape)} of {state[name].dtype}, not"
                    f" {tuple(tensor.shape)} of {tensor.dtype}: pass models of one architecture"
                )


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu()


def _memory(server: Tensors) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in server.items() if not name.startswith(MODEL)}


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}
