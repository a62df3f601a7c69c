"""Models of the user's own that are passed as objects: a module, a class, or a function that makes one.

Each is registered like a model of a plugin, under a name that ends with a digest of what it consists of, so that two
classes of one name, or two states of one notebook cell, are two models.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from fedstill.core.errors import InputError
from fedstill.core.origins import UserObject
from fedstill.core.passed_objects import object_name, register_object
from fedstill.models.builders import models
from fedstill.models.model_outputs import Outputs, declare

_SHAPE = ("shape", "input_shape")
_CLASSES = ("classes", "num_classes", "n_classes", "num_labels")


@dataclass(frozen=True)
class Model:
    """A model of your own with what Fedstill cannot see: which layer gives features, and what its outputs are.

    `source` is a module, whose weights training starts from; or a class or function that makes one. It is called with
    the shape of a sample and the number of classes, where it has parameters for these (`shape`, `classes` or
    `num_classes`), and without arguments otherwise.

    >>> from torch import nn
    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    >>> import fedstill
    >>> made = fedstill.run("fedavg", model=fedstill.Model(net, features="2", name="two-layers"), rounds=1, clients=2,
    ...                     out=getfixture("tmp_path"))
    >>> made.result.model, type(made.model()).__name__
    ('two-layers', 'Sequential')
    """

    source: nn.Module | Callable[..., nn.Module]
    features: str | None = None  # the layer whose output are features, as named by `named_modules`
    outputs: Outputs | None = None  # "log-probabilities", if the model ends with log_softmax
    name: str | None = None  # in tables and folders; unset: made from the name of its class


ModelInput = str | nn.Module | Callable[..., nn.Module] | Model


class OwnModel(UserObject):
    """The builder of a model that was passed as an object."""

    def __init__(self, given: Model) -> None:
        source = given.source
        if isinstance(source, nn.Module):
            source = deepcopy(source).cpu()  # later changes of the user's module are another model
        self.source, self.features, self.outputs = source, given.features, given.outputs
        if isinstance(task := getattr(source, "task", None), str):
            self.task = task

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        return f"{type_name(self.source)}, passed as an object."

    def __call__(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        made = deepcopy(self.source) if isinstance(self.source, nn.Module) else self._called(shape, classes)
        if any(map(is_lazy, made.parameters())):  # their shapes are known after a first call
            with torch.no_grad():
                made(torch.zeros(2, *shape))
        return declare(made, self.outputs, self.features)

    def _called(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        name = type_name(self.source)
        made = self.source(**self._arguments(shape, classes))
        if not isinstance(made, nn.Module):
            raise InputError(f"{name} must return a torch module, not a {type(made).__name__}")
        return made

    def _arguments(self, shape: tuple[int, ...], classes: int) -> dict[str, Any]:
        known: dict[str, Any] = {**dict.fromkeys(_SHAPE, shape), **dict.fromkeys(_CLASSES, classes)}
        kinds = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
        wanted = [one for one in signature(self.source).parameters.values() if one.kind in kinds]
        if strange := [one.name for one in wanted if one.default is Parameter.empty and one.name not in known]:
            raise InputError(
                f"{type_name(self.source)} needs {', '.join(strange)}: pass an instance, or a function of shape and"
                " classes that makes one"
            )
        return {one.name: known[one.name] for one in wanted if one.name in known}


def type_name(source: Any) -> str:
    """What a module's class, a class or a function is called; a lambda is a model.

    >>> type_name(nn.Flatten()), type_name(nn.Flatten), type_name(lambda: None)
    ('Flatten', 'Flatten', 'model')
    """
    return object_name(source, "model")


def named_model(given: ModelInput, features: str | None = None, outputs: Outputs | None = None) -> str:
    """The name of a model that was passed by name or as an object, which is registered."""
    if isinstance(given, str):
        if features is not None or outputs is not None:
            raise InputError(
                f"features and outputs are for models of your own, and {given} is chosen by name: leave out"
            )
        return given
    held = given if isinstance(given, Model) else Model(given)
    if not (isinstance(held.source, nn.Module) or callable(held.source)):
        raise InputError(
            "a model is a name, a torch module, or a class or function that makes one, not a"
            f" {type(held.source).__name__}"
        )
    made = OwnModel(Model(held.source, features or held.features, outputs or held.outputs))
    if held.name is not None:
        models.register(held.name)(made)
        return held.name
    return register_object(models, made, type_name(held.source))
