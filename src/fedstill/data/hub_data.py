"""Hugging Face data sets by name, `hf:NAME` or `hf:FOLDER`, read with the package datasets (the extra `datasets`)."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

from fedstill.core.errors import InputError
from fedstill.core.files import from_home
from fedstill.data.bundle import Bundle, Source

PREFIX = "hf"
_SAVED = ("dataset_dict.json", "state.json")  # what `save_to_disk` leaves in a folder


def load_hub(source: Source) -> Bundle:
    """A data set of the hub, or in a folder: one that was saved to disk, or files that `load_dataset` knows.

    A configuration stands behind a colon: `hf:NAME:CONFIGURATION`. Only the splits train, validation and test are used;
    without a test split a fifth of every class is held out.
    """
    from fedstill.data.objects import dataset

    found = _read(source.name.partition(":")[2], source.name)
    if not isinstance(found, dict):
        return replace(dataset(found), name=source.name)
    splits = {name: found[name] for name in ("train", "validation", "test") if name in found}
    if "train" not in splits:
        raise InputError(f"{source.name} has the splits {', '.join(map(str, found))}, and none is called train")
    return replace(dataset(splits if "test" in splits else splits["train"]), name=source.name)


def _read(text: str, name: str) -> Any:
    package = _package(name)
    folder = from_home(text)
    try:
        if folder.is_dir():
            saved = any((folder / file).is_file() for file in _SAVED)
            return package.load_from_disk(str(folder)) if saved else package.load_dataset(str(folder))
        place, _, configuration = text.partition(":")
        return package.load_dataset(place, configuration or None)
    except Exception as error:  # the package raises errors of many kinds, of its own and of others
        why = " ".join(str(error).split())[:300]
        raise InputError(f"{name} cannot be read by datasets ({type(error).__name__}: {why})") from error


def _package(name: str) -> Any:
    try:
        return import_module("datasets")
    except ImportError:
        raise InputError(f"{name} needs the package datasets: pip install 'fedstill[datasets]' brings it") from None
