"""What a part of the user's own consists of, as one digest.

Parts of this package have behaviour versions. A part from outside has none, so a run's identity holds what it consists
of: compiled code with the default arguments, closures and globals that it uses, own modules that it reaches, and
versions of installed packages. Objects in memory are read, not files: what will run counts. Comments do not.

Code can depend on what cannot be read off it: a file that it opens, an environment variable, `exec`. Then the content
is not established (`Content.unknown` says why), and a run gets an identity that no other run has.
"""

from __future__ import annotations

import builtins
import functools
import logging
import random
import re
import struct
import types
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, time, timedelta, tzinfo
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from hashlib import blake2b
from importlib import import_module
from importlib.util import resolve_name
from io import IOBase
from pathlib import PurePath
from typing import Any
from uuid import UUID

import numpy as np
import torch
from pydantic import BaseModel

from fedstill.core.code_names import (
    DYNAMIC,
    DYNAMIC_GLOBALS,
    LOADERS,
    READS,
    SURROUNDINGS,
    globals_in,
    imports_in,
    names_in,
    slots_of,
    type_name,
)
from fedstill.core.origins import announced, file_digests, is_outside_module, module_of, versions

_SIZE = 8  # bytes of a digest

_log = logging.getLogger(__name__)

_BY_TEXT = (
    *(PurePath, range, slice, Decimal, Fraction, UUID, date, time, timedelta, tzinfo),
    *(torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format, np.dtype),
)
_OF_C = (
    *(types.BuiltinFunctionType, types.WrapperDescriptorType, types.MethodWrapperType, types.MethodDescriptorType),
    *(types.ClassMethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType, np.ufunc),
)
_TYPING = (types.GenericAlias, types.UnionType)


@dataclass(frozen=True)
class Content:
    """The digest of parts, and why equal digests may not mean equal parts."""

    digest: str
    unknown: tuple[str, ...] = ()  # what cannot be established, each as the end of "because it ..."


def content_of(*parts: Any, reads: bool = True) -> Content:
    """What these parts consist of. `reads=False`: what they read from files is looked at in another way."""
    walk = _Walk(reads)
    try:
        walk.value(parts)
    except Exception as error:  # of an object that does not let itself be looked at, or one that is nested too deeply
        _log.info("a part cannot be looked at", exc_info=True)
        walk.unknown.append(f"cannot be looked at ({type(error).__name__})")
    return Content(walk.hash.hexdigest(), tuple(dict.fromkeys(walk.unknown)))


