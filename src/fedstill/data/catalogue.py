"""Data sets by name: load, check, list and record them.

A custom data set is a function with a registered name, usable wherever a name is accepted:

    from fedstill.data.catalogue import Bundle, Source, datasets

    @datasets.register("mine")
    def mine(source: Source) -> Bundle:
        '''One sentence for `fedstill data list`.'''
        train, test = ArrayDataset(inputs=..., labels=...), ArrayDataset(inputs=..., labels=...)
        return Bundle(source.name, train, test, classes=("a", "b"), kind="image", shape=(1, 28, 28))
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedstill.core.errors import InputError
from fedstill.core.files import from_home
from fedstill.data.bundle import Bundle, Loader, Source, datasets
from fedstill.data.check import CheckReport, check
from fedstill.data.file_sources import FromFiles
from fedstill.data.lookup import load
from fedstill.data.roots import checked_name, data_root, record, recorded

__all__ = [
    "Available",
    "Bundle",
    "CheckReport",
    "Loader",
    "Source",
    "add",
    "available",
    "check",
    "data_root",
    "datasets",
    "load",
]


def add(name: str, path: Path, root: Path | None = None) -> Bundle:
    """Record the location of a data set, under a new or a known name (`add("mnist", ...)`), once it loads."""
    checked_name(name)
    if name in datasets and not isinstance(datasets[name], FromFiles):
        raise InputError(f"{name!r} is made by code and needs no files: choose another name")
    place = data_root(root)
    entries = recorded(place)
    bundle = load(name, place, path)
    record(place, {**entries, name: from_home(path).resolve()})
    return bundle


@dataclass(frozen=True)
class Available:
    """One line of `fedstill data list`."""

    name: str
    summary: str
    found: bool
    where: str  # "built in", a path, or, if not found, how to get it


def available(root: Path | None = None) -> list[Available]:
    """Every known or recorded name, and whether its files are present."""
    place = data_root(root)
    if root is not None and not place.is_dir():
        raise InputError(f"the data root {place} does not exist: create it, or name another")
    entries = recorded(place)
    return [_describe(name, place, entries.get(name)) for name in sorted({*datasets.names(), *entries})]


def _describe(name: str, root: Path, path: Path | None) -> Available:
    if name not in datasets:
        there = path is not None and path.exists()
        summary = "Your own, recorded with `fedstill data add`."
        return Available(name, summary, there, str(path) if there else f"{path} does not exist")
    loader, summary = datasets[name], datasets.summary(name)
    if not isinstance(loader, FromFiles):
        return Available(name, summary, True, "built in")
    try:
        return Available(name, summary, True, str(loader.locate(Source(name, root, path))))
    except InputError:
        return Available(name, summary, False, f"{path} does not exist" if path else loader.get)
