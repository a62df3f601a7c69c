"""What code uses, read off its compiled form: globals, imports and attribute names."""

from __future__ import annotations

import dis
import re
import types
from collections.abc import Iterator
from typing import Any

from fedstill.core.origins import MODULE_PREFIX

# Names that make code depend on more than itself. As attributes some of them are harmless: `model.eval()`.
READS = frozenset(
    (
        *("open", "read_text", "read_bytes", "urlopen", "loadtxt", "genfromtxt", "fromfile", "load_file"),
        *("from_pretrained", "environ", "getenv"),
    )
)
DYNAMIC_GLOBALS = frozenset(("exec", "eval", "__import__", "globals", "input"))
DYNAMIC = frozenset(("import_module",))
LOADERS = frozenset(("torch", "numpy", "pickle", "json", "yaml", "joblib"))  # whose `load` reads a file

# What a class or module has beside what its author wrote.
SURROUNDINGS = frozenset(
    (
        *("__module__", "__qualname__", "__name__", "__doc__", "__dict__", "__weakref__", "__file__", "__cached__"),
        *("__firstlineno__", "__static_attributes__", "__abstractmethods__", "_abc_impl", "__parameters__", "__spec__"),
        *("__builtins__", "__loader__", "__package__", "__path__", "__all__", "__dataclass_fields__", "__orig_bases__"),
        *("__dataclass_params__", "__match_args__", "__signature__", "__annotations__", "__annotate__"),
        *("__annotations_cache__", "__annotate_func__", "__class_vars__", "__private_attributes__"),
    )
)


def names_in(code: types.CodeType, texts: bool = True) -> Iterator[str]:
    """Every name that code uses, and every text in it, which `getattr` may use."""
    yield from code.co_names
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from names_in(const, texts)
        elif texts and isinstance(const, str):
            yield const


def _instructions(code: types.CodeType) -> Iterator[dis.Instruction]:
    yield from dis.get_instructions(code)
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _instructions(const)


def globals_in(code: types.CodeType) -> set[str]:
    return {str(one.argval) for one in _instructions(code) if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")}


def imports_in(code: types.CodeType) -> set[tuple[str, int]]:
    """Modules that code imports when it runs, and how many dots are before each."""
    found: set[tuple[str, int]] = set()
    before: list[Any] = []
    for one in _instructions(code):
        if one.opname == "IMPORT_NAME":  # the level and the names were put onto the stack before it
            found.add((str(one.argval), next((each for each in before[-2:] if type(each) is int), 0)))
        elif one.opname in ("LOAD_CONST", "LOAD_SMALL_INT"):
            before.append(one.argval)
    return found


def slots_of(kind: type) -> list[str]:
    named = [vars(base).get("__slots__", ()) for base in kind.__mro__]
    every = [name for names in named for name in ((names,) if isinstance(names, str) else names)]
    return [name for name in every if name not in ("__dict__", "__weakref__")]


def type_name(annotation: Any) -> str:
    """An annotation as text, without the module of the user's own that depends on where its file lies."""
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        return annotation.__qualname__
    return re.sub(rf"\b{MODULE_PREFIX}\w+\.", "", repr(annotation))
