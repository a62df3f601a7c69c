"""Hugging Face data sets by name, `hf:NAME` or `hf:FOLDER`, read with the package datasets (the extra `datasets`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedstill.core.errors import InputError, did_you_mean
from fedstill.core.files import from_home
from fedstill.data.bundle import Bundle, Source
from fedstill.data.data_settings import DataSettings

if TYPE_CHECKING:
    from fedstill.data.readers.raw import Array

PREFIX = "hf"
_SAVED = ("dataset_dict.json", "state.json")  # what `save_to_disk` leaves in a folder
_READ = ("size", "fit", "channels", "label")  # settings that are for these data sets, too


def load_hub(source: Source) -> Bundle:
    """A data set of the hub, or in a folder: one that was saved to disk, or files that `load_dataset` knows.

    A configuration stands behind a colon: `hf:NAME:CONFIGURATION`. Only the splits train, validation and test are used;
    without a test split a fifth of every class is held out. Settings name the column of labels, and the size and the
    channels of images.
    """
    from fedstill.data.objects import dataset

    settings, name = source.settings, source.full_name
    fields = type(settings).model_fields
    if other := [one for one in fields if one not in _READ and getattr(settings, one) != fields[one].default]:
        raise InputError(f"{other[0]} is no setting of data sets of Hugging Face: leave it out")
    found: Any = _read(source.name.partition(":")[2], source.name)
    splits = {"train": found}
    if isinstance(found, dict):
        splits = {part: found[part] for part in ("train", "validation", "test") if part in found}
        if "train" not in splits:
            raise InputError(f"{source.name} has the splits {', '.join(map(str, found))}, and none is called train")
    classes, label = None, settings.label
    if settings.size is not None or settings.channels is not None:
        form = _form(splits["train"], settings, name)
        classes, label = form.classes, None
        splits = {part: _Images(one, form) for part, one in splits.items()}
    try:
        made = dataset(splits if "test" in splits else splits["train"], classes=classes, label=label)
    except InputError as error:
        text = str(error).replace("fedstill.dataset(data, label=...)", f"as in {source.name},label=COLUMN")
        remedy = f", or set a size, as in {source.name},size=224" if "differ in shape" in text else ""
        raise InputError(f"{text}{remedy}") from None
    return replace(made, name=name)


@dataclass(frozen=True)
class _Form:
    """What images of a data set are converted to, and where their labels are."""

    column: str
    label: str
    settings: DataSettings
    classes: tuple[str, ...] | None
    where: str

    def image(self, row: int, held: Any) -> Array:
        from fedstill.data.readers.pictures import converted, fitted  # few runs need Pillow

        side = self.settings.size
        mode = "L" if self.settings.channels == 1 else "RGB"
        pixels = converted(held, mode, Path(f"row {row} of {self.where}"))
        return np.array(pixels if side is None else fitted(pixels, (side, side), self.settings.fit))


class _Images(Sequence[Any]):
    """One split, each sample converted when it is read."""

    def __init__(self, source: Any, form: _Form) -> None:
        self.source, self.form = source, form

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, row: Any) -> tuple[Array, Any]:
        held = self.source[int(row)]
        return self.form.image(row, held[self.form.column]), held[self.form.label]


def _form(source: Any, settings: DataSettings, where: str) -> _Form:
    from fedstill.data.readers.pictures import GREY_MODES

    kinds = {column: type(kind).__name__ for column, kind in source.features.items()}
    column = next((column for column, kind in kinds.items() if kind == "Image"), None)
    if column is None:
        raise InputError(f"size and channels are for images, and {where} has none: leave them out")
    usual = (*(one for one, kind in kinds.items() if kind == "ClassLabel"), "label", "labels")
    label = settings.label or next((one for one in usual if one in kinds), None)
    if label is None or label not in kinds:
        known = did_you_mean(label or "label", [one for one in kinds if one != column])
        raise InputError(f"{where} has no column {label or 'label'!r}: {known}; name it, label=COLUMN")
    if settings.channels is None:
        grey = all(image.mode in GREY_MODES for image in source[column])
        settings = settings.model_copy(update={"channels": 1 if grey else 3})
    names = getattr(source.features[label], "names", None)
    return _Form(column, label, settings, tuple(names) if names else None, where)


def _read(text: str, name: str) -> Any:
    package = _package(name)
    folder = from_home(text)
    if folder.is_file():
        raise InputError(f"{name}: {folder} is a file; give the folder it is in, or table:{folder} for a table")
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