class _Walk:
    """Visits everything that a value consists of, in an order that the value decides."""

    def __init__(self, reads: bool) -> None:
        self.hash = blake2b(digest_size=_SIZE)
        self.unknown: list[str] = []
        self.reads = reads
        self._numbers: dict[int, int] = {}  # by id, the place of what was visited before
        self._held: list[Any] = []  # so that no id is used again
        self._modules: list[types.ModuleType] = []  # those visited
        self._announced: set[str] = set()  # installed packages whose files were looked at
        self._where: list[str] = []

    def said(self, *words: Any) -> None:
        for word in words:
            data = word if isinstance(word, bytes) else str(word).encode()
            self.hash.update(struct.pack("<Q", len(data)))
            self.hash.update(data)

    def value(self, value: Any) -> None:
        if value is None or type(value) in (bool, int, float, complex, str, bytes):
            self.said(type(value).__name__, repr(value))
        elif type(value) is tuple:
            self.said("tuple", len(value))
            self._each(value)
        elif type(value) is frozenset:
            self._unordered(value)
        elif isinstance(value, types.CodeType):
            self._code(value)
        elif id(value) in self._numbers:
            self.said("again", self._numbers[id(value)])
        else:
            self._numbers[id(value)] = len(self._numbers)
            self._held.append(value)
            self._visit(value)

    def _visit(self, value: Any) -> None:
        """Something of which there may be more than one reference."""
        match value:
            case types.ModuleType():
                self._module(value, frozenset())
            case type():
                self._class(value)
            case types.FunctionType():
                self._function(value)
            case types.MethodType():
                self.said("method")
                self._each((value.__func__, value.__self__))
            case staticmethod() | classmethod():
                self.said(type(value).__name__)
                self.value(value.__func__)
            case property():
                self.said("property")
                self._each((value.fget, value.fset, value.fdel))
            case functools.partial():
                self.said("partial")
                self._each((value.func, value.args, value.keywords))
            case functools.cached_property():
                self.said("cached property")
                self.value(value.func)
            case types.CellType():
                self._cell(value)
            case Enum():
                self.said("enum", value.name)
                self.value(type(value))
            case list() | deque():
                self.said(type(value).__name__, len(value))
                self._each(value)
                self._beside(value, list, deque)
            case Mapping():
                self.said("mapping", len(value))
                self._each(item for pair in value.items() for item in pair)
                self._beside(value, dict, types.MappingProxyType)
            case set() | frozenset():
                self._unordered(value)
            case torch.Tensor():
                self._tensor(value)
            case np.ndarray() | np.generic():
                self._array(np.asarray(value))
            case torch.Generator():
                self._tensor(value.get_state())
            case np.random.Generator():
                self.value(value.bit_generator.state)
            case np.random.RandomState():
                self.value(value.get_state(legacy=False))
            case random.Random():
                self.value(value.getstate())
            case re.Pattern():
                self.said("pattern", value.pattern, value.flags)
            case logging.Logger():
                self.said("logger")
            case _ if isinstance(value, _BY_TEXT) or value is Ellipsis or value is NotImplemented:
                self.said(type(value).__name__, repr(value))
            case _ if isinstance(value, _TYPING) or type(value).__module__ in ("typing", "typing_extensions"):
                self.said("type", repr(value))
            case _ if isinstance(value, _OF_C):
                self._of_c(value)
            case _:
                self._instance(value)

    def _each(self, values: Iterable[Any]) -> None:
        for value in values:
            self.value(value)

    def _unordered(self, values: Iterable[Any]) -> None:
        """By the digests of its members: a set's order depends on where they lie."""
        digests = []
        for value in values:
            inner = _Walk(self.reads)
            inner.value(value)
            digests.append(inner.hash.hexdigest())
            self.unknown += inner.unknown
        self.said("set", len(digests), *sorted(digests))

    def _beside(self, value: Any, *plain: type) -> None:
        """What a container of another class than the built-in ones has beside its items."""
        if type(value) not in plain:
            self.value(type(value))
            self._state(value)

    def _function(self, function: types.FunctionType) -> None:
        module = module_of(function)
        if not is_outside_module(module):
            self._from_package(module, function.__qualname__)
            return
        self._where.append(function.__qualname__)
        self.said("function")
        self._files_of(module)
        self._code(function.__code__)
        self._each((function.__defaults__, function.__kwdefaults__, function.__closure__))
        self.value({name: value for name, value in vars(function).items() if name not in SURROUNDINGS})
        loaded = globals_in(function.__code__)
        self._look_for_more(set(names_in(function.__code__, texts=False)), loaded)
        for name in sorted(loaded):
            self._global(name, function)
        for name, level in sorted(imports_in(function.__code__)):
            self._import(name, level, function)
        self._where.pop()

    def _code(self, code: types.CodeType) -> None:
        """What a function does; not where it stands."""
        self.said(
            *("code", code.co_code, code.co_flags, code.co_exceptiontable),
            *(code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount),
            *(code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars),
        )
        self._each(code.co_consts)

    def _look_for_more(self, names: set[str], loaded: set[str]) -> None:
        """Names that let code depend on what is not in it."""
        where = self._where[-1]
        for name in sorted(names & DYNAMIC | loaded & DYNAMIC_GLOBALS):
            self._unknown(f"runs what is put together at run time (`{name}` in {where})")
        for name in sorted(names & READS) if self.reads else ():
            self._unknown(f"reads what its code does not show (`{name}` in {where})")

    def _global(self, name: str, function: types.FunctionType) -> None:
        self.said("global", name)
        namespace = function.__globals__
        if name in namespace:
            if name not in SURROUNDINGS:
                self._named(name, namespace[name], frozenset(names_in(function.__code__)))
        elif not hasattr(builtins, name):
            self.said("undefined")

    def _named(self, name: str, value: Any, used: frozenset[str]) -> None:
        self._where.append(name)
        if isinstance(value, types.ModuleType):
            if id(value) not in self._numbers:
                self._numbers[id(value)] = len(self._numbers)
                self._held.append(value)
            self._module(value, used)
        else:
            self.value(value)
        self._where.pop()

    def _import(self, name: str, level: int, function: types.FunctionType) -> None:
        """A module that a function imports when it is called."""
        package = str(function.__globals__.get("__package__") or "")
        try:
            absolute = resolve_name("." * level + name, package) if level else name
            module = import_module(absolute)
        except Exception as error:
            _log.info("a part imports %s, which fails", name, exc_info=True)
            self._unknown(f"imports {name!r}, which fails ({type(error).__name__}: {error})")
            return
        self._named(name, module, frozenset(names_in(function.__code__)))

    def _class(self, kind: type) -> None:
        if not is_outside_module(str(kind.__module__)):
            self._from_package(str(kind.__module__), kind.__qualname__)
            return
        self._where.append(kind.__qualname__)
        self.said("class")
        self._files_of(str(kind.__module__))
        self._each((type(kind), kind.__bases__))
        own = dict(vars(kind))
        annotations = own.get("__annotations__")
        if isinstance(annotations, dict):
            for name, said in sorted(annotations.items()):
                self.said("annotation", name, said if isinstance(said, str) else type_name(said))
        if issubclass(kind, BaseModel):
            self._settings(kind)
        for name in sorted(own):
            if name not in SURROUNDINGS and not name.startswith("__pydantic_"):
                self.said("attribute", name)
                self.value(own[name])
        self._where.pop()

    def _settings(self, kind: type[BaseModel]) -> None:
        """Of a pydantic class, fields and when validators are called; what is compiled from them is left out."""
        for name, field in sorted(kind.model_fields.items()):
            self.said("field", name, type_name(field.annotation), *map(repr, field.metadata))
            self._each((None if field.is_required() else field.default, field.default_factory))
        decorators = kind.__pydantic_decorators__
        for name, one in sorted(decorators.field_validators.items()):
            self.said("field validator", name, one.info.mode, one.info.fields)
        for name, other in sorted(decorators.model_validators.items()):
            self.said("model validator", name, other.info.mode)

    def _module(self, module: types.ModuleType, used: frozenset[str]) -> None:
        """A module of the user's own with all that is in it; `used` are names that may be looked up in it."""
        name = module.__name__
        if not is_outside_module(name):
            self._from_package(name, "")
            if "load" in used and name.partition(".")[0] in LOADERS and self.reads:
                self._unknown(f"reads from outside (`{name}.load`)")
            return
        if module in self._modules:
            self.said("module again")
            return
        self._modules.append(module)
        self.said("module")
        self._files_of(name)
        for key in sorted(vars(module)):
            if key in SURROUNDINGS:
                continue
            self.said("attribute", key)
            before = len(self.unknown)
            self._named(key, vars(module)[key], used)
            if key not in used:  # nobody looks there
                del self.unknown[before:]

    def _files_of(self, module: str) -> None:
        """Of an installed package that announces parts, all files, once."""
        top = module.partition(".")[0]
        if top in announced() and top not in self._announced:
            self._announced.add(top)
            self.said("files", *file_digests(top))

    def _from_package(self, module: str, name: str) -> None:
        """Something that came with Python or was installed: by its name and the version of its package."""
        self.said("package", module, name, *versions(module.partition(".")[0]))

    def _of_c(self, value: Any) -> None:
        owner = getattr(value, "__objclass__", None) or getattr(value, "__self__", None)
        self.said("compiled", getattr(value, "__name__", type(value).__name__))
        if isinstance(owner, types.ModuleType):
            self._from_package(owner.__name__, "")
        elif isinstance(owner, type):
            if not is_outside_module(str(owner.__module__)):  # of the user's own classes all is looked at anyway
                self._from_package(str(owner.__module__), owner.__qualname__)
        elif owner is not None:  # a method of an object
            self.value(owner)

    def _cell(self, cell: types.CellType) -> None:
        try:
            held = cell.cell_contents
        except ValueError:
            self.said("empty cell")
        else:
            self.said("cell")
            self.value(held)

    def _tensor(self, tensor: torch.Tensor) -> None:
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
            self._unknown(f"holds a tensor that cannot be read ({tensor.layout}, {tensor.device})")
            return
        self.said("tensor", tensor.dtype, tuple(tensor.shape), tensor.requires_grad)
        flat = tensor.detach().cpu().contiguous().view(-1)
        self.said(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")

    def _array(self, array: np.ndarray[Any, Any]) -> None:
        self.said("array", array.dtype.str, array.shape)
        if array.dtype.hasobject:
            self._each(array.ravel().tolist())
        else:
            self.said(np.ascontiguousarray(array).tobytes())

    def _instance(self, value: Any) -> None:
        kind = type(value)
        if (function := getattr(value, "py_func", None)) is not None:  # compiled by numba
            self.said("compiled")
            self.value(function)
            return
        if isinstance(value, IOBase) or not (hasattr(value, "__dict__") or slots_of(kind)):
            if kind is not object:  # a bare object() is nothing but itself
                self._unknown(f"holds a {kind.__module__}.{kind.__qualname__}, whose content cannot be read")
            return
        self.said("instance")
        self.value(kind)
        self._state(value)

    def _state(self, value: Any) -> None:
        held = dict(getattr(value, "__dict__", {}))
        held |= {name: getattr(value, name) for name in slots_of(type(value)) if hasattr(value, name)}
        for name in sorted(held.keys() - SURROUNDINGS):
            self.said("attribute", name)
            self.value(held[name])

    def _unknown(self, why: str) -> None:
        self.said("unknown", why)
        self.unknown.append(why)
