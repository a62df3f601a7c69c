"""Operations on models: freezing parts, and fast copies."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from enum import Enum
from types import BuiltinFunctionType, FunctionType, NoneType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from fedstill.core.kinds import load_state, names_by_kind
from fedstill.core.origins import PACKAGE

_CONTAINERS = (dict, list, set)
_MADE_ANEW = frozenset({dict, OrderedDict, list, set})  # types whose empty values are all alike
_ATOMS = frozenset({NoneType, bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device})
_COPIED = frozenset({"_parameters", "_buffers", "_modules"})


class _StaysInEval:
    """Replaces the `train` method of a frozen module.

    It is an object rather than a closure, so that it survives deepcopy and pickle; it is installed on the module rather
    than on its parent, so that it applies in whatever model the module is part of.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __call__(self, mode: bool = True) -> nn.Module:
        return self.module


def freeze(module: nn.Module) -> None:
    """Freeze a part of a model completely.

    Without gradients alone BatchNorm would still update its running statistics and Dropout would still be active, so
    the part is also set to evaluation mode and stays there when its model is set to training mode.
    """
    module.requires_grad_(False)
    module.eval()
    vars(module)["train"] = _StaysInEval(module)


def duplicate(module: nn.Module) -> nn.Module:
    """A copy with its own tensors, several times as fast as `deepcopy`.

    Parameters and buffers are copied (tied ones stay tied), containers too; other attributes of a module are shared.
    Models whose attributes can reference their own modules or tensors (frozen parts, hooks, recurrent layers, a list of
    layers) are copied by `deepcopy`.
    """
    return copies_of(module)()


def copies_of(module: nn.Module) -> Callable[[], nn.Module]:
    """A function that duplicates a module, which must not change: how it can be copied is found out once."""
    if any(map(_entangled, module.modules())):
        return lambda: deepcopy(module)
    part = _Part.of(module)
    return lambda: part.copy({})


def models_like(template: nn.Module) -> Callable[[Mapping[str, Tensor]], nn.Module]:
    """A function that makes a model like the template from a state named by kind; the template must not change.

    The state's tensors are copied once, straight into the new model, where modules load a state as torch does and the
    state fits; otherwise into a duplicate, as torch loads them.
    """
    duplicated = copies_of(template)

    def loaded(state: Mapping[str, Tensor]) -> nn.Module:
        model = duplicated()
        load_state(model, state)
        return model

    if any(map(_entangled, template.modules())) or not all(map(_loads_plainly, template.modules())):
        return loaded
    part, places = _Part.of(template), names_by_kind(template)
    forms = {name: _form(tensor) for name, tensor in places.items()}

    def filled(state: Mapping[str, Tensor]) -> nn.Module:
        if forms.keys() != state.keys() or any(_form(state[name]) != form for name, form in forms.items()):
            return loaded(state)
        return part.copy({id(place): _like(place, state[name].detach().clone()) for name, place in places.items()})

    return filled


def _loads_plainly(module: nn.Module) -> bool:
    if module._load_state_dict_pre_hooks or module._load_state_dict_post_hooks:
        return False
    kind = type(module)
    if kind.set_extra_state is not nn.Module.set_extra_state or kind.get_extra_state is not nn.Module.get_extra_state:
        return False
    known = (nn.Module._load_from_state_dict, _NormBase._load_from_state_dict)
    return kind._load_from_state_dict in known and kind.load_state_dict is nn.Module.load_state_dict


def _form(tensor: Tensor) -> tuple[Any, ...]:
    """What must agree for a tensor's copy to take another's place."""
    return tensor.dtype, tensor.shape, tensor.device, tensor.is_contiguous()


def _entangled(module: nn.Module) -> bool:
    """Whether an attribute of a module may reference modules or tensors, which a copy must have of its own."""
    if "train" in vars(module) or module._forward_hooks or module._forward_pre_hooks:
        return True
    if type(module).__module__.partition(".")[0] == PACKAGE:
        return False
    return any(name not in _COPIED and not _is_plain(value) for name, value in vars(module).items())


def _is_plain(value: Any) -> bool:
    if type(value) in _ATOMS:
        return True
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_is_plain, value))
    return isinstance(value, type | FunctionType | BuiltinFunctionType | Enum)


@dataclass(frozen=True)
class _Part:
    """How to copy a module: what it shares with its copies, and what each of them has of its own."""

    module: nn.Module
    shared: dict[str, Any]
    empty: list[tuple[str, Callable[[], Any]]]  # most of a module's containers hold nothing, and are made anew
    filled: list[tuple[str, Any]]
    parts: list[tuple[str, _Part | None]]

    @classmethod
    def of(cls, module: nn.Module) -> _Part:
        held = vars(module)
        containers = {
            name: value for name, value in held.items() if isinstance(value, _CONTAINERS) and name not in _COPIED
        }
        return cls(
            module,
            {name: value for name, value in held.items() if name not in containers},
            [(name, type(value)) for name, value in containers.items() if _is_blank(value)],
            [(name, value) for name, value in containers.items() if not _is_blank(value)],
            [(name, None if part is None else cls.of(part)) for name, part in module._modules.items()],
        )

    def copy(self, done: dict[int, Any]) -> nn.Module:
        """A copy with what was `done` in place of modules and tensors, by their ids."""
        module = self.module
        if id(module) in done:
            known: nn.Module = done[id(module)]
            return known
        twin = done[id(module)] = module.__class__.__new__(module.__class__)
        # Into `__dict__` directly: a module's `__setattr__` inspects every value, and there are many.
        held = twin.__dict__ = self.shared.copy()
        for name, make in self.empty:
            held[name] = make()
        for name, value in self.filled:
            held[name] = value.copy()
        held["_parameters"] = {name: _duplicate_tensor(one, done) for name, one in module._parameters.items()}
        held["_buffers"] = {name: _duplicate_tensor(one, done) for name, one in module._buffers.items()}
        held["_modules"] = {name: None if part is None else part.copy(done) for name, part in self.parts}
        return twin


def _is_blank(container: Any) -> bool:
    return not container and type(container) in _MADE_ANEW


def _duplicate_tensor(tensor: Any, done: dict[int, Any]) -> Any:
    if tensor is None or id(tensor) in done:
        return None if tensor is None else done[id(tensor)]
    done[id(tensor)] = _like(tensor, tensor.detach().clone())
    return done[id(tensor)]


def _like(tensor: Tensor, twin: Tensor) -> Tensor:
    """The twin as a parameter if the tensor is one."""
    return nn.Parameter(twin, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else twin
