"""Proxy data for distillation: any data set, or unlabelled files."""

from __future__ import annotations

from pathlib import Path

import torch

from fedstill.core.dataset import ArrayDataset
from fedstill.core.errors import InputError
from fedstill.data import signals, tabular
from fedstill.data.bundle import Bundle, Source
from fedstill.data.data_settings import DataSettings
from fedstill.data.file_sources import FromFiles
from fedstill.data.image_layout import arrange
from fedstill.data.layout import as_inputs
from fedstill.data.lookup import look_up
from fedstill.data.named_slices import part_of
from fedstill.data.readers import folder, npz
from fedstill.data.readers.raw import Array, FileFindings


def load_proxy(name: str, root: Path | None = None) -> Bundle:
    """The data set of that name, an archive or a table without labels, or images or signals without class folders.

    Unlabelled files make a bundle without classes: it can be used for training, not for testing.
    """
    whole, part = part_of(name)
    if part is not None:
        return part.of(load_proxy(whole, root), name)
    loader, source = look_up(name, root)
    if isinstance(loader, FromFiles) and source.path is not None:
        found = FileFindings()
        inputs = None
        with found.collecting():
            inputs = _unlabelled(source.name.partition(":")[0], source.path, source.settings, found)
        found.refuse(name)
        if inputs is not None:
            return _without_classes(name, inputs, source)
    return loader(source)


def _unlabelled(kind: str, path: Path, settings: DataSettings, found: FileFindings) -> Array | None:
    if kind == "table":
        return tabular.read_unlabelled(path, settings, found)
    if kind == "signals" and path.is_dir():
        return signals.read_unlabelled(path, settings, found)
    if path.is_dir():
        return folder.read_unlabelled(path, settings, found)
    return npz.read_unlabelled(path) if path.suffix.lower() == ".npz" else None


def _without_classes(name: str, array: Array, source: Source) -> Bundle:
    if not array.size:
        raise InputError(f"{name} holds no samples")
    if source.name.startswith("table:"):
        inputs, kind = torch.from_numpy(array), "array"
    elif source.name.startswith("signals:"):
        inputs, kind = torch.from_numpy(array[:, None] if array.ndim == 2 else array).float(), "signal"
    else:
        inputs, kind = as_inputs(array, str(source.path))
    if kind == "image":
        inputs = arrange(inputs, source.settings, name)
    if inputs.is_floating_point() and not bool(torch.isfinite(inputs).all()):
        raise InputError(f"{name} has samples that hold NaN or infinity")
    data = ArrayDataset(inputs=inputs)
    return Bundle(name, train=data, test=data, classes=(), kind=kind, shape=tuple(inputs.shape[1:]))
