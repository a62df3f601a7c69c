"""Folders of images, a folder per class: with train and test folders above them (as CINIC-10 has) or without."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedstill.core.errors import InputError
from fedstill.data.readers.pictures import GREY_MODES, SUFFIXES, decode, header
from fedstill.data.readers.raw import Array, FileFindings, Part, Raw, Split, split_folders


class _Picture(NamedTuple):
    path: Path
    label: int
    size: tuple[int, int]
    grey: bool


def present(folder: Path) -> bool:
    return any(_images(place) for place in (*_subfolders(folder), *folder.glob("*/*/")))


def read(folder: Path, found: FileFindings) -> Raw:
    """Reads headers first and pixels second: the final array is allocated once, which matters for 270,000 images."""
    homes = _homes(folder, found)
    classes = tuple(sorted({place.name for home in homes.values() for place in _subfolders(home)}))
    pictures = {part: _survey(home, classes, found) for part, home in homes.items()}
    every = [picture for survey in pictures.values() for picture in survey]
    if not every:
        found.faults.append(f"{folder} has no images in class folders ({', '.join(sorted(SUFFIXES))})")
        return Raw({}, classes)
    mode, size = _common(every, found)
    raw = Raw({}, classes)
    for part, survey in pictures.items():
        raw.splits[part] = _decoded(survey, mode, size, homes[part], found)
    return raw


def read_unlabelled(folder: Path, found: FileFindings) -> Array | None:
    """The images in the folder itself, by name; None if there are none, or if there are class folders."""
    if present(folder):
        return None
    pictures = _pictures(_images(folder), 0, found)
    if not pictures:
        return None
    mode, size = _common(pictures, found)
    return _decoded(pictures, mode, size, folder, found).inputs


def _homes(folder: Path, found: FileFindings) -> dict[Part, Path]:
    """Split folders if both train and test exist; else the folder itself, to be split later."""
    named = split_folders(_subfolders(folder), found)
    return named if {"train", "test"} <= set(named) else {"whole": folder}


def _survey(home: Path, classes: tuple[str, ...], found: FileFindings) -> list[_Picture]:
    pictures: list[_Picture] = []
    for place in _subfolders(home):
        images = _images(place)
        others = sum(1 for path in place.iterdir() if path.is_file()) - len(images)
        if others:
            found.notes.append(f"{others:,} files in {place} are not images and are left out")
        pictures += _pictures(images, classes.index(place.name), found)
    return pictures


def _pictures(paths: list[Path], label: int, found: FileFindings) -> list[_Picture]:
    pictures: list[_Picture] = []
    for path in paths:
        with found.collecting():
            size, mode = header(path)
            pictures.append(_Picture(path, label, size, mode in GREY_MODES))
    return pictures


def _common(pictures: list[_Picture], found: FileFindings) -> tuple[str, tuple[int, int]]:
    """The Pillow mode and the size to which all these images are converted."""
    sizes = Counter(picture.size for picture in pictures)
    size, usual = sizes.most_common(1)[0]
    if usual < len(pictures):
        found.notes.append(
            f"images have {len(sizes)} sizes: {len(pictures) - usual:,} of {len(pictures):,} "
            f"are resized to the most common, {size[0]}x{size[1]}"
        )
    return "L" if all(picture.grey for picture in pictures) else "RGB", size


def _decoded(survey: list[_Picture], mode: str, size: tuple[int, int], home: Path, found: FileFindings) -> Split:
    shape = (size[1], size[0]) if mode == "L" else (size[1], size[0], 3)
    inputs: Array = np.empty((len(survey), *shape), dtype=np.uint8)
    good = np.ones(len(survey), dtype=bool)
    for row, picture in enumerate(survey):
        try:
            inputs[row] = decode(picture.path, mode, size)
        except InputError as error:
            found.faults.append(str(error))
            good[row] = False
    labels = np.array([picture.label for picture in survey], dtype=np.int64)
    if not good.all():
        inputs, labels = inputs[good], labels[good]
    return Split(inputs, labels, str(home))


def _subfolders(folder: Path) -> list[Path]:
    return sorted(place for place in folder.iterdir() if place.is_dir() and not place.name.startswith("."))


def _images(place: Path) -> list[Path]:
    return sorted(path for path in place.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file())
