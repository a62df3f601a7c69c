"""The idx files of MNIST and Fashion-MNIST, gzipped or not."""

from __future__ import annotations

import gzip
import zlib
from math import prod
from pathlib import Path

import numpy as np

from fedstill.core.errors import InputError
from fedstill.data.readers.raw import Array, FileFindings, Part, Raw, Split, content

_FILES: dict[Part, str] = {"train": "train", "test": "t10k"}
_UNSIGNED_BYTE = 8


def present(folder: Path) -> bool:
    return any(_find(folder, stem, what) for stem in _FILES.values() for what in ("images", "labels"))


def read(folder: Path, found: FileFindings) -> Raw:
    """`train-images-idx3-ubyte[.gz]` and its three companions, in the folder or in one folder below it."""
    raw = Raw({})
    for part, stem in _FILES.items():
        arrays: list[Array] = []
        for what, dimensions in (("images", 3), ("labels", 1)):
            path = _find(folder, stem, what)
            with found.collecting():
                if path is None:
                    raise InputError(f"{folder} lacks {stem}-{what}-idx{dimensions}-ubyte (or .gz)")
                arrays.append(parse(path, dimensions))
        if len(arrays) == 2:
            raw.splits[part] = Split(arrays[0], arrays[1], f"{stem}-images and {stem}-labels in {folder}")
    return raw


def _find(folder: Path, stem: str, what: str) -> Path | None:
    # The archive names them train-images-idx3-ubyte, some copies train-images.idx3-ubyte.
    for pattern in (f"{stem}-{what}?idx*", f"*/{stem}-{what}?idx*"):
        hits = sorted(folder.glob(pattern))
        if hits:
            return hits[0]
    return None


def parse(path: Path, dimensions: int) -> Array:
    """One idx file: two zero bytes, a type, the number of dimensions, big-endian sizes, then the bytes."""
    data = content(path)
    if path.suffix == ".gz":
        try:
            data = gzip.decompress(data)
        except (EOFError, OSError, zlib.error) as error:
            raise InputError(f"{path} is not a whole gzip file ({error}): fetch it again") from None
    head = 4 + 4 * dimensions
    expected = bytes([0, 0, _UNSIGNED_BYTE, dimensions])
    if data[:4] != expected:
        raise InputError(f"{path} is no idx file: it begins with {data[:4].hex()}, not {expected.hex()}")
    if len(data) < head:
        raise InputError(f"{path} is cut short: its header needs {head} bytes, there are {len(data)}")
    shape = tuple(int(size) for size in np.frombuffer(data, dtype=">u4", count=dimensions, offset=4))
    if len(data) - head != prod(shape):
        raise InputError(
            f"{path} holds {len(data) - head:,} bytes where its header says {prod(shape):,}: fetch it again"
        )
    return np.frombuffer(data, dtype=np.uint8, offset=head).reshape(shape)
