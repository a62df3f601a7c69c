"""HDF5 files of clouds: `modelnet40_ply_hdf5_2048` (several per split, with lists of them) and ScanObjectNN."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from fedstill.core.errors import InputError
from fedstill.data.readers.raw import (
    Array,
    FileFindings,
    Part,
    Raw,
    ReaderHints,
    Split,
    joined,
    larger_than_memory,
    refuse_empty,
)

SUFFIXES = (".h5", ".hdf5")
_WORD = re.compile(r"training|train|validation|val|test", re.IGNORECASE)
_PARTS: dict[str, Part] = {"tr": "train", "va": "validation", "te": "test"}


def present(folder: Path) -> bool:
    return _home(folder) is not None


def read(path: Path, found: FileFindings, hints: ReaderHints) -> Raw:
    """Read a folder, or one file and its partner: training_x.h5 for test_x.h5 too."""
    home = path.parent if path.is_file() else _home(path) or path
    raw = Raw({}, _class_names(home))
    listed = {} if path.is_file() else _listed(home, found)
    for part, files in (listed or _by_name(home, found, path.stem if path.is_file() else None)).items():
        pairs: list[tuple[Array, Array]] = []
        for file in files:
            with found.collecting():
                pairs.append(_pair(file, hints.points))
        if pairs:
            where = ", ".join(file.name for file in files)
            with found.collecting():
                if len({clouds.shape[1:] for clouds, _ in pairs}) > 1:
                    raise InputError(f"{where} in {home} hold clouds of different shapes")
                clouds, labels = (joined(list(some)) for some in zip(*pairs, strict=True))
                raw.splits[part] = Split(clouds, labels, f"{where} in {home}")
    return raw


def _home(folder: Path) -> Path | None:
    """The folder itself or one at most two levels below it; for ScanObjectNN, `main_split` comes first."""
    for depth in ("", "*/", "*/*/"):
        for place in [folder] if not depth else sorted(folder.glob(depth)):
            if _files(place):
                return place
    return None


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file())


def _listed(home: Path, found: FileFindings) -> dict[Part, list[Path]]:
    """Files in the lists beside them, which contain paths of another machine: only the file names are used."""
    lists: dict[Part, Path] = {"train": home / "train_files.txt", "test": home / "test_files.txt"}
    if not all(path.is_file() for path in lists.values()):
        return {}
    splits: dict[Part, list[Path]] = {}
    for part, listing in lists.items():
        splits[part] = []
        for line in listing.read_text(encoding="utf-8", errors="replace").split():
            file = home / line.replace("\\", "/").rpartition("/")[2]
            if file.is_file():
                splits[part].append(file)
            else:
                found.faults.append(f"{listing} names {file.name}, which does not exist")
    return splits


def _by_name(home: Path, found: FileFindings, chosen: str | None) -> dict[Part, list[Path]]:
    """Files by the split in their names; the rest of the name distinguishes variants of the data."""
    variants: dict[str, dict[Part, list[Path]]] = {}
    for file in _files(home):
        word = _WORD.search(file.stem)
        part: Part = _PARTS[word.group()[:2].lower()] if word else "whole"
        variants.setdefault(_variant(file.stem), {}).setdefault(part, []).append(file)
    # The shortest name is the basic variant of the data set.
    variant = min(variants, key=lambda name: (len(name), name)) if chosen is None else _variant(chosen)
    if chosen is None and len(variants) > 1:
        others = sorted(
            file.name for name, splits in variants.items() if name != variant for file in splits.get("train", [])
        )
        if others:
            found.notes.append(f"{home} also holds {', '.join(others)}: give such a file's path to use it instead")
    return variants[variant]


def _variant(stem: str) -> str:
    """
    >>> _variant("ply_data_train0") == _variant("ply_data_test1")
    True
    """
    return _WORD.sub("", stem, count=1).rstrip("0123456789")


def _pair(path: Path, points: int) -> tuple[Array, Array]:
    import h5py  # imported here, because most commands do not need it

    refuse_empty(path)
    try:
        with h5py.File(path, "r") as file:
            held = sorted(file)
            if not {"data", "label"} <= set(held):
                raise InputError(f"{path} holds {', '.join(held) or 'nothing'}; expected are data and label")
            shape = file["data"].shape
            if len(shape) != 3 or shape[2] < 3 or shape[1] < 1:
                raise InputError(f"data in {path} has the shape {shape}; expected is (clouds, points, 3)")
            clouds, labels = file["data"][:, :points, :3], file["label"][:]
    except MemoryError:
        raise larger_than_memory(str(path)) from None
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is no HDF5 file, or is damaged ({' '.join(str(error).split())})") from None
    if len(clouds) != len(labels):
        raise InputError(f"{path} holds {len(clouds):,} clouds but {len(labels):,} labels")
    return np.asarray(clouds), np.asarray(labels).reshape(len(labels), -1)


def _class_names(home: Path) -> tuple[str, ...] | None:
    for listing in sorted(home.glob("*shape_names.txt")):
        return tuple(
            line.strip() for line in listing.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()
        )
    return None
