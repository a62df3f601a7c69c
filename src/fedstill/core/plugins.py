"""A user's own parts: a Python file named with `--plugin`, or an installed package's entry point.

Loading a plugin runs its code, so it is always the person at the keyboard who names it.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from functools import cache
from hashlib import blake2b
from importlib.metadata import entry_points
from pathlib import Path

from fedstill.core.errors import InputError
from fedstill.core.renamed import import_remedy

GROUP = "fedstill.plugins"
_loaded: dict[Path, str] = {}


def load_plugin(file: str | Path) -> None:
    """Run a plugin file once; what it registers is then known by name."""
    path = Path(file).resolve()
    if path in _loaded:
        return
    if path.suffix != ".py" or not path.is_file():
        raise InputError(f"no plugin at {file}: --plugin takes an existing Python file")
    # The name depends on the path alone, so that another process that loads the file finds the same classes.
    name = f"fedstill_plugin_{path.stem}_{blake2b(str(path).encode(), digest_size=4).hexdigest()}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        if isinstance(error, InputError):
            raise
        why = import_remedy(error) or f"{type(error).__name__}: {error}"
        raise InputError(f"the plugin {file} cannot be loaded: {why}") from error
    _loaded[path] = blake2b(path.read_bytes(), digest_size=8).hexdigest()


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
    """Load installed plugins and the files named."""
    load_entry_points()
    for file in files:
        load_plugin(file)


def loaded_plugins() -> dict[str, str]:
    """The files loaded so far, each with a digest of its text: part of a run's identity where it is used."""
    return {str(path): digest for path, digest in _loaded.items()}
