"""Rooms that are also verbs: `fedstill.audit` is a package, and what one does with it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


def make_callable(room: str, verb: Callable[..., Any]) -> None:
    """Let a package be called like the function of its name.

    `fedstill.audit` is the function until somebody imports the package `fedstill.audit`, by which Python puts the
    package in its place: whichever of the two is found, it can be called.
    """

    class CallableRoom(ModuleType):
        def __call__(self, *arguments: Any, **settings: Any) -> Any:
            return verb(*arguments, **settings)

    CallableRoom.__doc__ = verb.__doc__
    sys.modules[room].__class__ = CallableRoom
