"""Readers convert files to arrays; the reader is selected by the files at a path, not by the data set's name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedstill.core.errors import InputError
from fedstill.data.readers import cifar, folder, h5, idx, npz, resampled, shapes
from fedstill.data.readers.raw import FileFindings, Raw, ReaderHints, Split

__all__ = ["EXPECTED", "FileFindings", "Raw", "ReaderHints", "Split", "read"]

EXPECTED = (
    "an .npz file, idx files (.gz or not), CIFAR python batches, folders of images by class, ModelNet's text files, "
    ".h5 files of clouds, or folders of clouds or meshes by class"
)

Reader = Callable[[Path, FileFindings, ReaderHints], Raw]


def _unasked(read_it: Callable[[Path, FileFindings], Raw]) -> Reader:
    """Adapts readers of layouts that need no hints."""
    return lambda path, found, hints: read_it(path, found)


# Meshes come early, since textures and recordings may lie beside them; arrays and text come after images.
_LAYOUTS: tuple[tuple[Callable[[Path], bool], Reader], ...] = (
    (idx.present, _unasked(idx.read)),
    (cifar.present, _unasked(cifar.read)),
    (resampled.present, resampled.read),
    (shapes.present, shapes.read),
    (h5.present, h5.read),
    (folder.present, _unasked(folder.read)),
    (shapes.perhaps, shapes.read),
)


def read(path: Path, found: FileFindings, hints: ReaderHints | None = None) -> Raw:
    """Read the data at a path; if a folder contains several archives, the one named like the data set is used."""
    hints = hints or ReaderHints()
    if path.is_file():
        return h5.read(path, found, hints) if path.suffix.lower() in h5.SUFFIXES else npz.read(path, found)
    if not path.is_dir():
        raise InputError(f"{path} does not exist")
    archives = sorted(path.glob("*.npz"))
    preferred = [archive for archive in archives if archive.stem == hints.name]
    if len(archives) == 1 or preferred:
        return npz.read((preferred or archives)[0], found)
    for present, read_it in _LAYOUTS:
        if present(path):
            return read_it(path, found, hints)
    if archives:
        listed = ", ".join(archive.name for archive in archives)
        raise InputError(f"{path} holds several archives ({listed}): name one of them, as in npz:{archives[0]}")
    raise InputError(f"{path} holds nothing that can be read; expected is {EXPECTED}")
