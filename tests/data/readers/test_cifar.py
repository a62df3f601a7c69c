from __future__ import annotations

import json
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedstill.core.errors import InputError
from fedstill.data.catalogue import check, load
from fedstill.data.readers.unpickle import unpickle

GENERATOR = np.random.default_rng(1)
NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def pixels(count: int) -> np.ndarray:
    return GENERATOR.integers(0, 256, (count, 3072), dtype=np.uint8)


def dump(path: Path, content: Any) -> None:
    path.write_bytes(pickle.dumps(content, protocol=4))


def ten(folder: Path) -> dict[str, np.ndarray]:
    folder.mkdir(parents=True)
    held = {name: pixels(10) for name in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch")}
    for name, data in held.items():
        dump(folder / name, {b"data": data, b"labels": list(range(10)), b"filenames": [b"x.png"] * 10})
    dump(folder / "batches.meta", {b"label_names": [name.encode() for name in NAMES]})
    return held


def test_cifar10_batches(tmp_path: Path) -> None:
    held = ten(tmp_path / "cifar10" / "cifar-10-batches-py")
    bundle = load("cifar10", tmp_path)
    assert bundle.classes == tuple(NAMES)
    assert (len(bundle.train), len(bundle.test), bundle.shape) == (50, 10, (3, 32, 32))
    assert torch.equal(bundle.train.columns["inputs"][40:].flatten(1), torch.from_numpy(held["data_batch_5"]))


def test_cifar100_batches(tmp_path: Path) -> None:
    (tmp_path / "cifar-100-python").mkdir()
    for name in ("train", "test"):
        batch = {b"data": pixels(100), b"fine_labels": list(range(100)), b"coarse_labels": [0] * 100}
        dump(tmp_path / "cifar-100-python" / name, batch)
    dump(tmp_path / "cifar-100-python" / "meta", {b"fine_label_names": [b"class %d" % n for n in range(100)]})
    bundle = load("cifar100", tmp_path)
    assert bundle.classes[99] == "class 99"
    assert len(bundle.train) == 100


def test_sprites_with_json_labels(tmp_path: Path) -> None:
    folder = tmp_path / "cifar10"
    folder.mkdir()
    sheets = {
        name: GENERATOR.integers(0, 256, (10, 1024, 3), dtype=np.uint8) for name in ("data_batch_1", "test_batch")
    }
    for number in range(2, 6):
        sheets[f"data_batch_{number}"] = sheets["data_batch_1"]
    for name, sheet in sheets.items():
        Image.fromarray(sheet).save(folder / f"{name}.png")
    (folder / "train_lables.json").write_text(json.dumps(list(range(10)) * 5))
    (folder / "test_lables.json").write_text(json.dumps(list(range(10))))
    bundle = load("cifar10", tmp_path)
    assert bundle.classes == tuple(NAMES)
    first = torch.from_numpy(sheets["data_batch_1"][3].reshape(32, 32, 3)).permute(2, 0, 1)
    assert torch.equal(bundle.train.columns["inputs"][3], first)
    (folder / "data_batch_4.png").unlink()
    Image.fromarray(sheets["test_batch"][:, :99]).save(folder / "test_batch.png")
    (folder / "train_lables.json").write_text("[1, ")
    problems = "\n".join(check("cifar10", root=tmp_path).problems)
    assert "data_batch_4.png cannot be read: No such file" in problems
    assert "test_batch.png is 99 pixels wide" in problems
    assert "train_lables.json is no list of labels" in problems
    (folder / "train_lables.json").write_text("[" * 100_000)
    assert "train_lables.json is no list of labels" in str(check("cifar10", root=tmp_path).problems)
    for wrong in ('{"a": 1}', "7"):
        (folder / "train_lables.json").write_text(wrong)
        assert "there is one value where labels are expected" in str(check("cifar10", root=tmp_path).problems)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ([1, 2], "data_batch_2 holds a list where a CIFAR batch is a dictionary"),
        ({b"labels": []}, "data_batch_2 lacks 'data'; it holds labels"),
        ({b"data": pixels(3)}, "data_batch_2 lacks 'labels'"),
        ({b"data": pixels(3)[:, :5], b"labels": [0] * 3}, r"data_batch_2: its data has the shape \(3, 5\)"),
        ({b"data": pixels(3), b"labels": [0] * 2}, "data_batch_2 holds 3 images and 2 labels"),
        ({b"data": pixels(3), b"labels": [[0], [1, 2], 3]}, "data_batch_2 holds lists that are no arrays"),
        ({b"data": pixels(10), b"labels": ["a"] * 10}, "labels are of type <U"),
        ({b"data": np.array([{}] * 3), b"labels": [0] * 3}, "data_batch_2 was not opened.*'O8'"),
    ],
)
def test_wrong_batches_are_named(tmp_path: Path, content: Any, sentence: str) -> None:
    ten(tmp_path / "cifar10")
    dump(tmp_path / "cifar10" / "data_batch_2", content)
    with pytest.raises(InputError, match=sentence):
        load("cifar10", tmp_path)


