from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from fedstill.core.errors import InputError
from fedstill.data.catalogue import check, load

IMAGES = np.arange(6 * 4 * 4, dtype=np.uint8).reshape(6, 4, 4)
LABELS = np.array([0, 1, 2, 0, 1, 9], dtype=np.uint8)


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write(folder: Path, packed: bool = True, dot: bool = False) -> None:
    folder.mkdir(parents=True)
    labels = np.concatenate([np.arange(10), LABELS[:2]]).astype(np.uint8)
    images = np.resize(IMAGES, (12, 4, 4))
    files = {"train-images": images, "train-labels": labels, "t10k-images": 255 - images, "t10k-labels": labels}
    for stem, array in files.items():
        name = f"{stem}{'.' if dot else '-'}idx{array.ndim}-ubyte"
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(idx(array), mtime=0))
        else:
            (folder / name).write_bytes(idx(array))


@pytest.mark.parametrize(
    ("packed", "dot", "place"), [(True, False, "mnist"), (False, False, "MNIST/raw"), (False, True, "mnist")]
)
def test_idx_files_are_read_packed_or_not(tmp_path: Path, packed: bool, dot: bool, place: str) -> None:
    write(tmp_path / place, packed, dot)
    bundle = load("mnist", tmp_path)
    assert bundle.shape == (1, 4, 4)
    assert bundle.classes == tuple("0123456789")
    assert bundle.train.labels().tolist() == [*range(10), 0, 1]
    assert bundle.train.columns["inputs"][1, 0].tolist() == IMAGES[1].tolist()


@pytest.mark.parametrize(
    ("name", "data", "sentence"),
    [
        (
            "train-images-idx3-ubyte.gz",
            gzip.compress(idx(IMAGES), mtime=0)[:-9],
            "train-images-idx3-ubyte.gz is not a whole gzip",
        ),
        ("train-images-idx3-ubyte.gz", b"not gzip", "train-images-idx3-ubyte.gz is not a whole gzip file"),
        ("train-images-idx3-ubyte.gz", b"", r"train-images-idx3-ubyte.gz is empty \(0 bytes\)"),
        (
            "train-images-idx3-ubyte.gz",
            gzip.compress(b"\0\0\x0d\3" + bytes(12), mtime=0),
            "is no idx file: it begins with 00000d03",
        ),
        (
            "train-images-idx3-ubyte.gz",
            gzip.compress(idx(IMAGES)[:7], mtime=0),
            "is cut short: its header needs 16 bytes",
        ),
        (
            "train-images-idx3-ubyte.gz",
            gzip.compress(idx(IMAGES)[:-1], mtime=0),
            "holds 95 bytes where its header says 96",
        ),
        ("train-labels-idx1-ubyte.gz", gzip.compress(idx(LABELS), mtime=0), "12 samples but 6 labels"),
        (
            "t10k-labels-idx1-ubyte.gz",
            gzip.compress(idx(np.full(12, 77, np.uint8)), mtime=0),
            r"12 test labels lie outside 0..9",
        ),
    ],
)
def test_damage_is_named(tmp_path: Path, name: str, data: bytes, sentence: str) -> None:
    write(tmp_path / "mnist")
    (tmp_path / "mnist" / name).write_bytes(data)
    with pytest.raises(InputError, match=sentence):
        load("mnist", tmp_path)


def test_every_damaged_file_is_listed(tmp_path: Path) -> None:
    write(tmp_path / "mnist")
    (tmp_path / "mnist" / "train-images-idx3-ubyte.gz").write_bytes(b"")
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    report = check("mnist", root=tmp_path)
    assert not report.usable
    assert [problem.split("/")[-1] for problem in report.problems] == [
        "train-images-idx3-ubyte.gz is empty (0 bytes): fetch it again",
        "mnist lacks t10k-labels-idx1-ubyte (or .gz)",
    ]
    with pytest.raises(InputError, match=r"and 1 more: `fedstill data check mnist` lists them"):
        load("mnist", tmp_path)
