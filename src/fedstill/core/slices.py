"""Research slices: packages that bring data sets, models, methods and commands, and that the rest works without.

A slice is a package of `fedstill` with a module `registration`, which holds one table, `BRINGS`: for each kind of part
(as registries call it) the modules that register such parts, with the names that each registers. Registries look names
up there and import a module when one of its names is first wanted. Nothing else knows which slices there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path

REGISTRATION = "registration"


@cache
def slices() -> tuple[str, ...]:
    """The slices that can be imported, by name."""
    found = sorted(file.parent.name for file in Path(__file__).parents[1].glob(f"*/{REGISTRATION}.py"))
    return tuple(name for name in found if _can_be_imported(name))


@cache
def declared(what: str) -> Mapping[str, str]:
    """The parts of one kind that slices bring: by name, the module that registers it."""
    found: dict[str, str] = {}
    for name in slices():
        brings: Mapping[str, Mapping[str, Sequence[str]]] = import_module(f"fedstill.{name}.{REGISTRATION}").BRINGS
        for module, names in brings.get(what, {}).items():
            found |= dict.fromkeys(names, module)
    return found


def _can_be_imported(name: str) -> bool:
    module = f"fedstill.{name}.{REGISTRATION}"
    try:
        import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and module.startswith(error.name):  # the slice itself, not something that it needs
            return False
        raise
    return True
