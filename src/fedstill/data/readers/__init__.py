"""Readers convert files to arrays; the reader is selected by the files at a path, not by the data set's name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedstill.core.errors import InputError
from fedstill.data.readers import cifar, folder, h5, idx, listed_images, npz, resampled, shapes
from fedstill.data.readers.raw import FileFindings, Raw, ReaderHints, Split

__all__ = ["EXPECTED", "FileFindings", "Raw", "ReaderHints", "Split", "read"]

EXPECTED = (
    "an .npz file, idx files (.gz or not), CIFAR python batches, folders of images by class, ModelNet's text files, "
    ".h5 files of clouds, or folders of clouds or meshes by class"
)

Reader = Callable[[Path, FileFindings, ReaderHints], Raw]


def _always(present: Callable[[Path], bool]) -> Callable[[Path, ReaderHints], bool]:
    """Adapts readers that recognise their layout without hints."""
    return lambda path, hints: present(path)


def _unasked(read_it: Callable[[Path, FileFindings], Raw]) -> Reader:
    """Adapts readers of layouts that need no hints."""
    return lambda path, found, hints: read_it(path, found)


# Meshes come early, since textures and recordings may lie beside them; arrays and text come after images.
_LAYOUTS: tuple[tuple[Callable[[Path, ReaderHints], bool], Reader], ...] = (
    (_always(idx.present), _unasked(idx.read)),
    (_always(cifar.present), _unasked(cifar.read)),
    (_always(resampled.present), resampled.read),
    (_always(shapes.present), shapes.read),
    (_always(h5.present), h5.read),
    (listed_images.present, listed_images.read),
    (_always(folder.present), folder.read),
    (_always(shapes.perhaps), shapes.read),
)
_WITH_TABLES: tuple[Reader, ...] = (shapes.read, listed_images.read)


def read(path: Path, found: FileFindings, hints: ReaderHints | None = None) -> Raw:
    """Read the data at a path; if a folder contains several archives, the one named like the data set is used."""
    hints = hints or ReaderHints()
    if path.is_file():
        _refuse_columns(path, hints)
        return h5.read(path, found, hints) if path.suffix.lower() in h5.SUFFIXES else npz.read(path, found)
    if not path.is_dir():
        raise InputError(f"{path} does not exist")
    archives = sorted(path.glob("*.npz"))
    preferred = [archive for archive in archives if archive.stem == hints.name]
    if (len(archives) == 1 or preferred) and not hints.settings.reads_table:
        _refuse_columns(path, hints)
        return npz.read((preferred or archives)[0], found)
    for present, read_it in _LAYOUTS:
        if present(path, hints):
            if read_it not in _WITH_TABLES:
                _refuse_columns(path, hints)
            if read_it is folder.read:
                _mention_table(path, found)
            return read_it(path, found, hints)
    if archives:
        listed = ", ".join(archive.name for archive in archives)
        raise InputError(f"{path} holds several archives ({listed}): name one of them, as in npz:{archives[0]}")
    if advice := listed_images.advice(path):
        raise InputError(advice)
    raise InputError(f"{path} holds nothing that can be read; expected is {EXPECTED}")


def _mention_table(path: Path, found: FileFindings) -> None:
    """A table that is not read beside folders of images: what classes there are is in it, if there is one folder."""
    try:
        unread = listed_images.unread_table(path)
    except InputError as error:
        unread = str(error)
    if unread and not folder.classified(path):
        raise InputError(f"{path} has images in one folder, and {unread}")
    if unread:
        found.notes.append(f"classes are those of the folders, and no table is read: {unread}")


def _refuse_columns(path: Path, hints: ReaderHints) -> None:
    if named := (*hints.settings.reads_table, *(["site"] if hints.settings.site else [])):
        raise InputError(f"{path} has no table of labels, and {named[0]} is a setting of one: leave it out")
