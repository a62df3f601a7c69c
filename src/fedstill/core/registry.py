"""The registry of everything that is chosen by name."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Generic, TypeVar

from fedstill.core.errors import InputError, did_you_mean
from fedstill.core.origins import UserObject
from fedstill.core.slices import declared

_log = logging.getLogger(__name__)

Part = TypeVar("Part")
PASSED = re.compile(r".+-[0-9a-f]{6}")  # the name of a part that was passed as an object, see `passed_objects`


@dataclass(frozen=True)
class Registration:
    """A part that was registered: kept, so that a plugin's parts can be put back in their places."""

    registry: Registry[Any]
    name: str
    part: Any
    behaviour: int

    @property
    def place(self) -> tuple[str, str]:
        return self.registry.what, self.name

    def apply(self) -> None:
        self.registry.register(self.name, self.behaviour)(self.part)

    def withdraw(self) -> None:
        """Forget the part, unless another has taken its place."""
        if self.registry._parts.get(self.name) is self.part:
            del self.registry._parts[self.name]


_registries: list[Registry[Any]] = []


def registered() -> Iterator[Registration]:
    """Everything that is registered in this process."""
    for registry in _registries:
        for name in sorted(registry._parts):
            yield Registration(registry, name, registry._parts[name], registry._behaviours[name])


_watched: ContextVar[list[Registration] | None] = ContextVar("watched", default=None)


@contextmanager
def registrations() -> Iterator[list[Registration]]:
    """What is registered while this is open."""
    made: list[Registration] = []
    token = _watched.set(made)
    try:
        yield made
    finally:
        _watched.reset(token)


class Registry(Generic[Part]):
    """Named parts, each with a sentence for `fedstill list`.

    >>> shapes = Registry("shape")
    >>> @shapes.register("square")
    ... def square():
    ...     '''Four equal sides.'''
    >>> shapes.names(), shapes.summary("square")
    (['square'], 'Four equal sides.')
    >>> shapes["squire"]
    Traceback (most recent call last):
    fedstill.core.errors.InputError: unknown shape 'squire': did you mean 'square'? Known: square
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self._parts: dict[str, Part] = {}
        self._behaviours: dict[str, int] = {}
        self._homes: dict[str, str] = {}  # modules that register a name when they are imported
        self._former: dict[str, str] = {}  # names of earlier releases, and what they are now
        self._module = str(sys._getframe(1).f_globals["__name__"])  # that has it, as for a namedtuple
        _registries.append(self)

    def register(self, name: str, behaviour: int = 1) -> Callable[[Part], Part]:
        """A decorator; registering a name again replaces the part, unless it came with this package.

        `behaviour` is raised whenever the part gives other numbers than before, so that earlier results are not taken
        for those of today. A part from outside the package need not have one: its content is looked at.
        """

        def add(part: Part) -> Part:
            held = self._parts.get(name)
            among_ours = held is not None and _ours(held) and _origin(held) != _origin(part)
            home = None if _ours(part) else self._all_homes().get(name)
            if among_ours or home not in (None, getattr(part, "__module__", None)):
                raise InputError(f"there is a {self.what} called {name!r} in fedstill: choose another name")
            if held is not None and held is not part:
                _log.info("the %s %s is replaced by what was registered last", self.what, name)
            self._parts[name] = part
            self._behaviours[name] = behaviour
            if (watched := _watched.get()) is not None:
                watched.append(Registration(self, name, part, behaviour))
            return part

        return add

    def forget(self, name: str) -> None:
        """Take back what was registered under a name."""
        self._parts.pop(name, None)

    def behaviour(self, name: str) -> int:
        """The behaviour version of a part."""
        self[name]
        return self._behaviours[self.current(name)]

    def declare(self, module: str, *names: str) -> None:
        """Names that a module registers when it is imported, which happens when one of them is first looked up."""
        self._homes |= dict.fromkeys(names, module)

    def rename(self, former: str, name: str) -> None:
        """Accept a name of an earlier release, which is still used in identities of runs."""
        self._former[former] = name

    def current(self, name: str) -> str:
        """What a name is now, where it is one of an earlier release."""
        return self._former.get(name, name)

    def first(self, name: str) -> str:
        """What a name was in the first release that had it."""
        return next((former for former, now in self._former.items() if now == name), name)

    @property
    def of_package(self) -> bool:
        """Whether other processes have it, since it stands in a module of this package."""
        return self._module.partition(".")[0] == __name__.partition(".")[0]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled by what it is called: another process has its own."""
        return _registry_of, (self.what, self._module)

    def __getitem__(self, name: str) -> Part:
        name = self.current(name)
        if name not in self._parts and (home := self._all_homes().get(name)) is not None:
            import_module(home)
        try:
            return self._parts[name]
        except KeyError:
            if PASSED.fullmatch(name):
                raise InputError(
                    f"the {self.what} {name} was passed as an object, and is not known here: pass it again, in Python"
                ) from None
            raise InputError(f"unknown {self.what} {name!r}: {did_you_mean(name, self._known())}") from None

    def __contains__(self, name: object) -> bool:
        return name in self._parts or name in self._homes or name in declared(self.what)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def names(self) -> list[str]:
        return sorted(self._known())

    def name_of(self, part: object) -> str:
        """What a part was registered as; of one that was not, what it calls itself."""
        known = (name for name in sorted(self._parts) if self._parts[name] is part)
        return next(known, getattr(part, "__name__", repr(part)))

    def summary(self, name: str) -> str:
        """The first line of the part's docstring."""
        lines = (self[name].__doc__ or "").strip().splitlines()
        return lines[0] if lines else ""

    def _all_homes(self) -> Mapping[str, str]:
        return {**declared(self.what), **self._homes}

    def _known(self) -> set[str]:
        return {*self._parts, *self._all_homes()}


def _registry_of(what: str, module: str) -> Registry[Any]:
    import_module(module)
    return next(registry for registry in _registries if registry.what == what)


def _ours(part: object) -> bool:
    return (
        not isinstance(part, UserObject)
        and str(getattr(part, "__module__", "")).partition(".")[0] == __name__.partition(".")[0]
    )


def _origin(part: object) -> tuple[object, object]:
    return getattr(part, "__module__", None), getattr(part, "__qualname__", None)
