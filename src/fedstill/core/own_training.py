"""Optimisers, losses and local updates of the user's own, which settings of training choose by name.

A plugin file registers them:

    @optimisers.register("nesterov")
    def nesterov(parameters):
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True)

An object that is passed in Python is registered under a name that ends with a digest of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from copy import deepcopy
from typing import Any, TypeVar

from torch import Tensor, nn

from fedstill.core.errors import InputError, did_you_mean
from fedstill.core.origins import is_outside
from fedstill.core.passed_objects import PassedObject, is_passed, object_name, register_object
from fedstill.core.registry import Registry

BUILT_IN = ("adam", "adamw", "sgd")  # optimisers of this package: see `core.optimisers`

Part = TypeVar("Part", bound=Callable[..., Any])


class OwnRegistry(Registry[Part]):
    """A registry to which this package adds nothing: whatever it holds counts as the user's own.

    >>> from torch import nn
    >>> some = OwnRegistry("loss")
    >>> _ = some.register("cross-entropy")(nn.CrossEntropyLoss())
    >>> is_outside(some["cross-entropy"])
    True
    """

    def __init__(self, what: str, reserved: Collection[str] = ()) -> None:
        super().__init__(what)
        self.reserved = reserved  # names of what this package has in place of parts

    def register(self, name: str, behaviour: int = 1) -> Callable[[Part], Part]:
        if name in self.reserved:
            raise InputError(f"{name!r} is the name of a built-in {self.what}: choose another name")
        add = super().register(name, behaviour)

        def own(part: Part) -> Part:
            add(part if is_outside(part) else PassedObject(part))  # type: ignore[arg-type]
            return part

        return own


# `f(parameters)`: an optimiser of `torch.optim`, or a pair of it and a scheduler.
optimisers: OwnRegistry[Callable[[list[nn.Parameter]], Any]] = OwnRegistry("optimiser", BUILT_IN)
# `g(logits, labels)`: a scalar; the logits are what the model returns.
losses: OwnRegistry[Callable[[Tensor, Tensor], Tensor]] = OwnRegistry("loss")
# `h(model, loader)` or `h(model, loader, context)`: trains the model in place.
local_updates: OwnRegistry[Callable[..., Any]] = OwnRegistry("local update")

OWN: Mapping[str, OwnRegistry[Any]] = {"optimiser": optimisers, "loss": losses, "local_update": local_updates}
_SPELLINGS = {"optimizer": "optimiser"}  # as torch spells it, where settings are arguments in Python
_WANTED = {
    "optimiser": "a function of the parameters that returns an optimiser of torch.optim",
    "loss": "a function of (logits, labels) that returns a scalar",
    "local_update": "a function of (model, loader) that trains the model",
}


def choices(setting: str) -> list[str]:
    """The names that may be chosen for a setting, apart from those of objects."""
    return [*OWN[setting].reserved, *(name for name in OWN[setting].names() if not is_passed(name))]


def check_choice(setting: str, name: str) -> None:
    """Refuse a name that is not registered in this process."""
    if name in OWN[setting] or name in OWN[setting].reserved:
        return
    said = f"training.{setting}: unknown choice {name!r}"
    if is_passed(name):
        raise InputError(
            f"{said}: it was passed as an object in another Python process; pass it here too, or register it in a"
            " plugin file"
        )
    raise InputError(f"{said}: {did_you_mean(name, choices(setting))}")


def with_names(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with the name of each optimiser, loss and local update that was passed as an object.

    >>> with_names({"rounds": 3, "optimizer": "adam"})
    {'rounds': 3, 'optimiser': 'adam'}
    >>> with_names({"training": {"loss": nn.CrossEntropyLoss(label_smoothing=0.1)}})  # doctest: +ELLIPSIS
    {'training': {'loss': 'CrossEntropyLoss-...'}}
    """
    named = _named(given)
    if isinstance(training := named.get("training"), Mapping):
        named["training"] = _named(training)
    return named


def _named(given: Mapping[str, Any]) -> dict[str, Any]:
    named = {_SPELLINGS.get(key, key): value for key, value in given.items()}
    if len(named) < len(given):
        raise InputError("optimizer is another name of optimiser, which is set too: leave one of them out")
    return {key: _name_of(key, value) if key in OWN else value for key, value in named.items()}


def _name_of(setting: str, value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    if not callable(value):
        raise InputError(f"{setting} is a name, or {_WANTED[setting]}, not an object of type {type(value).__name__}")
    held = deepcopy(value) if isinstance(value, nn.Module) else value  # later changes of a module are another loss
    return register_object(OWN[setting], PassedObject(held), object_name(value, setting.replace("_", "-")))


def loss_on(name: str, device: str) -> Callable[[Tensor, Tensor], Tensor]:
    """A loss by name, with the tensors of a module on the device."""
    part = losses[name]
    held = part.held if isinstance(part, PassedObject) else part
    return deepcopy(held).to(device) if isinstance(held, nn.Module) and device != "cpu" else part
