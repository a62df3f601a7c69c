"""Figures and displays of objects of lower layers that higher layers make: found by name, imported when first used.

`fedstill/__init__.py` says where each of them is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

_homes: dict[str, tuple[str, str]] = {}


def provide_views(homes: Mapping[str, tuple[str, str]]) -> None:
    """Declare views: by name, the module and what it calls the view."""
    _homes.update(homes)


def view(name: str) -> Callable[..., Any]:
    """The view of that name.

    >>> provide_views({"half": ("fractions", "Fraction")})
    >>> view("half")(1, 2)
    Fraction(1, 2)
    """
    module, called = _homes[name]
    found: Callable[..., Any] = getattr(import_module(module), called)
    return found
