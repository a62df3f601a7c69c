"""Lazy attributes of a package: its modules are imported when one of their names is first used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazily(package: str, homes: Mapping[str, Sequence[str]], modules: Sequence[str] = ()) -> Callable[[str], Any]:
    """A module's `__getattr__`: each name is looked up in the module that defines it; `modules` are its own.

    >>> get = lazily("example", {"fractions": ["Fraction"]})
    >>> get("Fraction")(1, 2)
    Fraction(1, 2)
    >>> get("Friction")
    Traceback (most recent call last):
    AttributeError: module 'example' has no attribute 'Friction'
    """

    def get(name: str) -> Any:
        if name in modules:
            return import_module(f"{package}.{name}")
        for home, names in homes.items():
            if name in names:
                return getattr(import_module(home), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get
