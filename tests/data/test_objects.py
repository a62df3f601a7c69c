"""Data that is passed as an object: what is accepted, what is refused, and what later changes do not reach."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset, TensorDataset

import fedstill
from fedstill.core.dataset import ArrayDataset, column
from fedstill.core.errors import InputError
from fedstill.core.streams import Streams
from fedstill.data.objects import dataset
from fedstill.data.partitions import partition
from fedstill.data.point_labels import partition_labels

from ..own_objects import X_TEST, Y_TEST, Rows, X, Y

TENSORS = torch.tensor(X), torch.tensor(Y)
TEST = X_TEST, Y_TEST


def inputs_of(data: Any) -> torch.Tensor:
    return data.batch(torch.arange(len(data)))["inputs"]  # type: ignore[no-any-return]


SAME: dict[str, Any] = {
    "pair": ((X, Y), TEST),
    "mapping": {"train": (X, Y), "test": TEST},
    "usual names": {"Train": (X, Y), "test": TEST},
    "lists": ((X.tolist(), Y.tolist()), (X_TEST.tolist(), Y_TEST.tolist())),
    "tensors": (TENSORS, TEST),
    "lists of tensors": ((list(TENSORS[0]), list(TENSORS[1])), TEST),
    "TensorDataset": (TensorDataset(*TENSORS), TEST),
    "doubles": ((X.astype(np.float64), Y.astype(np.uint8)), TEST),
    "a column of labels": ((X, Y[:, None]), TEST),
    "booked gradients": ((TENSORS[0].clone().requires_grad_(), TENSORS[1]), TEST),
    "bundle": dataset((X, Y), TEST),
}


@pytest.mark.parametrize("form", SAME)
def test_the_same_numbers_are_the_same_data_set(form: str) -> None:
    made = dataset(SAME[form])
    assert made.fingerprint() == dataset((X, Y), TEST).fingerprint()
    assert made.name == dataset((X, Y), TEST).name
    assert made.shape == (5,)
    assert made.classes == ("0", "1", "2")


LAZY: dict[str, Any] = {
    "data set": Rows(),
    "part": Subset(Rows(np.concatenate([X, X]), np.concatenate([Y, Y])), range(48)),
    "several": ConcatDataset([Rows(X[:20], Y[:20]), Rows(X[20:], Y[20:])]),
    "three tensors": TensorDataset(*TENSORS, torch.zeros(48)),
}


@pytest.mark.parametrize("form", LAZY)
def test_lazy_data_has_the_same_samples_and_the_same_split(form: str) -> None:
    lazy, arrays = dataset(LAZY[form]), dataset((X, Y))
    for split in ("train", "test"):
        one, other = lazy.splits()[split], arrays.splits()[split]
        assert not isinstance(one, ArrayDataset)
        rows = torch.arange(len(other))
        assert len(one) == len(other)
        assert all(torch.equal(one.batch(rows)[name], values) for name, values in other.batch(rows).items())


def test_a_fifth_of_every_class_is_held_out_and_noted() -> None:
    made = dataset((X, Y))
    assert (len(made.train), len(made.test)) == (38, 10)
    assert any("a fifth of every class" in note for note in made.notes)
    numbers = [data.batch(torch.arange(len(data)))["sample_id"] for data in (made.train, made.test)]
    assert sorted(torch.cat(numbers).tolist()) == list(range(48))


def test_arrays_that_are_changed_later_do_not_change_the_data_set() -> None:
    x, y, tensor = X.copy(), Y.copy(), TENSORS[0].clone()
    made = [dataset((x, y)), dataset((tensor, y)), dataset(TensorDataset(tensor, torch.from_numpy(y)))]
    x += 1
    tensor += 1
    y[:] = 0
    fresh = dataset((X, Y))
    for one in made:
        assert torch.equal(inputs_of(one.train), inputs_of(fresh.train))
        assert torch.equal(one.train.labels(), fresh.train.labels())  # type: ignore[arg-type]
        assert one.fingerprint() == fresh.fingerprint()
    assert dataset((x, Y)).fingerprint() != fresh.fingerprint()


class Scaled(TensorDataset):
    def __getitem__(self, row: Any) -> Any:
        inputs, label = super().__getitem__(row)
        return inputs * 100, label


def test_what_a_subclass_does_to_samples_is_done() -> None:
    assert torch.allclose(inputs_of(dataset(Scaled(*TENSORS)).train), 100 * inputs_of(dataset((X, Y)).train))


def test_texts_and_names_of_classes() -> None:
    texts = np.array(["low", "high", "middle"])[Y]
    assert dataset((X, texts)).classes == ("high", "low", "middle")
    ordered = dataset((X, texts.tolist()), classes=["low", "middle", "high"])
    batch = ordered.train.batch(torch.arange(len(ordered.train)))
    names = [ordered.classes[number] for number in batch["labels"].tolist()]
    assert names == texts[batch["sample_id"].numpy()].tolist()
    assert dataset((X, Y), classes=[10, 20, 30]).classes == ("10", "20", "30")  # type: ignore[list-item]


def test_each_client_has_exactly_its_own_samples() -> None:
    clients = [
        ((X[:10], Y[:10]), (X_TEST[:4], Y_TEST[:4])),
        Rows(X[10:30], Y[10:30]),
        {"train": (X[30:], Y[30:]), "test": TEST},
    ]
    made = dataset(clients)
    assert made.sites == 3
    sites, count = partition_labels("sites", made.train, len(made.classes))
    shards = partition("sites", sites, 3, count, Streams(0))
    assert shards.sizes().tolist() == [10, 16, 18]
    assert np.array_equal(made.train.batch(shards.rows(0))["inputs"].numpy(), X[:10])
    held = {tuple(row) for row in made.train.batch(shards.rows(1))["inputs"].tolist()}
    assert held <= {tuple(row) for row in X[10:30].tolist()}
    assert np.array_equal(made.train.batch(shards.rows(2))["inputs"].numpy(), X[30:])
    assert torch.bincount(column(made.test, "site")).tolist() == [4, 4, 12]  # type: ignore[arg-type]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield X[0], 0


NAN = X.copy()
NAN[3, 2] = np.nan
PIXELS = (X * 255).astype(np.uint8)
REFUSED: dict[str, tuple[Any, str]] = {
    "one array": (lambda: X, "one array without labels: pass"),
    "nothing": (lambda: None, "is of type NoneType: pass"),
    "text": (lambda: "digits", "is of type str: pass"),
    "generator": (lambda: (row for row in X), "is of type generator: pass"),
    "three": (lambda: (X, Y, X), "a tuple of 3 is no data set: pass"),
    "lengths": (lambda: (X, Y[:-1]), "48 samples but 47 labels"),
    "float labels": (lambda: (X, Y.astype(float)), "give whole numbers"),
    "one-hot": (lambda: (X, np.eye(3)[Y]), r"e.g. y.argmax\(1\)"),
    "one-hot list": (lambda: (X.tolist(), np.eye(3)[Y].tolist()), r"e.g. y.argmax\(1\)"),
    "negative": (lambda: (X, Y - 1), "lie outside 0..1, the first is -1: number"),
    "gap": (lambda: (X, Y * 2), "class '1' has no training samples: add some"),
    "huge": (lambda: (X, Y + 10**9), "number the classes from 0 without gaps"),
    "one class": (lambda: (X, Y * 0), "at least two are needed"),
    "label missing": (lambda: (X, [0, None] * 24), "of several types"),
    "other classes in test": (lambda: ((X, Y), (X, Y + 1)), "class '3' has no training samples"),
    "NaN": (lambda: (NAN, Y), "the first is row 3: leave them out"),
    "too large": (lambda: (X.astype(np.float64) * 1e300, Y), "hold NaN or infinity"),
    "empty": (lambda: (X[:0], Y[:0]), "holds no samples"),
    "empty lists": (lambda: ([], []), "holds no samples"),
    "empty data set": (lambda: Rows(X[:0], Y[:0]), "holds no samples"),
    "ragged": (lambda: ([[1, 2], [3]], [0, 1]), "differ in shape: give all the same"),
    "single numbers": (lambda: (X[:, 0], Y), r"x\[:, None\]"),
    "stream": (Stream, "give it a __getitem__"),
    "loader": (lambda: DataLoader(Rows()), "pass its data set, loader.dataset"),
    "no test": (lambda: {"train": (X, Y)}, "needs one called test: pass it"),
    "no train": (lambda: {"test": (X, Y)}, "needs one called train"),
    "part": (lambda: {"train": (X, Y), "tset": (X, Y)}, "not 'tset': rename it"),
    "no clients": (list, "give one data set for each client"),
    "empty client": (lambda: [(X, Y), (X[:0], Y[:0])], "data of client 1 holds no samples"),
    "clients' shapes": (lambda: [(X, Y), (X[:, :3], Y)], "samples differ in shape: data of client 0"),
    "clients' types": (lambda: [(PIXELS, Y), (X, Y)], "data of client 0 has 8-bit integers"),
    "test's type": (lambda: ((PIXELS, Y), (X, Y)), "give all the same type"),
}


@pytest.mark.parametrize("which", REFUSED)
def test_refused_in_one_sentence(which: str) -> None:
    make, why = REFUSED[which]
    with pytest.raises(InputError, match=why) as refused:
        dataset(make())
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"kind": "imgae"}, "did you mean 'image'"),
        ({"classes": ["a", "b"]}, "lie outside 0..1"),
        ({"classes": ["a", "b", "a"]}, "several classes have the same name"),
        ({"name": "digits"}, "there is a data set called 'digits'"),
    ],
)
def test_refused_settings(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        fedstill.dataset((X, Y), **settings)


def test_test_data_of_a_list_belongs_into_it() -> None:
    with pytest.raises(InputError, match="put each client's test data into it"):
        dataset([(X, Y)], TEST)
