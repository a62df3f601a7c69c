"""Models by name. A builder is a plain function of an input shape and a number of classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, TypeVar

from torch import nn

from fedstill.core.errors import InputError, did_you_mean
from fedstill.core.registry import Registry
from fedstill.models.model_settings import ArchitectureSettings, apply_settings, split_model

Made = TypeVar("Made")
Sizes = TypeVar("Sizes", bound=Any)  # a dataclass of numbers
Shape = tuple[int, ...]
_SMALLEST = 8  # side of an image in pixels

ModelBuilder = Callable[..., nn.Module]
"""`(shape, classes, **sizes) -> model`; the model returns `(log_probabilities, features)`, or `Predictions` if it is a
detector.

Sizes are keyword-only with defaults. Builders draw initial weights from torch's global generator and nothing
else, so that a caller who scopes that generator decides them.
"""


class ModelRegistry(Registry[ModelBuilder]):
    """Models by name; settings behind a name (`resnet18:norm=group`) do not change which builder is meant."""

    def current(self, name: str) -> str:
        return super().current(name.partition(":")[0])

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name.partition(":")[0] if isinstance(name, str) else name)


models = ModelRegistry("model")


def build_model(name: str, shape: tuple[int, ...], classes: int, **sizes: int | float) -> nn.Module:
    """A newly initialised model for inputs of this shape (without the batch), or an error that explains why not.

    >>> build_model("mlp", (1, 8, 8), 10, width=16).feature_size
    16
    >>> build_model("cnn", (2048, 3), 4)
    Traceback (most recent call last):
    fedstill.core.errors.InputError: model 'cnn' cannot read inputs of shape 2048x3: it needs images \
(channels x height x width) of at least 8x8 pixels
    """
    builder = models[name]
    plain, settings, own = split_model(name)
    sizes = {**own, **sizes}
    if classes < 2:
        raise InputError(f"model {name!r} needs at least 2 classes to tell apart, not {classes}")
    for size in sizes:
        known = [parameter.name for parameter in signature(builder).parameters.values()][2:]
        if size not in known:
            every = [*known, *ArchitectureSettings.model_fields]
            if size in ArchitectureSettings.model_fields:
                raise InputError(f"{size} is no size: write it behind the name, {plain}:{size}={sizes[size]}")
            raise InputError(f"model {plain!r} has no size called {size!r}: {did_you_mean(size, every)}")
    try:
        model = builder(shape, classes, **sizes)
    except UnreadableShapeError as error:
        given = "x".join(str(side) for side in shape) or "()"
        raise InputError(f"model {plain!r} cannot read inputs of shape {given}: it needs {error}") from None
    except (TypeError, RuntimeError, ZeroDivisionError) as error:
        if not own:
            raise
        why = " ".join(str(error).split())[:200]
        raise InputError(f"model {name!r} cannot be built with these sizes ({why})") from error
    apply_settings(model, settings, plain, shape)
    return model


class UnreadableShapeError(ValueError):
    """Raised by a builder for unsupported inputs; the message completes the words "it needs ..."."""


def image_shape(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """`shape` as (channels, height, width); refuses other shapes, and images too small for the pooling layers."""
    if len(shape) != 3 or shape[0] < 1 or min(shape[1:]) < _SMALLEST:
        raise UnreadableShapeError(f"images (channels x height x width) of at least {_SMALLEST}x{_SMALLEST} pixels")
    channels, height, width = shape
    return channels, height, width


def sized(sizes: Sizes) -> Callable[[Callable[[Shape, int, Sizes], Made]], Callable[..., Made]]:
    """Make a builder from a function of sizes; callers may set any of them by keyword.

    The builder's signature names every size with its default, as if each had been written out: `build_model` and lists
    of models read it.
    """
    keywords = [
        Parameter(field.name, Parameter.KEYWORD_ONLY, default=getattr(sizes, field.name), annotation=field.type)
        for field in fields(sizes)
    ]
    places = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in ("shape", "classes")]

    def make(function: Callable[[Shape, int, Sizes], Made]) -> Callable[..., Made]:
        @wraps(function)
        def builder(shape: Shape, classes: int, **changes: float) -> Made:
            return function(shape, classes, replace(sizes, **changes))

        builder.__signature__ = Signature([*places, *keywords])  # type: ignore[attr-defined]
        return builder

    return make
