"""Folders of images, a folder per class: with train and test folders above them (as CINIC-10 has) or without."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedstill.core.errors import InputError
from fedstill.data.data_settings import DataSettings
from fedstill.data.readers.label_table import SEVERAL, TableRow
from fedstill.data.readers.lazy_pixels import DecodedFiles, LazyPixels
from fedstill.data.readers.pictures import (
    DEEP_MODES,
    GREY_MODES,
    SUFFIXES,
    ImageForm,
    decode,
    header,
    holds_several,
    is_image,
)
from fedstill.data.readers.raw import Array, FileFindings, Part, Raw, ReaderHints, Split, are_splits, split_folders

_MEGABYTE = 10**6
_SOME = 5  # suffixes in a note
_DIM = 17  # 12 bits that are stored in 16 end below it


class _Picture(NamedTuple):
    path: Path
    label: int
    size: tuple[int, int]
    mode: str
    row: TableRow | None = None  # of a table of labels


def present(folder: Path) -> bool:
    return any(_images(place) for place in (*_subfolders(folder), *folder.glob("*/*/")))


def classified(folder: Path) -> bool:
    """Whether images are in several folders, which are classes or splits."""
    places = (*_subfolders(folder), *(place for place in folder.glob("*/*/") if place.is_dir()))
    return sum(bool(_images(place)) for place in places) > 1


def read(folder: Path, found: FileFindings, hints: ReaderHints) -> Raw:
    """Reads headers first and pixels second: the final array is allocated once, which matters for 270,000 images."""
    homes = _homes(folder, found)
    classes = tuple(sorted({place.name for home in homes.values() for place in _subfolders(home)}))
    pictures = {part: _survey(home, classes, found) for part, home in homes.items()}
    every = [picture for survey in pictures.values() for picture in survey]
    if not every:
        found.faults.append(_without_images(folder, found))
        return Raw({}, classes)
    raw = Raw({}, classes)
    with found.collecting():
        form = _common(every, hints.settings, folder, found)
        share = _share(every, form, hints.settings)
        for part, survey in pictures.items():
            raw.splits[part] = _decoded(survey, form, homes[part], share, found)
    return raw


def _without_images(folder: Path, found: FileFindings) -> str:
    """Why a folder has no images in class folders."""
    if found.skipped:
        return f"no image of {folder} can be read, the first is {found.skipped[0]}"
    deeper = "; if its folders are sites, set site=folder, and if they are classes, move the images of their folders up"
    images = walk_images(folder)
    return f"{folder} has no images in class folders ({', '.join(sorted(SUFFIXES))}){deeper if images else ''}"


def decoded_splits(
    listed: Mapping[Part, Mapping[Path, TableRow]],
    classes: tuple[str, ...],
    folder: Path,
    settings: DataSettings,
    found: FileFindings,
) -> Raw:
    """Images of a table of labels, by split."""
    place = {SEVERAL: 0, **{name: number for number, name in enumerate(classes)}}
    pictures = {
        part: [
            picture._replace(row=row)
            for path, row in rows.items()
            if row.label in place
            for picture in _pictures([path], place[row.label], found)
        ]
        for part, rows in listed.items()
    }
    raw = Raw({}, classes)
    every = [picture for survey in pictures.values() for picture in survey]
    if not every:
        found.faults.append(
            _without_images(folder, found)
            if found.skipped
            else f"{folder} has no images of the classes in its table ({', '.join(sorted(SUFFIXES))})"
        )
        return raw
    form = _common(every, settings, folder, found)
    share = _share(every, form, settings)
    for part, survey in pictures.items():
        raw.splits[part] = _decoded(survey, form, folder, share, found)
    return raw


def walk_images(folder: Path) -> list[Path]:
    """All images below a folder, sorted by path."""
    return sorted(
        Path(place, name)
        for place, folders, names in os.walk(folder)
        for name in names
        if "__MACOSX" not in place and is_image(Path(place, name))
    )


def read_unlabelled(folder: Path, settings: DataSettings, found: FileFindings) -> Array | None:
    """The images in the folder itself, by name; None if there are none, or if there are class folders."""
    if present(folder):
        return None
    pictures = _pictures(_images(folder), 0, found)
    if not pictures:
        return None
    split = _decoded(pictures, _common(pictures, settings, folder, found), folder, None, found)
    assert isinstance(split.inputs, np.ndarray)
    return split.inputs


def _homes(folder: Path, found: FileFindings) -> dict[Part, Path]:
    """Split folders if both train and test exist; else the folder itself, to be split later."""
    named = split_folders(_subfolders(folder), found)
    return named if are_splits(named) else {"whole": folder}


def _survey(home: Path, classes: tuple[str, ...], found: FileFindings) -> list[_Picture]:
    pictures: list[_Picture] = []
    if loose := _images(home):
        found.doubts.append(
            f"{len(loose):,} images in {home} itself are in no class folder and are left out: {loose[0]}"
        )
    for place in _subfolders(home):
        images = _images(place)
        visible = [path for path in place.iterdir() if path.is_file() and not path.name.startswith(".")]
        others = sorted(set(visible) - set(images))
        if others:
            suffixes = ", ".join(sorted({path.suffix.lower() or path.name for path in others})[:_SOME])
            found.notes.append(f"{len(others):,} files in {place} are not images ({suffixes}) and are left out")
        deeper = [path for path in walk_images(place) if path.parent != place] if _subfolders(place) else []
        if deeper:
            found.doubts.append(f"{len(deeper):,} images in folders below {place} are left out: {deeper[0]}")
        pictures += _pictures(images, classes.index(place.name), found)
    return pictures


def _pictures(paths: list[Path], label: int, found: FileFindings) -> list[_Picture]:
    pictures: list[_Picture] = []
    several: list[Path] = []
    for path in paths:
        with found.reading():
            size, mode = header(path)
            pictures.append(_Picture(path, label, size, mode))
            several += [path] if holds_several(path) else []
    if several:
        found.doubts.append(f"{len(several):,} files hold several pictures, and the first is read: {several[0]}")
    return pictures


def _common(pictures: list[_Picture], settings: DataSettings, folder: Path, found: FileFindings) -> ImageForm:
    """The form to which all these images are converted; images of several sizes need one that is set."""
    grey = all(picture.mode in GREY_MODES for picture in pictures)
    mode = {None: "L" if grey else "RGB", 1: "L", 3: "RGB"}[settings.channels]
    deep = sum(picture.mode in DEEP_MODES for picture in pictures)
    if deep:
        found.notes.append(
            f"{deep:,} of {len(pictures):,} images have more than 8 bits: black to white is the range of their type,"
            " and becomes 0 to 255"
        )
    sizes = Counter(picture.size for picture in pictures)
    if settings.size is not None:
        return ImageForm(mode, (settings.size, settings.size), settings.fit)
    if len(sizes) > 1:
        usual = sizes.most_common(1)[0][0]
        odd = next(picture for picture in pictures if picture.size != usual)
        raise InputError(
            f"images have {len(sizes)} sizes, most of them {usual[0]}x{usual[1]} and {odd.path} {odd.size[0]}x"
            f"{odd.size[1]}: set the side of the squares to read, as in folder:{folder},size=224 (fit=crop or fit=pad"
            " keeps their proportions)"
        )
    return ImageForm(mode, pictures[0].size, settings.fit)


def _share(every: list[_Picture], form: ImageForm, settings: DataSettings) -> float | None:
    """The share of all images that may stay in memory, where it is not all of them."""
    needed, allowed = len(every) * math.prod(form.shape), settings.memory * _MEGABYTE
    return None if needed <= allowed else allowed / needed


def _decoded(survey: list[_Picture], form: ImageForm, home: Path, share: float | None, found: FileFindings) -> Split:
    inputs: Array | LazyPixels = np.empty((0 if share is not None else len(survey), *form.shape), dtype=np.uint8)
    if share is not None:
        limit = int(share * len(survey) * math.prod(form.shape))
        inputs = LazyPixels(DecodedFiles([picture.path for picture in survey], form, limit))
    good = np.ones(len(survey), dtype=bool)
    brightest = 0
    for row, picture in enumerate(survey):
        good[row] = False
        with found.reading():
            pixels = decode(picture.path, form.mode, form.size, fit=form.fit)
            brightest = max(brightest, int(pixels.max()) if picture.mode in DEEP_MODES else _DIM)
            inputs[row] = pixels
            good[row] = True
    if 0 < brightest < _DIM:
        found.doubts.append(
            f"images of more than 8 bits in {home} end at {brightest} of 255, as 10 or 12 bits stored in 16 do: write"
            " them anew over the whole range"
        )
    labels = np.array([picture.label for picture in survey], dtype=np.int64)
    kept = [picture for picture, fine in zip(survey, good, strict=True) if fine]
    if not good.all():
        inputs, labels = inputs[good], labels[good]
    rows = [picture.row for picture in kept if picture.row is not None]
    if rows and rows[0].targets:
        labels = np.array([row.targets for row in rows], dtype=bool)
    sites, groups = (tuple(getattr(row, key) for row in rows) for key in ("site", "group"))
    names = tuple(str(picture.path) for picture in kept)
    return Split(inputs, labels, str(home), names, sites if any(sites) else (), groups if any(groups) else ())


def _subfolders(folder: Path) -> list[Path]:
    return sorted(
        place for place in folder.iterdir() if place.is_dir() and not place.name.startswith((".", "__MACOSX"))
    )


def _images(place: Path) -> list[Path]:
    return sorted(path for path in place.iterdir() if is_image(path))
