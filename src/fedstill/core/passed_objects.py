"""Objects that are passed in Python, in place of the name of a registered part.

Each is registered under a name that ends with a digest of what it consists of, so that two functions of one name, or
two states of one notebook cell, are two parts.
"""

from __future__ import annotations

from typing import Any

from fedstill.core.content import content_of
from fedstill.core.origins import UserObject
from fedstill.core.registry import PASSED, Registry

_DIGITS = 6  # of the digest in a name, as `PASSED` has it
_KEPT = 16  # objects of each registry; workers are sent all of them
_names: dict[str, list[str]] = {}  # by registry, the oldest first


class PassedObject(UserObject):
    """A callable object that counts as the user's own, wherever its class was defined."""

    def __init__(self, held: Any) -> None:
        self.held = held

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        return f"{object_name(self.held, 'function')}, passed as an object."

    def __call__(self, *given: Any) -> Any:
        return self.held(*given)


def object_name(source: Any, otherwise: str) -> str:
    """What a class, a function or the class of an instance is called; `otherwise` for a lambda.

    >>> object_name(len, "function"), object_name(Registry, "part"), object_name(lambda: None, "model")
    ('len', 'Registry', 'model')
    """
    name = str(getattr(source, "__name__", type(source).__name__))
    return name if name.isidentifier() else otherwise


def register_object(registry: Registry[Any], part: Any, called: str) -> str:
    """Register a part under what it is called and a digest of its content; the oldest beyond some are forgotten."""
    name = f"{called}-{content_of(part, reads=False).digest[:_DIGITS]}"
    registry.register(name)(part)
    names = _names.setdefault(registry.what, [])
    if name in names:
        names.remove(name)
    names.append(name)
    while len(names) > _KEPT:
        registry.forget(names.pop(0))
    return name


def is_passed(name: str) -> bool:
    """Whether a name is that of an object: only the process that it was passed in has it.

    >>> is_passed("focal-01ab9f"), is_passed("label-smoothing")
    (True, False)
    """
    return PASSED.fullmatch(name) is not None
