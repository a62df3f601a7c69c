"""Proxy data for distillation: any data set, or unlabelled files."""

from __future__ import annotations

from pathlib import Path

import torch

from fedstill.core.dataset import ArrayDataset
from fedstill.core.errors import InputError
from fedstill.data.bundle import Bundle
from fedstill.data.file_sources import FromFiles
from fedstill.data.layout import as_inputs
from fedstill.data.lookup import look_up
from fedstill.data.named_slices import part_of
from fedstill.data.readers import folder, npz
from fedstill.data.readers.raw import Array, FileFindings


def load_proxy(name: str, root: Path | None = None) -> Bundle:
    """The data set of that name, an archive without labels (`npz:FILE`), or images without class folders.

    Unlabelled files make a bundle without classes: it can be used for training, not for testing.
    """
    whole, part = part_of(name)
    if part is not None:
        return part.of(load_proxy(whole, root), name)
    loader, source = look_up(name, root)
    if isinstance(loader, FromFiles) and source.path is not None:
        found = FileFindings()
        inputs = _unlabelled(source.path, found)
        found.refuse(name)
        if inputs is not None:
            return _without_classes(name, inputs, source.path)
    return loader(source)


def _unlabelled(path: Path, found: FileFindings) -> Array | None:
    if path.is_dir():
        return folder.read_unlabelled(path, found)
    return npz.read_unlabelled(path) if path.suffix.lower() == ".npz" else None


def _without_classes(name: str, array: Array, path: Path) -> Bundle:
    if not array.size:
        raise InputError(f"{name} holds no samples")
    inputs, kind = as_inputs(array, str(path))
    if inputs.is_floating_point() and not bool(torch.isfinite(inputs).all()):
        raise InputError(f"{name} has samples that hold NaN or infinity")
    data = ArrayDataset(inputs=inputs)
    return Bundle(name, train=data, test=data, classes=(), kind=kind, shape=tuple(inputs.shape[1:]))
