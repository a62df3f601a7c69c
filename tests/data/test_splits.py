from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstill.core.errors import InputError
from fedstill.core.streams import Streams
from fedstill.data.splits import hold_out, split_validation


@settings(deadline=None)
@given(counts=st.lists(st.integers(10, 40), min_size=1, max_size=8), share=st.floats(0.06, 0.95))
def test_a_split_is_a_cover_and_every_class_gives_its_share(counts: list[int], share: float) -> None:
    labels = torch.cat([torch.full((count,), number) for number, count in enumerate(counts)])
    train, validation = split_validation(labels, share, Streams(1))
    assert torch.equal(torch.cat([train, validation]).sort().values, torch.arange(len(labels)))
    assert torch.equal(train, train.sort().values)
    assert torch.equal(validation, validation.sort().values)
    for number, count in enumerate(counts):
        taken = int((labels[validation] == number).sum())
        assert taken <= count - 1
        assert abs(taken - count * share) <= 1


def test_the_whole_is_right_even_where_classes_are_small() -> None:
    labels = torch.arange(40).repeat(3)  # a tenth of three is no whole sample
    _, validation = split_validation(labels, 0.1, Streams(0))
    assert len(validation) == 12


def test_a_seed_decides_the_validation_rows_but_never_the_test_rows() -> None:
    labels = torch.arange(5).repeat(20)
    first, again, other = (split_validation(labels, 0.2, Streams(seed))[1] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    torch.manual_seed(5)
    assert torch.equal(hold_out(labels)[1], hold_out(labels)[1])


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 2.0, float("nan")])
def test_a_share_must_be_a_share(share: float) -> None:
    with pytest.raises(InputError, match="between 0 and 1"):
        split_validation(torch.zeros(10, dtype=torch.int64), share, Streams(0))


def test_a_share_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="not one sample"):
        split_validation(torch.arange(4), 0.5, Streams(0))  # classes of one keep it for training


def test_groups_stay_whole_and_classes_keep_their_shares() -> None:
    groups = torch.arange(60).repeat_interleave(3)
    labels = torch.arange(60).remainder(3).repeat_interleave(3)
    train, test = hold_out(labels, groups)
    assert not set(groups[train].tolist()) & set(groups[test].tolist())
    assert sorted([*train.tolist(), *test.tolist()]) == list(range(180))
    assert labels[test].bincount().tolist() == [12, 12, 12]
    assert test.equal(hold_out(labels, groups)[1])
    other = split_validation(labels, 0.2, Streams(1), groups=groups)[1]
    assert not other.equal(split_validation(labels, 0.2, Streams(2), groups=groups)[1])
    assert labels[other].bincount().tolist() == [12, 12, 12]


def test_the_last_group_of_a_class_is_trained_on() -> None:
    labels, groups = torch.tensor([0, 0, 0, 1, 1, 2, 2]), torch.tensor([0, 1, 2, 3, 3, 4, 5])
    train, test = hold_out(labels, groups)
    assert set(labels[train].tolist()) == {0, 1, 2}
    assert set(labels[test].tolist()) == {0, 2}  # class 1 has a single group


def test_large_groups_do_not_push_the_share_far_off() -> None:
    generator = np.random.default_rng(0)
    groups = torch.from_numpy(np.repeat(np.arange(200), generator.integers(1, 12, 200)))
    labels = torch.from_numpy(generator.integers(0, 2, 200))[groups]
    _, test = hold_out(labels, groups)
    shares = labels[test].bincount() / labels.bincount()
    assert (shares - 0.2).abs().max() < 0.02


def test_groups_are_on_one_side_of_two_hundred_random_splits() -> None:
    draw = np.random.default_rng(0)
    for table in range(200):
        rows, patients, classes = (int(draw.integers(*ends)) for ends in ((10, 300), (2, 80), (2, 6)))
        groups = torch.from_numpy(draw.integers(0, patients, rows))
        labels = groups * 7 % classes if table % 2 else torch.from_numpy(draw.integers(0, classes, rows))
        for train, other in (
            hold_out(labels, groups),
            split_validation(labels, 0.2, Streams(table), may_be_empty=True, groups=groups),
        ):
            assert sorted([*train.tolist(), *other.tolist()]) == list(range(rows))
            assert not set(groups[train].tolist()) & set(groups[other].tolist())
            assert set(labels[train].tolist()) == set(labels.tolist())  # no class is lost from training
