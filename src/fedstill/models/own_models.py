"""Models of the user's own that are passed as objects: a module, a class, or a function that makes one.

Each is registered like a model of a plugin, under a name that ends with a digest of what it consists of, so that two
classes of one name, or two states of one notebook cell, are two models.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from fedstill.core.content import content_of
from fedstill.core.errors import InputError, did_you_mean
from fedstill.core.origins import UserObject, is_outside
from fedstill.core.passed_objects import object_name, register_object, remember_object
from fedstill.core.task import Task, Tensors
from fedstill.models.builders import models
from fedstill.models.classifier import Classifier
from fedstill.models.model_outputs import Outputs, declare, dummy_inputs, feature_width, read_outputs, reading
from fedstill.models.surgery import duplicate

_SHAPE = ("shape", "input_shape")
_CLASSES = ("classes", "num_classes", "n_classes", "num_labels")
_log = logging.getLogger(__name__)

_NAME = re.compile(r"[\w.-]+")


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
    head: str | None = None  # the last layer, for methods that train it apart; features are then what it reads
    outputs: Outputs | None = None  # "log-probabilities", if the model ends with log_softmax
    name: str | None = None  # in tables and folders; unset: made from the name of its class


ModelInput = str | nn.Module | Callable[..., nn.Module] | Model


class OwnModel(UserObject):
    """The builder of a model that was passed as an object."""

    def __init__(self, given: Model) -> None:
        source = given.source
        if isinstance(source, nn.Module):  # later changes of the user's module are another model; its mode is none
            source = _copied(source).cpu().train()
        self.source, self.features, self.outputs, self.head = source, given.features, given.outputs, given.head
        if isinstance(task := getattr(source, "task", None), str):
            self.task = task

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        return f"{type_name(self.source)}, passed as an object."

    def __call__(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        made = self.source if isinstance(self.source, nn.Module) else self._called(shape, classes)
        if any(map(is_lazy, (*made.parameters(), *made.buffers()))):  # their shapes are known after a first call
            made = made if made is not self.source else _copied(made)
            with torch.no_grad(), reading(type_name(self.source), shape):
                made.eval()(torch.zeros(2, *shape))
            made.train()
        made = _copied(made)  # a function may return one module again and again
        return (
            declare(made, self.outputs, self.features) if self.head is None else SplitModel.of(made, self.head, shape)
        )

    def _called(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        name, arguments = type_name(self.source), self._arguments(shape, classes)
        try:
            made = self.source(**arguments)
        except Exception as error:  # a user's own function may raise anything
            why = " ".join(str(error).split())[:200]
            raise InputError(f"{name} cannot make a model ({type(error).__name__}: {why}): mend it") from error
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


class SplitModel(Classifier):
    """A model of the user's own as an extractor and a head, which is its last layer."""

    def __init__(self, extractor: nn.Module, head: nn.Module, feature_size: int, name: str) -> None:
        super().__init__(extractor, head, feature_size)
        self.head_name = name

    @classmethod
    def of(cls, model: nn.Module, name: str, shape: tuple[int, ...]) -> SplitModel:
        """The model, refusing a layer after which something else follows."""
        layers = [layer for layer, _ in model.named_modules() if layer]
        if name not in layers:
            raise InputError(f"the model has no layer {name!r} to be its head: {did_you_mean(name, layers)}")
        inputs, split = dummy_inputs(shape), None
        with torch.no_grad():
            with reading(type(model).__name__, shape):
                wanted = read_outputs(model.eval(), inputs).log_probabilities
            head = model.get_submodule(name)
            model.set_submodule(name, nn.Identity())
            try:
                features = model(inputs)
                split = cls(model, head, features.shape[-1], name).eval()
                same = features.ndim == 2 and torch.allclose(split(inputs)[0], wanted, atol=1e-5)
            except Exception as error:  # layers behind the head may not be able to read its inputs
                _log.info("the model cannot be split at %s: %s", name, error)
                same = False
        if not same or split is None:
            raise InputError(
                f"the layer {name!r} cannot be the model's head: name its last layer, whose output it returns"
            )
        split.train()
        return split

    def whole(self) -> nn.Module:
        """The user's model, in one piece."""
        twin = duplicate(self)  # both together, since they may share weights
        assert isinstance(twin, SplitModel)
        twin.extractor.set_submodule(self.head_name, twin.head)
        return twin.extractor


