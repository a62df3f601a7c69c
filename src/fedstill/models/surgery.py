"""Operations on models: parts that no longer learn, copies."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from torch import nn

_CONTAINERS = (dict, list, set)


class _StaysInEval:
    """Stands in for the `train` method of a frozen module.

    An object rather than a closure, so that it follows its module through deepcopy and pickle; installed on the
    module rather than on its parent, so that it holds whatever model the module is part of.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __call__(self, mode: bool = True) -> nn.Module:
        return self.module


def freeze(module: nn.Module) -> None:
    """Stop a part of a model from learning, in every way a part can.

    Without gradients alone BatchNorm would keep moving its running statistics and Dropout would keep drawing, so
    the part also goes to eval and stays there when the model it belongs to is put in training mode.
    """
    module.requires_grad_(False)
    module.eval()
    vars(module)["train"] = _StaysInEval(module)


def duplicate(module: nn.Module) -> nn.Module:
    """A copy with tensors of its own, several times as fast as `deepcopy`, which takes a module for any object.

    Parameters and buffers are copied (tied ones stay tied), containers too; whatever else a module holds is shared,
    except in models with frozen parts or hooks, which know their own modules and are copied the slow way.
    """
    entangled = any("train" in vars(one) or one._forward_hooks or one._forward_pre_hooks for one in module.modules())
    return deepcopy(module) if entangled else _duplicate(module, {})


def _duplicate(module: nn.Module, done: dict[int, Any]) -> nn.Module:
    if id(module) in done:
        known: nn.Module = done[id(module)]
        return known
    twin = done[id(module)] = module.__class__.__new__(module.__class__)
    # Into `__dict__` directly: a module's `__setattr__` looks at every value, and there are many.
    held = twin.__dict__ = {
        name: value.copy() if isinstance(value, _CONTAINERS) else value for name, value in vars(module).items()
    }
    held["_parameters"] = {name: _duplicate_tensor(tensor, done) for name, tensor in module._parameters.items()}
    held["_buffers"] = {name: _duplicate_tensor(tensor, done) for name, tensor in module._buffers.items()}
    held["_modules"] = {name: None if one is None else _duplicate(one, done) for name, one in module._modules.items()}
    return twin


def _duplicate_tensor(tensor: Any, done: dict[int, Any]) -> Any:
    if tensor is None or id(tensor) in done:
        return None if tensor is None else done[id(tensor)]
    twin = tensor.detach().clone()
    done[id(tensor)] = nn.Parameter(twin, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else twin
    return done[id(tensor)]
