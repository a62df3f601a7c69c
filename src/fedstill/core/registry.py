"""The registry of everything that is chosen by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Generic, TypeVar

from fedstill.core.errors import InputError, did_you_mean
from fedstill.core.slices import declared

Part = TypeVar("Part")


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
        self._homes: dict[str, str] = {}  # modules that register a name when they are imported
        self._former: dict[str, str] = {}  # names of earlier releases, and what they are now

    def register(self, name: str) -> Callable[[Part], Part]:
        """A decorator; registering the same name twice is an error unless it is the same definition."""

        def add(part: Part) -> Part:
            held = self._parts.get(name)
            if held is not None and _origin(held) != _origin(part):
                raise InputError(f"two {self.what}s are called {name!r}: rename one of them")
            self._parts[name] = part
            return part

        return add

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

    def __getitem__(self, name: str) -> Part:
        name = self.current(name)
        if name not in self._parts and (home := self._all_homes().get(name)) is not None:
            import_module(home)
        try:
            return self._parts[name]
        except KeyError:
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


def _origin(part: object) -> tuple[object, object]:
    return getattr(part, "__module__", None), getattr(part, "__qualname__", None)
