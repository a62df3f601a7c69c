"""From a data set's name to its loader, and to the data set itself."""

from __future__ import annotations

import logging
import re
from collections.abc import Set
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from fedstill.core.errors import InputError, did_you_mean
from fedstill.core.files import from_home
from fedstill.data.bundle import Bundle, Loader, Source, datasets
from fedstill.data.data_settings import DataSettings, split_name
from fedstill.data.named_slices import part_of, sliced
from fedstill.data.roots import data_root, recorded

_log = logging.getLogger(__name__)

_PREFIXES = ("npz", "folder", "table", "signals")
_OBJECT = re.compile(r".+-[0-9a-f]{8}")  # the name of data that was passed as an object
_HELD = 8  # data sets that were passed as objects and can still be looked up by name
_held: dict[str, Bundle] = {}


def is_object_name(name: str) -> bool:
    """Whether this is the name of data that was passed as an object."""
    return _OBJECT.fullmatch(name) is not None and name not in datasets


def hold(bundle: Bundle) -> None:
    """Let a data set that was passed as an object be loaded by its name, in this process."""
    _held.pop(bundle.name, None)
    _held[bundle.name] = bundle
    while len(_held) > _HELD:
        del _held[next(iter(_held))]


def _path_name(path: Path) -> str:
    """A folder or archive of samples by its path, as a data set's name."""
    return f"{'folder' if path.is_dir() else 'npz'}:{path}"


def by_name(given: str | Path) -> str:
    """The name of a data set; what is no name, but the path of a folder or archive, becomes one."""
    plain, settings = split_name(str(given))
    path = Path(plain).expanduser()
    named = isinstance(given, str) and (plain in datasets or ":" in plain or not path.exists())
    return str(given) if named else _path_name(path) + settings.text()


def load(name: str, root: Path | None = None, path: Path | None = None, part: bool = False) -> Bundle:
    """The data set of that name, from the data root or from a given path; with `part`, one site's part of one.

    >>> load("digits").shape
    (1, 8, 8)
    """
    plain, settings = split_name(name)
    if plain in _held and path is None:
        return _arranged(_held[plain], settings)
    loader, source = look_up(name, root, path)
    begun = perf_counter()
    bundle = loader(replace(source, part=part))
    if settings.normals:
        from fedstill.data.image_layout import check_normals  # few runs need Pillow

        check_normals(bundle.kind, bundle.shape, name)
    seconds, train, test = perf_counter() - begun, len(bundle.train), len(bundle.test)
    _log.info("read %s: %d training and %d test samples in %.2f s", name, train, test, seconds)
    return bundle


def look_up(name: str, root: Path | None = None, path: Path | None = None) -> tuple[Loader, Source]:
    """A given path has priority over one recorded under the name, which has priority over the usual places in the root.

    For a name with a slice, as in `cifar10[:50%]`, the loader returns that slice; for one with settings, as in
    `cifar10,size=64`, data that is read as they say.
    """
    name, settings = split_name(name)
    if settings.text():
        loader, source = look_up(name, root, path)
        reads_settings = _from_files(loader) or loader is _from_hub
        fitting = loader if reads_settings else lambda given: _arranged(loader(given), given.settings)
        return fitting, replace(source, settings=settings)
    whole, part = part_of(name)
    if part is not None:
        loader, source = look_up(whole, root, path)
        return sliced(loader, part, name), source
    kind, colon, rest = name.partition(":")
    if colon and kind in _PREFIXES:
        return _own_files(kind), Source(name, data_root(root), _typed(kind, from_home(rest), name))
    place = data_root(root)
    if colon and kind == "hf":
        return _from_hub, Source(name, place)
    if colon and kind in datasets and _from_files(datasets[kind]):
        return datasets[kind], Source(name, place, _typed("folder", from_home(rest), name))
    entries = recorded(place)
    source = Source(name, place, (from_home(path) if path is not None else None) or entries.get(name))
    if name in datasets:
        return datasets[name], source
    if source.path is not None:
        return _own_files(), source
    raise InputError(f"unknown data set {name!r}: {_meant(name, {*datasets.names(), *entries})}")


def as_named(bundle: Bundle, name: str) -> Bundle:
    """A data set that is at hand, with the settings of a name for it; one that was read by that name has them."""
    plain, settings = split_name(name)
    read = bundle.name == name or (plain not in _held and split_name(bundle.name)[0] == plain and settings.of_files)
    return bundle if read else _arranged(bundle, settings)


def _arranged(bundle: Bundle, settings: DataSettings) -> Bundle:
    """Data that was not read from files by itself, as its settings say."""
    if not settings.text():
        return bundle
    if of_files := settings.of_files:
        raise InputError(f"{bundle.name} is not read from files of your own: leave {of_files[0]} out")
    from fedstill.data.image_layout import arranged  # few runs need Pillow

    return arranged(bundle, settings)


def _from_files(loader: Loader) -> bool:
    """Whether a data set is read from files, whose folder can then be given as NAME:FOLDER."""
    from fedstill.data.file_sources import FromFiles

    return isinstance(loader, FromFiles)


def _from_hub(source: Source) -> Bundle:
    """A loader of Hugging Face data sets, imported only if needed."""
    from fedstill.data.hub_data import load_hub

    return load_hub(source)


def _own_files(kind: str = "") -> Loader:
    """A loader for the user's own files of any kind; readers are imported only if needed."""
    if kind == "table":
        from fedstill.data.tabular import TableFiles

        return TableFiles("A table of your own.")
    if kind == "signals":
        from fedstill.data.signals import SignalFiles

        return SignalFiles("Signals of your own.")
    from fedstill.data.site_archive import FilesOrShard

    return FilesOrShard("Files of your own.")


def _meant(name: str, known: Set[str]) -> str:
    """A suggestion for an unknown name: a file, a folder, or another name."""
    if is_object_name(name):
        return "it was passed as an object, and is not known here: pass it again as data"
    path = from_home(name)
    if path.is_dir():
        return f"that is a folder, say folder:{name}"
    if path.suffix.lower() in (".csv", ".tsv", ".parquet") and path.is_file():
        return f"that is a table, say table:{name}"
    if path.suffix == ".npz":
        return f"that is a file, say npz:{name}" if path.is_file() else f"there is no file {name}"
    return f"{did_you_mean(name, known)}; or give npz:PATH or folder:PATH"


def _typed(kind: str, path: Path, name: str) -> Path:
    if not path.exists():
        raise InputError(f"{name}: {path} does not exist")
    if kind == "npz" and not path.is_file():
        raise InputError(f"{name}: {path} is a folder; give the archive in it, or folder:{path}")
    if kind == "folder" and not path.is_dir():
        raise InputError(f"{name}: {path} is a file; give the folder it is in, or npz:{path}")
    return path
