"""Data sets of the user's own that are read when samples are needed."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedstill
from fedstill.core.errors import DataChangedError, InputError, RunError
from fedstill.data.lazy_data import LazyDataset, TorchItems, examined

from ..own_objects import Rows, X, Y, net, started


class Changing(Rows):
    """Augments."""

    def __getitem__(self, row: int) -> tuple[Any, int]:
        inputs, label = super().__getitem__(row)
        return inputs + np.float32(self.reads), label


class OtherLabels(Rows):
    def __getitem__(self, row: int) -> tuple[Any, int]:
        inputs, label = super().__getitem__(row)
        return inputs, (label + self.reads // len(self)) % 3


class Made(Rows):
    """Samples are made when they are read."""

    def __init__(self, count: int) -> None:
        super().__init__(range(count), np.arange(count) % 2)

    def __getitem__(self, row: int) -> tuple[Any, int]:
        return np.full((1, 64, 64), row % 251, dtype=np.uint8), int(self.y[row])


class Items(Rows):
    """Gives whatever a function gives."""

    def __init__(self, give: Any) -> None:
        super().__init__()
        self.give = give

    def __getitem__(self, row: int) -> Any:
        return self.give(row)


def lazily(data: Any) -> LazyDataset:
    return examined(TorchItems(data, "mine"), None).data


def test_batches_hold_the_samples_that_were_asked_for() -> None:
    made = fedstill.dataset(Rows(X, Y), Rows(X[:9], Y[:9]))
    batch = made.train.batch(torch.tensor([7, 3]))
    assert np.array_equal(batch["inputs"].numpy(), X[[7, 3]])
    assert batch["labels"].tolist() == Y[[7, 3]].tolist()
    assert batch["sample_id"].tolist() == [7, 3]


def test_only_what_is_asked_for_is_read() -> None:
    rows = Rows()
    made = fedstill.dataset(rows)
    assert 2 * len(rows) <= rows.reads <= 2 * len(rows) + 1  # once for a fingerprint, once to compare
    rows.reads = 0
    made.train.batch(torch.arange(3))
    assert rows.reads == 3
    made.train.labels()
    made.fingerprint()
    assert rows.reads == 3
    assert any("was read once" in note and "48 samples" in note for note in made.notes)


def test_samples_are_not_held_in_memory() -> None:
    rows = Made(3000)  # 12 MB
    tracemalloc.start()
    try:
        made = fedstill.dataset(rows)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(made.train) == 2400
    assert held < 2e6
    assert peak < 6e6


def test_unlabelled_has_no_labels_column() -> None:
    made = fedstill.dataset(Rows())
    hidden = made.train.unlabelled()
    assert hidden.labels() is None
    assert sorted(hidden.batch(torch.arange(2))) == ["inputs", "sample_id"]
    assert len(hidden) == len(made.train)
    assert "labels" not in dict(hidden.contents())  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", [Changing, OtherLabels])
def test_a_data_set_that_reads_differently_is_noticed_and_never_reused(tmp_path: Path, kind: type[Rows]) -> None:
    noted: list[str] = []

    class Notes:
        def __getattr__(self, name: str) -> Any:
            return noted.append if name == "note" else lambda *_: None

    first = started(tmp_path, kind(), observers=[Notes()])
    assert f"the data set {kind.__name__} gives other values when it is read twice" in " ".join(noted)
    second = started(tmp_path, kind())
    assert not second.reused
    assert first.path != second.path


def test_a_sample_that_changed_ends_the_run(tmp_path: Path, engines: Any) -> None:
    inputs = X.copy()
    made = fedstill.dataset(Rows(inputs, Y))
    inputs[made.train.rows[0]] += 1  # type: ignore[attr-defined]
    for name in ("in-process", "processes-2"):
        with pytest.raises(RunError, match="is not what it was"):
            started(tmp_path / name, made, engine=engines[name])
    assert not started(tmp_path, Rows(inputs, Y)).reused


def test_a_sample_that_cannot_be_read_any_more_ends_the_run(tmp_path: Path) -> None:
    rows = Items(lambda row: (X[row], int(Y[row])))
    made = fedstill.dataset(rows)
    rows.give = lambda row: 1 / 0
    with pytest.raises(DataChangedError, match="cannot be read"):
        made.train.batch(torch.arange(1))


def test_the_fingerprint_has_everything_that_reaches_models() -> None:
    clouds = np.random.default_rng(0).random((10, 16, 3)).astype(np.float32)
    labels = np.arange(10) % 2
    prints = {
        "cloud": fedstill.dataset(Rows(clouds, labels)).fingerprint(),
        "array": fedstill.dataset(Rows(clouds, labels), kind="array").fingerprint(),
        "labels": fedstill.dataset(Rows(clouds, 1 - labels)).fingerprint(),
        "one value": fedstill.dataset(Rows(clouds + (np.arange(480).reshape(10, 16, 3) == 7), labels)).fingerprint(),
        "order": fedstill.dataset(Rows(clouds[::-1], labels)).fingerprint(),
    }
    assert len(set(prints.values())) == len(prints)
    assert fedstill.dataset(Rows(clouds.copy(), labels)).fingerprint() == prints["cloud"]


def test_samples_may_be_mappings_and_pictures_of_any_form() -> None:
    named = Items(lambda row: {"pixel_values": torch.tensor(X[row]), "labels": torch.tensor(Y[row])})
    own = Items(lambda row: {"x": X[row], "kind": int(Y[row])})
    plain = fedstill.dataset(Rows()).fingerprint()
    assert fedstill.dataset(named).fingerprint() == plain
    assert fedstill.dataset(own, label="kind").fingerprint() == plain


REFUSED: dict[str, tuple[Any, str]] = {
    "no label": (lambda row: X[row], "must be .input, label."),
    "mapping without label": (lambda row: {"x": X[row]}, "give `inputs` and `labels`"),
    "shapes": (lambda row: (X[row][: 3 + row % 2], 0), r"differ in shape, \(3,\) and \(4,\): give all the same"),
    "types": (lambda row: (X[row].astype(np.uint8 if row == 5 else np.float32), row % 2), "are 8-bit integers"),
    "label shapes": (lambda row: (X[row], [0] * (1 + row % 2)), "labels of Items differ in shape"),
    "label types": (lambda row: (X[row], {"a": 1}), "of several types"),
    "one-hot": (lambda row: (X[row], np.eye(3)[row % 3]), r"y.argmax\(1\)"),
    "float labels": (lambda row: (X[row], float(row % 3)), "give whole numbers"),
    "NaN": (lambda row: (X[row] * (np.nan if row == 9 else 1), row % 3), "sample 9 of Items holds NaN"),
    "unreadable": (
        lambda row: Path(f"/no/{row}").read_bytes(),
        r"sample 0 of Items cannot be read \(FileNotFound",
    ),
    "texts": (lambda row: ("a text", row % 3), "give numbers"),
}


@pytest.mark.parametrize("which", REFUSED)
def test_refused_in_one_sentence(which: str) -> None:
    give, why = REFUSED[which]
    with pytest.raises(InputError, match=why) as refused:
        fedstill.dataset(Items(give))
    assert "\n" not in str(refused.value)


def test_shapes_and_types_are_compared_across_batches() -> None:
    def of_shape(row: int) -> Any:
        return np.zeros(3 if row < 300 else 4, dtype=np.float32), row % 2

    def of_type(row: int) -> Any:
        return np.zeros(3, dtype=np.float32 if row < 300 else np.uint8), row % 2

    for give, why in ((of_shape, "differ in shape"), (of_type, "8-bit integers")):
        rows = Items(give)
        rows.x = range(600)
        # The first 256 are one batch; the change lies within a later one and at its start.
        with pytest.raises(InputError, match=why):
            fedstill.dataset(rows)


def test_unstable_data_can_still_be_read() -> None:
    made = lazily(Changing())
    assert not made.stable
    assert not torch.equal(*(made.batch(torch.arange(2))["inputs"] for _ in range(2)))


def test_the_users_data_set_reaches_worker_processes(tmp_path: Path, engines: Any) -> None:
    scaled = Items(lambda row: (X[row] * 2, int(Y[row])))
    runs = [started(tmp_path / name, scaled, net(), engine=engines[name]) for name in ("in-process", "processes-2")]
    assert runs[0].sha256 == runs[1].sha256