def test_missing_and_truncated_batches_are_all_named(tmp_path: Path) -> None:
    ten(tmp_path / "cifar10")
    (tmp_path / "cifar10" / "data_batch_3").unlink()
    whole = (tmp_path / "cifar10" / "data_batch_4").read_bytes()
    (tmp_path / "cifar10" / "data_batch_4").write_bytes(whole[:500])
    (tmp_path / "cifar10" / "test_batch").write_bytes(b"")
    problems = check("cifar10", root=tmp_path).problems
    assert len(problems) == 3
    assert "data_batch_3 cannot be read: No such file" in problems[0]
    assert "data_batch_4 was not opened" in problems[1] or "data_batch_4 is no whole pickle" in problems[1]
    assert "test_batch is empty" in problems[2]


class Evil:
    def __init__(self, call: Any, *arguments: Any) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.call, self.arguments


@pytest.mark.parametrize("call", [os.system, eval, exec, open, getattr, __import__, np.load, np.save])
def test_a_pickle_cannot_call_anything(tmp_path: Path, call: Any) -> None:
    mark = tmp_path / "mark"
    dump(tmp_path / "evil", {b"data": Evil(call, f"touch {mark}")})
    with pytest.raises(InputError, match="evil was not opened: only arrays, text and plain containers"):
        unpickle(tmp_path / "evil")
    assert not mark.exists()


@pytest.mark.parametrize(
    "stream",
    [
        b"cnumpy\ndtype\n(S'O'\ntR.",  # an object type
        b"cnumpy\ndtype\n(S'V8'\ntR.",
        b"cnumpy\ndtype\n(S'u1'\ntR(I3\nS'|'\nN(S'f'\nt(dNNNtb.",  # a type with fields
        b"cnumpy\ndtype\n(S'u1'\ntR(I3\ntb.",
        b"cnumpy\nndarray\n(tR(I1\n(I2\nt(lI0\n(ltb.",  # an array of a list
        b"cnumpy\nndarray\n(dS'x'\nI1\nsb.",  # changing the class itself
        b"cnumpy\nndarray.tobytes\n.",
        b"\x80\x04\x8c\x05numpy\x94\x8c\x10ndarray.__init__\x94\x93.",
        b"\x80\x02\x8a\xff",
        b"(lp0\n0g1\n.",
        b".",
        b"garbage",
    ],
)
def test_hostile_streams_get_a_sentence(tmp_path: Path, stream: bytes) -> None:
    (tmp_path / "evil").write_bytes(stream)
    with pytest.raises(InputError, match="evil"):
        unpickle(tmp_path / "evil")


def test_a_batch_as_python_2_wrote_it(tmp_path: Path) -> None:
    """Protocol 2, byte strings for everything, numpy's old module name: as in the published archive."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    data = bytes(range(6))
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
        b"(K\x01K\x02K\x03\x86cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R"
        b"(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x88T" + struct.pack("<i", len(data)) + data + b"tb"
    )
    (tmp_path / "batch").write_bytes(b"\x80\x02}(" + text(b"data") + array + text(b"labels") + b"]K\x05au.")
    held = unpickle(tmp_path / "batch")
    assert held["labels"] == [5]
    assert held["data"].tolist() == [[0, 2, 4], [1, 3, 5]]  # Fortran order, as the flag says
