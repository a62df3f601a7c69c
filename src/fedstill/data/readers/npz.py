"""NumPy archives in the three common naming conventions, and single arrays. Pickles are never loaded."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.lib.npyio import NpzFile

from fedstill.core.errors import InputError
from fedstill.core.files import check_regular
from fedstill.data.readers.raw import Array, FileFindings, Part, Raw, Split, larger_than_memory


class _Habit(NamedTuple):
    """A naming convention: samples and labels by split, and the list of classes."""

    splits: dict[Part, tuple[str, str]]
    classes: str = "classes"
    gaps: bool = False  # labels below zero mark unlabelled samples


# Coarse classes come first: if objects are numbered individually as well, each has only one sample.
_HABITS = (
    _Habit({"train": ("x_train", "y_train"), "validation": ("x_val", "y_val"), "test": ("x_test", "y_test")}),
    _Habit(
        {
            "train": ("train_images", "train_labels"),
            "validation": ("val_images", "val_labels"),
            "test": ("test_images", "test_labels"),
        }
    ),
    _Habit({"whole": ("x", "y_category")}, "categories", gaps=True),
    _Habit({"whole": ("x", "y_keyword")}, "keyword_classes", gaps=True),
    _Habit({"whole": ("x", "y")}),
)
SHARD = "fedstill_shard"  # marks one site's part of a data set, which `data/site_archive.py` reads
EXPECTED = "x_train, y_train, x_test, y_test, or train_images, train_labels, test_images, test_labels, or x, y"
# What zipfile, zlib and numpy raise on damaged archives; zipfile raises NotImplementedError for unknown compression
# and RuntimeError for encryption.
_DAMAGE = (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError)


def read(path: Path, found: FileFindings) -> Raw:
    raw = Raw({})
    with found.collecting(), opened(path) as archive:
        if SHARD in archive.files:  # the usual reader would drop its sample ids, and normalise its clouds again
            raise InputError(f"{path} is one site's part of a data set: it can be used as npz:{path} only")
        habit = _habit(archive, path)
        for part, keys in habit.splits.items():
            pair: list[Array] = []
            for key in keys:
                with found.collecting():
                    pair.append(array(archive, key, path))
            if len(pair) == 2:
                split = Split(pair[0], pair[1], f"{', '.join(keys)} in {path}")
                raw.splits[part] = _labelled(split, found) if habit.gaps else split
        if habit.classes in archive.files:
            with found.collecting():
                raw.classes = tuple(str(name) for name in array(archive, habit.classes, path).reshape(-1).tolist())
    return raw


def read_unlabelled(path: Path) -> Array | None:
    """The samples of an archive without labels, in any naming convention; None if it contains labels."""
    samples = [inputs for habit in _HABITS for part, (inputs, _) in habit.splits.items() if part in ("train", "whole")]
    labels = {labels for habit in _HABITS for _, labels in habit.splits.values()}
    with opened(path) as archive:
        if labels & set(archive.files):
            return None
        for key in samples:
            if key in archive.files:
                return array(archive, key, path)
    return None


def _labelled(split: Split, found: FileFindings) -> Split:
    """The samples that have a label."""
    have = split.labels >= 0 if split.labels.ndim == 1 and split.labels.dtype.kind == "i" else None
    if have is None or split.inputs.shape[:1] != have.shape or have.all():
        return split
    found.notes.append(
        f"{int((~have).sum()):,} of {len(have):,} samples have no label and are left out ({split.where})"
    )
    return split._replace(inputs=split.inputs[have], labels=split.labels[have])


def opened(path: Path) -> NpzFile:
    first = _first_bytes(path)
    if first != b"PK":  # numpy would take the file for a pickle or for a single array
        raise InputError(f"{path} {'is no npz archive' if first else 'is empty (0 bytes)'}: fetch or write it again")
    try:
        archive: NpzFile = np.load(path, allow_pickle=False)
    except _DAMAGE as error:
        raise InputError(f"{path} is damaged ({error}): fetch or write it again") from None
    return archive


def lone_array(path: Path) -> Array:
    """The array of an .npy file."""
    first = _first_bytes(path)
    if not first:
        raise InputError(f"{path} is empty (0 bytes): fetch or write it again")
    if first != b"\x93N":  # numpy would take the file for a pickle or for an archive
        archive = " (it is an archive)" if first == b"PK" else ""
        raise InputError(f"{path} cannot be read as an array{archive}: write it with numpy.save")
    try:
        return np.asarray(np.load(path, allow_pickle=False))
    except MemoryError:
        raise larger_than_memory(str(path)) from None
    except _DAMAGE as error:
        if "allow_pickle" in str(error):
            raise InputError(f"{path} is an array of Python objects, which are never loaded: save numbers") from None
        raise InputError(f"{path} cannot be read as an array ({' '.join(str(error).split())})") from None


def _first_bytes(path: Path) -> bytes:
    check_regular(path)
    try:
        with path.open("rb") as file:
            return file.read(2)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None


def _habit(archive: NpzFile, path: Path) -> _Habit:
    """The naming convention whose training arrays exist, without the optional validation split if it is absent."""
    held = set(archive.files)
    for habit in _HABITS:
        keys = [key for part in ("train", "whole") for key in habit.splits.get(part, ())]
        if all(key in held for key in keys) if habit.gaps else any(key in held for key in keys):
            splits = {part: pair for part, pair in habit.splits.items() if part != "validation" or held & set(pair)}
            return habit._replace(splits=splits)
    raise InputError(f"{path} holds {', '.join(sorted(held)) or 'nothing'}; expected are {EXPECTED}")


def array(archive: NpzFile, key: str, path: Path) -> Array:
    if key not in archive.files:
        raise InputError(f"{path} lacks {key!r}; it holds {', '.join(sorted(archive.files))}")
    try:
        return np.asarray(archive[key])
    except MemoryError:
        raise larger_than_memory(f"{key!r} in {path}") from None
    except _DAMAGE as error:
        if "allow_pickle" in str(error):
            raise InputError(f"{key!r} in {path} is an array of Python objects, which are never loaded") from None
        raise InputError(f"{key!r} in {path} is damaged ({error}): fetch or write it again") from None
