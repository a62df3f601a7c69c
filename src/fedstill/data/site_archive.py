"""An archive that contains one site's part of a data set.

A site that has only this file trains to results that match the simulation bit for bit. It is therefore not read like
other archives: samples already have the common layout and their final size and are not changed, rows keep their ids in
the whole data set, and classes without samples at the site are still classes. A site may also have no test or no
training data; its splits are then empty.

Arrays are named as in other archives, x_train and y_train, with id_train for the ids, and any other column of the data
under its own name (category_train).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.lib.npyio import NpzFile
from torch import Tensor

from fedstill.core.errors import InputError
from fedstill.data.bundle import Kind, Source
from fedstill.data.data_kinds import data_kinds
from fedstill.data.file_sources import FromFiles
from fedstill.data.findings import find_faults
from fedstill.data.image_layout import arrange_samples
from fedstill.data.layout import Samples
from fedstill.data.readers import npz
from fedstill.data.readers.raw import Array, FileFindings

PARTS = ("train", "test")
_SHORT = {"inputs": "x", "labels": "y", "sample_id": "id"}
_LONG = {short: name for name, short in _SHORT.items()}
_SIDES = {
    "image": 4,
    "cloud": 3,
    "scene": 3,
    "signal": 3,
    "array": None,
}  # dimensions of the whole column, samples included


@dataclass(frozen=True)
class Shard:
    """The contents of one archive: columns by split and name, as in the data set."""

    kind: Kind
    classes: tuple[str, ...]
    columns: Mapping[str, Mapping[str, Tensor]]
    categories: tuple[str, ...] = ()

    def write(self, file: BinaryIO) -> None:
        if taken := sorted(_LONG.keys() & {name for columns in self.columns.values() for name in columns}):
            raise InputError(f"a column cannot be called {taken[0]!r} in an archive: name it otherwise")
        arrays: dict[str, Any] = {
            f"{_SHORT.get(name, name)}_{part}": column.numpy()
            for part in PARTS
            for name, column in self.columns[part].items()
        }
        words = {npz.SHARD: self.kind, "classes": self.classes, "kinds": self.categories}
        arrays |= {key: np.array(said, dtype=np.str_) for key, said in words.items()}
        np.savez(file, **arrays)


@dataclass
class ShardSamples(Samples):
    """A split with all its columns."""

    others: dict[str, Tensor] = field(default_factory=dict)

    def columns(self) -> dict[str, Tensor]:
        return {"inputs": self.inputs, "labels": self.labels, **self.others}


class FilesOrShard(FromFiles):
    """The user's own files, including scenes, or one site's part of a data set."""

    def open(self, source: Source, found: FileFindings) -> tuple[dict[str, Samples], tuple[str, ...]]:
        for name in data_kinds:
            reader = data_kinds[name].reader
            recognised = None if source.path is None or reader is None else reader(source.path)
            if recognised is not None:
                return recognised.open(source, found)
        if source.path is None or not _is_shard(source.path):
            return super().open(source, found)
        splits: dict[str, Samples] = {}
        classes: tuple[str, ...] = ()
        with found.collecting():
            splits, classes = _read(source.path)
            arrange_samples(splits, source.settings)
            find_faults(splits, classes, found, every_class=False)
        return splits, classes


def _is_shard(path: Path) -> bool:
    if path.suffix.lower() != ".npz" or not path.is_file():
        return False
    try:
        with npz.opened(path) as archive:
            return npz.SHARD in archive.files
    except InputError:  # reading it raises the same error
        return False


def _read(path: Path) -> tuple[dict[str, Samples], tuple[str, ...]]:
    with npz.opened(path) as archive:
        kind = str(npz.array(archive, npz.SHARD, path))
        if kind not in _SIDES:
            raise InputError(f"{path} holds {kind!r} samples: another release of fedstill must have written it")
        classes, categories = (_words(npz.array(archive, key, path)) for key in ("classes", "kinds"))
        splits: dict[str, Samples] = {}
        for part in PARTS:
            columns = _columns(archive, part, path)
            _check(columns, kind, f"the {part} arrays of {path}")
            inputs, labels = columns.pop("inputs"), columns.pop("labels")
            where = f"x_{part}, y_{part} in {path}"
            splits[part] = ShardSamples(inputs, labels, kind, where, categories=categories, others=columns)
    return splits, classes


def _columns(archive: NpzFile, part: str, path: Path) -> dict[str, Tensor]:
    named = {key.removesuffix(f"_{part}"): key for key in archive.files if key.endswith(f"_{part}")}
    missing = [short for short in _LONG if short not in named]
    if missing:
        raise InputError(f"{path} lacks {f'{missing[0]}_{part}'!r}: have it written again")
    arrays = {_LONG.get(short, short): npz.array(archive, key, path) for short, key in named.items()}
    try:
        return {name: _tensor(array) for name, array in arrays.items()}
    except (TypeError, ValueError) as error:
        raise InputError(f"{path} holds arrays that are no numbers of ours ({error}): have it written again") from None


def _check(columns: Mapping[str, Tensor], kind: str, where: str) -> None:
    """Check the requirements that other packages place on these columns; values are checked elsewhere."""
    inputs, labels = columns["inputs"], columns["labels"]
    lengths = {len(column) if column.ndim else -1 for column in columns.values()}
    if len(lengths) != 1:
        raise InputError(f"{where} differ in length: have the file written again")
    fine = inputs.ndim == (_SIDES[kind] or inputs.ndim) >= 2
    fine = fine and (inputs.dtype == torch.uint8 or inputs.is_floating_point())
    if fine and kind in ("cloud", "scene"):  # points of scenes may have features
        fine = inputs.shape[2] in (3, 6) or (kind == "scene" and inputs.shape[2] > 3)
    if not fine:
        raise InputError(f"{where} are no {kind}s: have the file written again")
    # Clouds that were cut to their first points may have labels for the removed ones.
    points = kind == "cloud" and labels.ndim == 2 and labels.shape[1] >= inputs.shape[1]
    boxes = kind == "scene" and "boxes" in columns and columns["boxes"].shape == (*labels.shape, 7)
    several = labels.ndim == 2 and labels.dtype == torch.bool
    proper = boxes if kind == "scene" else labels.ndim == 1 or points or several
    if (labels.dtype != torch.int64 and not several) or not proper or columns["sample_id"].dtype != torch.int64:
        raise InputError(f"{where} have no proper labels or ids: have the file written again")


def _tensor(array: Array) -> Tensor:
    """A tensor with torch's memory layout also if empty: numpy's empty arrays have strides that cannot be viewed."""
    tensor = torch.from_numpy(array)
    return tensor if tensor.numel() else torch.empty(tensor.shape, dtype=tensor.dtype)


def _words(names: Array) -> tuple[str, ...]:
    return tuple(str(name) for name in names.reshape(-1).tolist())
