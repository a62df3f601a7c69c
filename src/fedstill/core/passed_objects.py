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
_used: list[tuple[Registry[Any], str]] = []  # the oldest first


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


def register_object(registry: Registry[Any], part: Any, called: str, given: Any = None) -> str:
    """Register a part under what it is called and a digest of its content.

    What cannot be looked at as a whole is told apart by the object that was `given`.
    """
    content = content_of(part, reads=False)
    told_apart = content.unknown and given is not None
    digest = content_of(content.digest, id(given)).digest if told_apart else content.digest
    name = f"{called}-{digest[:_DIGITS]}"
    remember_object(registry, name, part)
    return name


def remember_object(registry: Registry[Any], name: str, part: Any) -> None:
    """Register a part as the one that was used last."""
    registry.register(name)(part)
    key = registry, name
    if key in _used:
        _used.remove(key)
    _used.append(key)


def forget_older() -> None:
    """Withdraw objects that were not used lately."""
    kept: dict[str, int] = {}
    for registry, name in reversed(list(_used)):
        kept[registry.what] = kept.get(registry.what, 0) + 1
        if kept[registry.what] > _KEPT:
            registry.forget(name)
            _used.remove((registry, name))


def is_passed(name: str) -> bool:
    """Whether a name is that of an object: only the process that it was passed in has it.

    >>> is_passed("focal-01ab9f"), is_passed("label-smoothing")
    (True, False)
    """
    return PASSED.fullmatch(name) is not None