def plain(model: nn.Module) -> nn.Module:
    """A model as its author knows it."""
    return model.whole() if isinstance(model, SplitModel) else model


def fill(module: nn.Module, state: Tensors) -> None:
    """Load a state into a user's module; one that was split gets its head back where the module lacks tensors."""
    names = {name: name.split("/", 1)[1] for name in state}
    expected = set(module.state_dict())
    if set(names.values()) != expected and all(name.startswith(("extractor.", "head.")) for name in names.values()):
        for prefix in {name.rpartition(".")[0] for name in expected}:
            whole = {key: _in_one_piece(name, prefix) for key, name in names.items()}
            if set(whole.values()) == expected:
                names = whole
    module.load_state_dict({names[key]: tensor for key, tensor in state.items()})


def _in_one_piece(name: str, head: str) -> str:
    part, _, rest = name.partition(".")
    return rest if part == "extractor" else f"{head}.{rest}"


def type_name(source: Any) -> str:
    """What a module's class, a class or a function is called; a lambda is a model.

    >>> type_name(nn.Flatten()), type_name(nn.Flatten), type_name(lambda: None)
    ('Flatten', 'Flatten', 'model')
    """
    return object_name(source, "model")


def named_model(given: ModelInput, **notes: Any) -> str:
    """The name of a model that was passed by name or as an object, which is registered.

    `notes` are fields of `Model`: features, outputs, head.
    """
    noted = {key: value for key, value in notes.items() if value is not None}
    if isinstance(given, str):
        if noted:
            which = " and ".join(noted)
            raise InputError(
                f"{which} can be said of models that are passed as objects, and {given} is a name: omit it"
            )
        return given
    held = replace(given if isinstance(given, Model) else Model(given), **noted)
    if not (isinstance(held.source, nn.Module) or callable(held.source)):
        raise InputError(
            "a model is a name, a torch module, or a class or function that makes one, and not of type"
            f" {type(held.source).__name__}"
        )
    if held.head is not None and (held.features or held.outputs):
        raise InputError("features and outputs of a model with a head are what its head reads and returns: omit them")
    made = OwnModel(held)
    if held.name is not None:
        if not _NAME.fullmatch(held.name):
            raise InputError(f"a model cannot be called {held.name!r}: use letters, digits, '-', '_' and '.'")
        models.register(held.name)(made)
        return held.name
    return register_object(models, made, type_name(held.source), held.source)


def remember(made: Mapping[str, OwnModel]) -> None:
    """Register models again, as those that were used last."""
    for name, model in made.items():
        remember_object(models, name, model)


def own_models(names: Iterable[str]) -> dict[str, OwnModel]:
    """Those of the models of these names that were passed as objects."""
    return {name: model for name in names if name in models and isinstance(model := models[name], OwnModel)}


def check_same(held: Mapping[str, OwnModel]) -> None:
    """Refuse an experiment in which two different models were given one name."""
    for name, model in held.items():
        if content_of(model).digest != content_of(models[name]).digest:
            raise InputError(f"two different models are called {name!r}: give each its own name")


def own_function(name: str, what: str = "model") -> Callable[..., Any]:
    """`module:function` of the user's own, of an installed module or one in the working folder."""
    module, separator, function = name.partition(":")
    if not (module and separator and function):
        raise InputError(f"a {what} of your own is written module:function, not {name!r}")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: Callable[..., Any] = getattr(import_module(module), function)
    except Exception as error:  # a module of the user's own may raise anything
        why = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(f"the {what} {name} cannot be made: {why}") from error
    return found


def _copied(module: nn.Module) -> nn.Module:
    try:
        return deepcopy(module)
    except Exception as error:  # e.g. a tensor with a gradient as an attribute, or a lock
        why = " ".join(str(error).split())[:160]
        raise InputError(
            f"the model {type_name(module)} cannot be copied ({why}): keep nothing but layers, parameters and buffers"
            " in it, or pass a function that makes it"
        ) from error


def check_features(what: str, task: Task) -> None:
    """Refuse what compares features where a model of the user's own gives none."""
    for architecture in task.architectures:
        if is_outside(models[architecture]) and not feature_width(task.build(architecture).cpu(), task.shape):
            raise InputError(
                f"{what} compares features, and {architecture} gives none: return (logits, features), or name the layer"
                " whose output they are, e.g. features='fc1'"
            )
