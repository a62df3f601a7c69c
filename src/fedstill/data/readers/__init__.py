"""Readers turn files into arrays; which one is decided by what is found at a path, not by the data set's name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedstill.core.errors import InputError
from fedstill.data.readers import cifar, folder, idx, npz
from fedstill.data.readers.raw import Findings, Raw, Split

__all__ = ["EXPECTED", "Findings", "Raw", "Split", "read"]

EXPECTED = "an .npz file, idx files (.gz or not), CIFAR python batches, or folders of images by class"

_LAYOUTS: tuple[tuple[Callable[[Path], bool], Callable[[Path, Findings], Raw]], ...] = (
    (idx.present, idx.read),
    (cifar.present, cifar.read),
    (folder.present, folder.read),
)


def read(path: Path, found: Findings, prefer: str = "") -> Raw:
    """Whatever is at a path; where a folder holds several archives, the one called `prefer` is meant."""
    if path.is_file():
        return npz.read(path, found)
    if not path.is_dir():
        raise InputError(f"{path} does not exist")
    archives = sorted(path.glob("*.npz"))
    preferred = [archive for archive in archives if archive.stem == prefer]
    if len(archives) == 1 or preferred:
        return npz.read((preferred or archives)[0], found)
    for present, read_it in _LAYOUTS:
        if present(path):
            return read_it(path, found)
    if archives:
        listed = ", ".join(archive.name for archive in archives)
        raise InputError(f"{path} holds several archives ({listed}): name one of them, as in npz:{archives[0]}")
    raise InputError(f"{path} holds nothing that can be read; expected is {EXPECTED}")
