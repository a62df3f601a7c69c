"""A user's own parts on their way to the worker processes of this machine or cluster.

Plugin files are loaded there from the disk, and must be what they are here. Other parts, e.g. of a notebook's cell, are
sent as they are in memory: a worker then runs what the run's identity was made of.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any
from uuid import uuid4

import cloudpickle
from torch import nn

from fedstill.core.errors import InputError
from fedstill.core.origins import MODULE_PREFIX, UserObject, is_outside, is_outside_module, module_named
from fedstill.core.plugins import loaded_plugins, use_plugins
from fedstill.core.registry import registered

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class OwnParts:
    """What another process must have to know the user's parts by name."""

    plugins: dict[str, str] = field(default_factory=dict)  # by file, a digest of its content
    parts: tuple[bytes, ...] = ()  # registrations, each pickled
    token: str = ""  # see `FreshToken`

    @classmethod
    def here(cls) -> OwnParts:
        """Those of this process."""
        return cls(loaded_plugins(), tuple(_packed()), fresh_token.value)

    def install(self) -> None:
        """Make them known in this process, which is a worker."""
        use_plugins(list(self.plugins))
        now = loaded_plugins()
        if changed := [file for file, digest in self.plugins.items() if now[file] != digest]:
            raise InputError(f"the plugin {changed[0]} was edited while it is in use: start again")
        for packed in self.parts:
            pickle.loads(packed).apply()  # from the process that started this one, and nobody else
        fresh_token.value = self.token


class FreshToken:
    """Makes identities unlike all others, where the content of a part cannot be established.

    A process and its workers share it until a run or a study has ended: what was interrupted can go on.
    """

    def __init__(self) -> None:
        self.value = uuid4().hex

    def renew(self) -> None:
        self.value = uuid4().hex


fresh_token = FreshToken()


def pickled(item: Any) -> bytes:
    """An item for a worker, with parts of the user's own by value."""
    with own_modules_by_value():
        data: bytes = cloudpickle.dumps(item, protocol=5)
    return data


def check_sendable(item: Any, what: str) -> None:
    """Refuse what worker processes cannot be sent."""
    try:
        pickled(item)
    except Exception as error:  # an object may refuse in its own way
        why = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise InputError(
            f"{what} cannot be sent to worker processes ({why}): use the engine in-process and one worker, define it in"
            " a plugin file, or leave out what cannot be pickled"
        ) from error


def _packed() -> Iterator[bytes]:
    """Registered parts that come neither with a package nor with a plugin file."""
    for registration in registered():
        module = str(getattr(registration.part, "__module__", ""))
        of_file = module.startswith(MODULE_PREFIX)
        if of_file or not (registration.registry.of_package and is_outside(registration.part)):
            continue
        try:
            yield pickled(registration)
        except Exception as error:  # a worker that needs it reports an unknown name
            _log.warning("the %s %s cannot be sent to workers: %s", *registration.place, error)


@contextmanager
def own_modules_by_value() -> Iterator[None]:
    """Pickle the user's own modules by value, except plugin files, which workers load."""
    by_value = cloudpickle.list_registry_pickle_by_value()  # the user may have named some
    own = [module for module in _own_modules() if module.__name__ not in by_value]
    for module in own:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in own:
            cloudpickle.unregister_pickle_by_value(module)


def _own_modules() -> Iterator[ModuleType]:
    parts = (registration.part for registration in registered())
    names = {name for part in parts for name in _modules_of(part)}
    for name in sorted(names):
        module = module_named(name)
        if module is not None and is_outside_module(name) and not name.startswith(MODULE_PREFIX) and name != "__main__":
            yield module


def _modules_of(part: Any) -> Iterator[str]:
    """The modules that a part, or what it holds, was defined in."""
    yield str(getattr(part, "__module__", ""))
    if isinstance(part, UserObject):
        for held in vars(part).values():
            yield str(getattr(held, "__module__", ""))
            if isinstance(held, nn.Module):
                yield from (type(one).__module__ for one in held.modules())
