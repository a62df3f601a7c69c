"""A user's own parts: a Python file named with `--plugin`, or an installed package's entry point.

Loading a plugin runs its code, so it is always the person at the keyboard who names it. A file that was edited since,
or that imports a module which was, is loaded anew; otherwise it runs once in a process.
"""

from __future__ import annotations

import ast
import importlib.util
import linecache
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from fedstill.core.errors import InputError
from fedstill.core.files import read_file
from fedstill.core.origins import GROUP, MODULE_PREFIX, is_outside_module
from fedstill.core.registry import Registration, registrations
from fedstill.core.renamed import import_remedy

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Plugin:
    """A plugin file as it was when it was loaded."""

    digest: str  # of its text
    imported: Mapping[str, tuple[Path, str]]  # modules of the user's own that it imports: file and digest of the text
    made: tuple[Registration, ...]  # what it registered

    @property
    def whole_digest(self) -> str:
        """Of its text and of those that it imports."""
        if not self.imported:
            return self.digest
        texts = [self.digest, *(digest for _, (_, digest) in sorted(self.imported.items()))]
        return blake2b(" ".join(texts).encode(), digest_size=8).hexdigest()

    def is_current(self, path: Path) -> bool:
        files = {path: self.digest, **dict(self.imported.values())}
        return all(_text_digest(file) == digest for file, digest in files.items())


_loaded: dict[Path, _Plugin] = {}


def load_plugin(file: str | Path) -> None:
    """Run a plugin file, unless it and what it imports are as they were; what it registers is then known by name."""
    path = Path(file).resolve()
    if path.suffix != ".py" or not path.is_file():
        raise InputError(f"no plugin at {file}: --plugin takes an existing Python file")
    held = _loaded.get(path)
    if held is not None and held.is_current(path):
        for registration in held.made:  # another plugin may have taken their places
            registration.apply()
        return
    if held is not None:
        _log.info("the plugin %s was edited: it is loaded again", path)
        _forget(held.imported)
        for registration in held.made:  # the text may no longer have them
            registration.withdraw()
    _loaded[path] = _load(file, path)


def _load(file: str | Path, path: Path) -> _Plugin:
    source = read_file(path)
    # The name depends on the path alone, so that another process that loads the file finds the same classes.
    name = f"{MODULE_PREFIX}{path.stem}_{blake2b(str(path).encode(), digest_size=4).hexdigest()}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(name)
    sys.modules[name] = module
    try:
        with registrations() as made:
            exec(compile(source, str(path), "exec"), vars(module))  # this text, not a compiled file of an earlier one
    except Exception as error:
        del sys.modules[name]
        if before is not None:
            sys.modules[name] = before
        if isinstance(error, InputError):
            raise
        why = import_remedy(error) or f"{type(error).__name__}: {error}"
        raise InputError(f"the plugin {file} cannot be loaded: {why}") from error
    found: dict[str, tuple[Path, str]] = {}
    _follow(source, module, found)
    return _Plugin(blake2b(source, digest_size=8).hexdigest(), found, tuple(made))


def _follow(source: bytes, module: ModuleType, found: dict[str, tuple[Path, str]]) -> None:
    """Add the modules of the user's own that a text imports, and those that they import."""
    for name in _imported_names(source, module.__package__ or ""):
        imported = sys.modules.get(name)
        file = getattr(imported, "__file__", None)
        if name in found or imported is None or file is None or not is_outside_module(name):
            continue
        path = Path(file)
        digest = _text_digest(path)
        if path.suffix == ".py" and digest is not None:
            found[name] = path, digest
            _follow(path.read_bytes(), imported, found)


def _imported_names(source: bytes, package: str) -> Iterator[str]:
    """The modules that a text may import: packages on the way to each, and names that may be modules themselves."""
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            level = node.level - 1
            above = package.rsplit(".", level)[0] if level > 0 else package
            base = ".".join(filter(None, [above if node.level else "", node.module or ""]))
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        for name in names:
            parts = name.split(".")
            yield from (".".join(parts[: count + 1]) for count in range(len(parts)))


def _forget(imported: Mapping[str, tuple[Path, str]]) -> None:
    """Have these modules imported anew, from their texts: compiled files are told apart by whole seconds and sizes."""
    for name, (_, _) in imported.items():
        module = sys.modules.pop(name, None)
        compiled = getattr(module, "__cached__", None)
        if compiled is not None:
            with suppress(OSError):
                Path(compiled).unlink()
    importlib.invalidate_caches()
    linecache.checkcache()


def _text_digest(path: Path) -> str | None:
    try:
        return blake2b(path.read_bytes(), digest_size=8).hexdigest()
    except OSError:  # it is gone: a comparison finds a difference
        return None


@cache
def load_entry_points() -> None:
    """Import every installed package that announces itself under `fedstill.plugins`."""
    for point in entry_points(group=GROUP):
        try:
            point.load()
        except Exception as error:
            why = import_remedy(error) or error
            raise InputError(f"the plugin {point.name} ({point.value}) cannot be loaded: {why}") from error


def use_plugins(files: Sequence[str | Path]) -> None:
    """Load installed plugins and the files named; two of these files may not register the same name."""
    load_entry_points()
    owners: dict[tuple[str, str], Path] = {}
    for file in files:
        load_plugin(file)
        path = Path(file).resolve()
        for registration in _loaded[path].made:
            owner = owners.setdefault(registration.place, path)
            if owner != path:
                what, name = registration.place
                raise InputError(f"two {what}s are called {name!r}, in {owner} and in {path}: rename one of them")


def loaded_plugins() -> dict[str, str]:
    """The files loaded so far, each with a digest of its text and of the modules of the user's own that it imports."""
    return {str(path): plugin.whole_digest for path, plugin in _loaded.items()}
