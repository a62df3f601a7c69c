"""Where a module comes from: with Python, with an installed package, with this one; or it is the user's own."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, partial
from hashlib import blake2b
from importlib.metadata import Distribution, distribution, distributions, entry_points
from inspect import getmodulename
from pathlib import Path, PurePath
from types import FunctionType, MethodType, ModuleType
from typing import Any

GROUP = "fedstill.plugins"  # entry points of installed packages that bring parts
MODULE_PREFIX = "fedstill_plugin_"  # of the modules that plugin files become
PACKAGE = __name__.partition(".")[0]


class UserObject:
    """Base of parts of this package that hold an object of the user's own, and count as the user's."""


def is_outside_module(name: str) -> bool:
    """Whether a module is the user's own, or of an installed package that announces parts.

    >>> is_outside_module("__main__"), is_outside_module("json"), is_outside_module("numpy.linalg")
    (True, False, False)
    """
    top = name.partition(".")[0]
    if top == "__main__":
        return True
    if top == PACKAGE or top in sys.stdlib_module_names:
        return False
    found = sys.modules.get(name) or sys.modules.get(top)
    file = getattr(found, "__file__", None)
    if found is None or (file is None and not hasattr(found, "__path__")):
        return top not in sys.builtin_module_names
    places = [str(file)] if file else list(map(str, found.__path__))
    return not (any(map(_installed, places)) and versions(top)) or top in announced()


@cache
def _installed(place: str) -> bool:
    """Whether a file or folder is where pip puts packages; asked for every function of every class in use."""
    return not {"site-packages", "dist-packages"}.isdisjoint(PurePath(place).parts)


def is_outside(part: Any) -> bool:
    """Whether a function, class or instance was not made by this package or by one that is installed.

    >>> namespace = {"__name__": "__main__"}
    >>> exec("def test(): ...", namespace)
    >>> is_outside(is_outside_module), is_outside(Path.exists), is_outside(namespace['test'])
    (False, False, True)
    """
    if isinstance(part, UserObject):
        return True
    if isinstance(part, partial):
        return is_outside(part.func)
    return is_outside_module(module_of(part if isinstance(part, type | FunctionType | MethodType) else type(part)))


def module_of(part: type | FunctionType | MethodType) -> str:
    """The module that a class or function was defined in, also of one that `functools.wraps` made look like another."""
    function = part.__func__ if isinstance(part, MethodType) else part
    written = str(getattr(function, "__globals__", {}).get("__name__"))
    return written if written in sys.modules else str(part.__module__)


def module_named(name: str) -> ModuleType | None:
    """A module that is imported already."""
    return sys.modules.get(name)


@cache
def _distributions() -> Mapping[str, list[Distribution]]:
    """The installed distributions by the top-level packages that they bring.

    `importlib.metadata.packages_distributions` makes a path of every installed file, which takes half a second.
    """
    found: defaultdict[str, list[Distribution]] = defaultdict(list)
    for one in distributions():
        declared = set((one.read_text("top_level.txt") or "").split())
        for top in declared or {top for file in _files(one) if (top := _top_level(file))}:
            found[top].append(one)
    return found


def _files(one: Distribution) -> Iterable[str]:
    """The files of a distribution, by its record where it has one that needs no unquoting."""
    record = one.read_text("RECORD")
    if record is None or '"' in record:
        return map(str, one.files or ())
    return (line.partition(",")[0] for line in record.splitlines())


def _top_level(file: str) -> str | None:
    """The package or module that an installed file belongs to, as `packages_distributions` of this Python infers it.

    >>> _top_level("numpy/linalg/linalg.py"), _top_level("six.py"), _top_level("../../bin/f2py")
    ('numpy', 'six', None)
    """
    first, below, _ = file.partition("/")
    if sys.version_info < (3, 12):
        return (first if below else first[: -len(".py")]) if file.endswith(".py") else None
    name = first if below else getmodulename(first) or first
    return None if "." in name else name


def _names(top: str) -> list[str]:
    """Of the installed distributions that a top-level package belongs to."""
    return sorted({str(one.metadata["Name"]) for one in _distributions().get(top, ())})


@cache
def versions(top: str) -> tuple[str, ...]:
    """Of the installed distributions that a top-level package belongs to."""
    return tuple(f"{name} {distribution(name).version}" for name in _names(top))


@cache
def announced() -> frozenset[str]:
    """Top-level packages of installed distributions that announce parts: they are looked into, like a plugin file."""
    return frozenset(point.value.partition(":")[0].partition(".")[0] for point in entry_points(group=GROUP))


def file_digests(top: str) -> Iterator[str]:
    """The files of the distributions that a top-level package belongs to, without what pip adds."""
    for name in _names(top):
        for file in sorted(distribution(name).files or (), key=str):
            if not file.parts[0].endswith(".dist-info") and file.suffix != ".pyc":
                path = Path(str(file.locate()))
                yield f"{file} {blake2b(path.read_bytes()).hexdigest() if path.is_file() else 'missing'}"
