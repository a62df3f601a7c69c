"""Builders of models from sets of sizes: a model by name is such a set, and any of it can be set otherwise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import wraps
from inspect import Parameter, Signature
from typing import Any, TypeVar

Made = TypeVar("Made")
Sizes = TypeVar("Sizes", bound=Any)  # a dataclass of numbers
Shape = tuple[int, ...]


def sized(sizes: Sizes) -> Callable[[Callable[[Shape, int, Sizes], Made]], Callable[..., Made]]:
    """Make a builder of a function that takes sizes: these, of which callers may set any by keyword.

    The builder's signature names every size with its default, as if each had been written out: `build_model` and
    lists of models read it.
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
