"""Several data sets as one."""

from __future__ import annotations

import torch

import fedstill
from fedstill.core.dataset import ArrayDataset, column
from fedstill.data.joined_data import JoinedDataset, contents_of, lazily_read

from ..own_objects import Rows, X, Y


def parts() -> tuple[ArrayDataset, ArrayDataset]:
    first = ArrayDataset(inputs=torch.arange(3.0)[:, None], labels=torch.tensor([0, 1, 2]), site=torch.zeros(3).long())
    second = ArrayDataset(
        inputs=torch.arange(10.0, 12)[:, None], labels=torch.tensor([2, 0]), site=torch.tensor([1, 1])
    )
    return first, second


def test_rows_come_in_the_order_asked_for_and_are_numbered_anew() -> None:
    joined = JoinedDataset(parts())
    assert len(joined) == 5
    batch = joined.batch(torch.tensor([4, 0, 3, 2, 0]))
    assert batch["inputs"].flatten().tolist() == [11, 0, 10, 2, 0]
    assert batch["labels"].tolist() == [0, 0, 2, 2, 0]
    assert batch["site"].tolist() == [1, 0, 1, 0, 0]
    assert batch["sample_id"].tolist() == [4, 0, 3, 2, 0]
    assert joined.labels().tolist() == [0, 1, 2, 2, 0]  # type: ignore[union-attr]
    assert column(joined, "site").tolist() == [0, 0, 0, 1, 1]  # type: ignore[union-attr]


def test_no_rows_give_an_empty_batch() -> None:
    batch = JoinedDataset(parts()).batch(torch.zeros(0, dtype=torch.int64))
    assert {name: len(values) for name, values in batch.items()} == dict.fromkeys(batch, 0)


def test_unlabelled_has_no_labels_column() -> None:
    hidden = JoinedDataset(parts()).unlabelled()
    assert hidden.labels() is None
    assert "labels" not in hidden.batch(torch.tensor([0, 4]))
    assert "labels" not in dict(contents_of(hidden))


def test_labels_of_some_parts_only_are_none() -> None:
    first, second = parts()
    assert JoinedDataset((first, second.unlabelled())).labels() is None


def test_lazy_and_array_clients_are_joined_like_arrays_alone() -> None:
    arrays = [(X[:20], Y[:20]), (X[20:], Y[20:])]
    mixed = fedstill.dataset([arrays[0], Rows(*arrays[1])]).train
    plain = fedstill.dataset(arrays).train
    assert isinstance(mixed, JoinedDataset)
    assert isinstance(plain, ArrayDataset)
    every = torch.arange(len(plain)).flip(0)
    one, other = mixed.batch(every), plain.batch(every)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert [items.name for items in lazily_read([mixed, plain])] == ["Rows"]


def test_which_client_has_which_part_is_in_the_fingerprint() -> None:
    def made(cut: int) -> str:
        return fedstill.dataset([Rows(X[:cut], Y[:cut]), Rows(X[cut:], Y[cut:])]).fingerprint()

    swapped = fedstill.dataset([Rows(X[24:], Y[24:]), Rows(X[:24], Y[:24])]).fingerprint()
    assert len({made(24), made(27), swapped}) == 3
    assert made(24) == made(24)
