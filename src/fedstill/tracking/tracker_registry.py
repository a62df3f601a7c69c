"""The registry of trackers, and what is shared by those that come with the package."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from fedstill.core.errors import InputError
from fedstill.core.registry import Registry
from fedstill.tracking.tracker import Tracker

trackers: Registry[Callable[[str], Tracker]] = Registry("tracker")  # made with WHERE of `--track NAME:WHERE`


def package(module: str, extra: str) -> Any:
    """A module of an optional extra, or an error with the command that installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise InputError(
            f"the tracker {extra} needs a package that is not here ({error}): pip install 'fedstill[{extra}]'"
        ) from None
