from __future__ import annotations

import pytest
import torch

from fedstill.core.dataset import ArrayDataset, Relabelled, Subset, class_counts, every_row


@pytest.fixture
def data() -> ArrayDataset:
    return ArrayDataset(inputs=torch.arange(10.0).reshape(5, 2), labels=torch.tensor([4, 3, 2, 1, 0]))


def test_a_batch_has_the_rows_asked_for_in_that_order(data: ArrayDataset) -> None:
    batch = data.batch(torch.tensor([3, 0, 3]))
    assert set(batch) == {"inputs", "labels", "sample_id"}
    assert batch["inputs"].tolist() == [[6, 7], [0, 1], [6, 7]]
    assert batch["labels"].tolist() == [1, 4, 1]
    assert batch["sample_id"].tolist() == [3, 0, 3]


def test_changing_a_batch_does_not_change_the_data(data: ArrayDataset) -> None:
    data.batch(torch.tensor([0]))["inputs"].fill_(9)
    assert data.batch(torch.tensor([0]))["inputs"].tolist() == [[0, 1]]


def test_eight_bit_inputs_become_minus_one_to_one() -> None:
    """0 -> -1, 255 -> 1, 51 -> 51 / 127.5 - 1 = -0.6; stored as 8 bits all the while."""
    data = ArrayDataset(inputs=torch.tensor([[0, 51, 255]], dtype=torch.uint8))
    inputs = data.batch(torch.tensor([0]))["inputs"]
    assert inputs.dtype == torch.float32
    torch.testing.assert_close(inputs, torch.tensor([[-1.0, -0.6, 1.0]]))
    assert inputs[0, 2].item() == 1.0
    assert data.columns["inputs"].dtype == torch.uint8


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64])
def test_other_inputs_become_single_precision_unchanged(dtype: torch.dtype) -> None:
    data = ArrayDataset(inputs=torch.tensor([[1, 2]]).to(dtype))
    inputs = data.batch(torch.tensor([0]))["inputs"]
    assert inputs.dtype == torch.float32
    assert inputs.tolist() == [[1, 2]]


def test_an_unlabelled_set_has_no_label_column_at_all(data: ArrayDataset) -> None:
    bare = data.unlabelled()
    assert "labels" not in bare.batch(torch.tensor([0]))
    assert "labels" not in bare.columns
    assert bare.labels() is None
    assert bare.batch(torch.tensor([2]))["sample_id"].tolist() == [2]
    assert data.labels().tolist() == [4, 3, 2, 1, 0]


def test_sample_ids_that_are_given_are_kept() -> None:
    data = ArrayDataset(inputs=torch.zeros(2, 1), sample_id=torch.tensor([70, 80]))
    assert data.batch(torch.tensor([1]))["sample_id"].tolist() == [80]


@pytest.mark.parametrize(
    "columns",
    [{}, {"labels": torch.zeros(2)}, {"inputs": torch.zeros(2, 1), "labels": torch.zeros(3)}],
    ids=["nothing", "no inputs", "two lengths"],
)
def test_columns_that_do_not_fit_are_refused(columns: dict) -> None:
    with pytest.raises(ValueError, match="must include `inputs` and have one length"):
        ArrayDataset(**columns)


def test_a_subset_of_a_subset_keeps_the_samples_identity(data: ArrayDataset) -> None:
    outer = Subset(data, torch.tensor([4, 2, 0]))
    inner = Subset(outer, torch.tensor([2, 0]))
    assert (len(outer), len(inner)) == (3, 2)
    batch = inner.batch(torch.tensor([0, 1]))
    assert batch["sample_id"].tolist() == [0, 4]
    assert batch["labels"].tolist() == [4, 0]
    assert inner.labels().tolist() == [4, 0]


def test_an_unlabelled_subset_cannot_reach_the_labels(data: ArrayDataset) -> None:
    bare = Subset(Subset(data, torch.tensor([4, 2, 0])), torch.tensor([1])).unlabelled()
    assert bare.labels() is None
    assert "labels" not in bare.batch(torch.tensor([0]))
    assert "labels" not in bare.data.data.columns
    assert bare.batch(torch.tensor([0]))["sample_id"].tolist() == [2]


def test_every_row_once_in_order(data: ArrayDataset) -> None:
    assert [piece.tolist() for piece in every_row(data, 2)] == [[0, 1], [2, 3], [4]]
    assert torch.cat(every_row(data, 100)).tolist() == [0, 1, 2, 3, 4]


def test_relabelled_data_is_otherwise_the_same(data: ArrayDataset) -> None:
    """Rows 1 to 4 have the labels 3, 2, 1 and 0; reversed they are 1, 2, 3 and 4."""
    some, reverse = Subset(data, torch.arange(1, 5)), torch.arange(5).flip(0)
    other, rows = Relabelled(some, reverse), torch.tensor([3, 1])
    assert len(other) == 4
    assert other.batch(rows)["labels"].tolist() == [4, 2]
    assert other.labels().tolist() == [1, 2, 3, 4]
    for name in ("inputs", "sample_id"):
        assert torch.equal(other.batch(rows)[name], some.batch(rows)[name])
    assert data.labels().tolist() == [4, 3, 2, 1, 0]
    assert set(other.unlabelled().batch(rows)) == {"inputs", "sample_id"}
    assert other.unlabelled().labels() is None
    assert Relabelled(some.unlabelled(), reverse).labels() is None
    assert "labels" not in Relabelled(some.unlabelled(), reverse).batch(rows)


def test_labels_of_points_are_changed_too() -> None:
    data = ArrayDataset(inputs=torch.zeros(1, 4, 3), labels=torch.tensor([[0, 1, 2, 2]]))
    assert Relabelled(data, torch.tensor([2, 1, 0])).batch(torch.tensor([0]))["labels"].tolist() == [[2, 1, 0, 0]]


def test_samples_or_points_are_counted_by_class(data: ArrayDataset) -> None:
    some = Subset(data, torch.tensor([1, 4, 1]))  # of classes 3, 0 and 3
    assert class_counts(some, 6).tolist() == [1, 0, 0, 2, 0, 0]
    assert class_counts(some.unlabelled(), 6).tolist() == [0] * 6
    points = ArrayDataset(inputs=torch.zeros(2, 3, 3), labels=torch.tensor([[0, 1, 1], [1, 0, 2]]))
    assert class_counts(points, 3).tolist() == [2, 3, 1]
