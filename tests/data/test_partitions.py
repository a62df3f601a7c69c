"""Partitions: exact covers, the sizes promised, the same draw every time, and hand-derived tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstill.core.errors import InputError
from fedstill.core.streams import Streams
from fedstill.data.partitions import Dirichlet, Iid, Shards, group_labels, partition, partitions

LENIENT: dict[str, dict[str, Any]] = {"iid": {}, "label-skew": {}, "dirichlet": {"min_samples": 0}, "pathological": {}}


def cut(name: str, labels: torch.Tensor, clients: int, classes: int, seed: int = 0, **options: Any) -> Shards:
    return partition(name, labels, clients, classes, Streams(seed), options)


@st.composite
def problems(draw: st.DrawFn) -> tuple[torch.Tensor, int, int]:
    classes = draw(st.integers(1, 6))
    labels = draw(st.lists(st.integers(0, classes - 1), min_size=1, max_size=120))
    return torch.tensor(labels), draw(st.integers(1, len(labels))), classes


@pytest.mark.parametrize("name", ["iid", "label-skew", "dirichlet"])
@settings(deadline=None, max_examples=60)
@given(problem=problems(), seed=st.integers(0, 2**32))
def test_every_row_is_in_exactly_one_shard(name: str, problem: tuple[torch.Tensor, int, int], seed: int) -> None:
    labels, clients, classes = problem
    shards = cut(name, labels, clients, classes, seed, **LENIENT[name])
    assert len(shards) == clients
    assert torch.equal(torch.cat([shards.rows(k) for k in range(clients)]).sort().values, torch.arange(len(labels)))
    assert shards.sizes().tolist() == [len(shards.rows(k)) for k in range(clients)]
    assert all(torch.equal(shards.rows(k), shards.rows(k).sort().values) for k in range(clients))
    table = shards.table(labels, classes)
    by_hand = [torch.bincount(labels[shards.rows(k)], minlength=classes) for k in range(clients)]
    assert torch.equal(table, torch.stack(by_hand))


@pytest.mark.parametrize("name", sorted(LENIENT))
def test_a_cut_depends_on_its_streams_and_on_nothing_else(name: str) -> None:
    labels = torch.arange(10).repeat(30)
    first = cut(name, labels, 7, 10, seed=3)
    torch.manual_seed(99)
    np.random.seed(99)
    again = cut(name, labels, 7, 10, seed=3)
    other = cut(name, labels, 7, 10, seed=4)
    assert torch.equal(first.order, again.order)
    assert torch.equal(first.offsets, again.offsets)
    assert torch.equal(first.order, other.order) == (name == "label-skew")


def test_label_skew_gives_the_published_table_a1() -> None:
    labels = torch.arange(4).repeat(80)[torch.from_numpy(np.random.default_rng(0).permutation(320))]
    table = cut("label-skew", labels, 5, 4).table(labels, 4)
    assert table.T.tolist() == [[64, 16, 0, 0, 0], [0, 48, 32, 0, 0], [0, 0, 32, 48, 0], [0, 0, 0, 16, 64]]


@pytest.mark.parametrize("name", ["iid", "label-skew"])
def test_equal_cuts_differ_by_one_larger_first(name: str) -> None:
    assert cut(name, torch.zeros(11, dtype=torch.int64), 4, 1).sizes().tolist() == [3, 3, 3, 2]


def test_label_skew_keeps_the_order_of_equal_labels() -> None:
    shards = cut("label-skew", torch.tensor([1, 0, 1, 0]), 2, 2)
    assert shards.rows(0).tolist() == [1, 3]
    assert shards.rows(1).tolist() == [0, 2]


def test_pooled_is_one_client_with_everything() -> None:
    assert cut("pooled", torch.zeros(5, dtype=torch.int64), 1, 1).rows(0).tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(InputError, match="one client, not 3"):
        cut("pooled", torch.zeros(5, dtype=torch.int64), 3, 1)


def test_alpha_decides_the_skew() -> None:
    labels = torch.arange(10).repeat(500)
    even = cut("dirichlet", labels, 10, 10, alpha=1000.0).table(labels, 10)
    skewed = cut("dirichlet", labels, 10, 10, alpha=0.05, min_samples=0).table(labels, 10)
    assert even.min() > 30
    assert even.max() < 70
    assert skewed.max() > 300
    assert (skewed == 0).float().mean() > 0.3


def test_fractions_are_rounded_fairly_over_clients() -> None:
    labels = torch.arange(10).repeat(60)  # 0.6 of a sample per client and class
    sizes = cut("dirichlet", labels, 100, 10, alpha=1e6, min_samples=0).sizes()
    assert sizes.max() - sizes.min() <= 8


def test_dirichlet_redraws_until_no_client_is_too_small() -> None:
    labels = torch.arange(10).repeat(100)
    for seed in range(5):
        assert cut("dirichlet", labels, 10, 10, seed=seed, alpha=0.3, min_samples=20).sizes().min() >= 20


@pytest.mark.parametrize("name", ["dirichlet", "pathological", "label-skew"])
def test_further_rows_are_of_the_classes_that_a_client_has(name: str) -> None:
    """Test rows are few, so that a draw that is good enough for the training rows would often not be for them."""
    rows, further = torch.arange(10).repeat_interleave(140), torch.arange(10).repeat_interleave(35)
    given = {"alpha": 0.1} if name == "dirichlet" else {}
    for seed in range(30):
        streams = Streams(seed)
        held = partition(name, rows, 10, 10, streams, given).table(rows, 10)
        tested = partition(name, further, 10, 10, streams, given, like=rows).table(further, 10)
        assert tested.sum() == len(further)
        assert not tested[held == 0].any(), f"seed {seed}: tested on classes that nobody there trained on"
        assert np.corrcoef(held.flatten(), tested.flatten())[0, 1] > 0.9


@pytest.mark.parametrize("name", sorted(set(partitions) - {"iid", "pooled", "sites"}))
def test_test_data_with_other_proportions_are_of_the_classes_that_a_client_has(name: str) -> None:
    """Half of the test rows are of one class, and one class has a single row; a class that nobody has goes to all."""
    rows = torch.arange(5).repeat_interleave(40)
    further = torch.repeat_interleave(torch.arange(6), torch.tensor([60, 1, 10, 12, 13, 24]))
    for seed in range(20):
        streams = Streams(seed)
        held = partition(name, rows, 5, 6, streams).table(rows, 6)
        shards = partition(name, further, 5, 6, streams, like=rows)
        tested = shards.table(further, 6)
        assert not tested[:, :5][held[:, :5] == 0].any()
        if name != "class-subset":  # whose clients draw by themselves
            assert torch.equal(shards.order.sort().values, torch.arange(len(further)))
            assert sorted(tested[:, 5].tolist()) == [4, 5, 5, 5, 5]


def test_shares_of_further_rows_by_hand() -> None:
    """Slices of 4 rows: client 0 has class 0 alone, client 1 a third of it, and so on; 9 rows are dealt out so too."""
    rows = torch.tensor([0] * 6 + [1] * 6)
    further = torch.tensor([1, 0] * 3 + [0] * 6)
    tested = partition("label-skew", further, 3, 2, Streams(0), like=rows).table(further, 2)
    assert tested.tolist() == [[6, 0], [3, 1], [0, 2]]


def test_types_of_rooms_are_those_of_training_though_some_have_no_test_room() -> None:
    """Three types for three clients; there is no test room of the first, and of the last one room for one client."""
    rows, further = torch.arange(3).repeat(5), torch.tensor([1, 2, 1])
    assert partition("room-type", further, 3, 2 + 1, Streams(0), like=rows).table(further, 3).tolist() == [
        [0, 0, 0],
        [0, 2, 0],
        [0, 0, 1],
    ]
    scenes = torch.tensor([[0, 1], [0, -1], [1, -1]])  # a class that only training rooms have is dealt out as it was
    known = partition(
        "class-subset", torch.tensor([[0], [1], [2]]), 9, 3, Streams(0), {"share": 0.3, "scenes_share": 1}
    )
    tested = partition(
        "class-subset", scenes, 9, 3, Streams(0), {"share": 0.3, "scenes_share": 1}, like=torch.arange(3)
    )
    by_class = {0: [0, 1], 1: [0, 2], 2: []}
    assert [tested.rows(k).tolist() for k in range(9)] == [by_class[int(known.rows(k))] for k in range(9)]


def test_dirichlet_gives_up_with_advice() -> None:
    labels = torch.arange(2).repeat(20)
    with pytest.raises(
        InputError, match=r"Dirichlet\(0.001\) gave some of 30 clients.*in each of 100 draws: raise alpha"
    ):
        cut("dirichlet", labels, 30, 2, alpha=0.001)
    with pytest.raises(InputError, match="40 samples are too few for 5 clients of at least 9 each"):
        cut("dirichlet", labels, 5, 2, min_samples=9)


@pytest.mark.parametrize(("clients", "held", "classes"), [(5, 2, 10), (7, 3, 10), (100, 2, 10), (3, 4, 4), (10, 1, 10)])
def test_pathological_clients_hold_exactly_their_classes(clients: int, held: int, classes: int) -> None:
    labels = torch.arange(classes).repeat(100)
    table = cut("pathological", labels, clients, classes, classes_per_client=held).table(labels, classes)
    assert ((table > 0).sum(dim=1) == held).all()
    holders = (table > 0).sum(dim=0)
    assert holders.max() - holders.min() <= 1


@settings(deadline=None, max_examples=60)
@given(classes=st.integers(1, 8), each=st.integers(12, 20), data=st.data())
def test_pathological_cuts_are_exact_covers(classes: int, each: int, data: st.DataObject) -> None:
    held = data.draw(st.integers(1, classes))
    clients = data.draw(st.integers(-(-classes // held), 12))
    labels = torch.arange(classes).repeat(each)
    shards = cut("pathological", labels, clients, classes, seed=data.draw(st.integers(0, 99)), classes_per_client=held)
    assert torch.equal(shards.order.sort().values, torch.arange(len(labels)))
    assert ((shards.table(labels, classes) > 0).sum(dim=1) == held).all()


def test_pathological_amounts_are_random() -> None:
    labels = torch.arange(10).repeat(200)
    assert len(set(cut("pathological", labels, 20, 10).sizes().tolist())) > 10


def test_pathological_ignores_classes_nobody_has() -> None:
    labels = torch.tensor([0, 4] * 30)
    table = cut("pathological", labels, 6, 5).table(labels, 5)
    assert ((table > 0).sum(dim=1) == 2).all()


@pytest.mark.parametrize(
    ("labels", "clients", "held", "sentence"),
    [
        ([0, 1] * 5, 3, 3, "cannot hold 3 classes where there are 2"),
        ([0, 1, 2, 3, 4] * 5, 2, 2, "ask for at least 3 clients"),
        ([0] * 20 + [1] * 2, 10, 2, "class 1 has 2 samples for the 10 clients"),
    ],
)
def test_pathological_says_what_cannot_be_dealt(labels: list[int], clients: int, held: int, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        cut("pathological", torch.tensor(labels), clients, 5, classes_per_client=held)


def test_boxes_are_counted_by_class_and_rows_that_fill_up_are_not() -> None:
    """Client 0 has scenes 0 and 2: chairs (0) in both, a table (1) in the first, and nothing else."""
    boxes = torch.tensor([[0, 0, 1], [1, -1, -1], [0, -1, -1], [-1, -1, -1]])
    shards = Shards(torch.tensor([0, 2, 1, 2, 3]), torch.tensor([0, 2, 5]))
    assert shards.table(boxes, 3).tolist() == [[3, 1, 0], [1, 1, 0]]


@pytest.mark.parametrize("clients", [1, 2, 7, 40])
def test_class_subset_of_samples_with_one_class_each(clients: int) -> None:
    """7 of 10 classes of three samples each: 21 samples, of which 70 % are 15 to the nearest; clients may share."""
    labels = torch.arange(10).repeat(3)
    shards = cut("class-subset", labels, clients, 10)
    assert shards.sizes().tolist() == [15] * clients
    for client in range(clients):
        assert len(labels[shards.rows(client)].unique()) <= 7
    assert cut("class-subset", labels, clients, 10, most=4).sizes().tolist() == [4] * clients
    assert cut("class-subset", labels, clients, 10, share=0.1, scenes_share=1.0).sizes().tolist() == [3] * clients


def test_class_subset_goes_by_all_boxes_of_a_scene() -> None:
    """One class of two is known: scene 0 has both, scene 1 the first, scene 2 the second, scene 3 has nothing."""
    boxes = torch.tensor([[0, 1], [0, -1], [1, -1], [-1, -1]])
    shards = cut("class-subset", boxes, 20, 2, share=0.5, scenes_share=1.0)
    held = {tuple(shards.rows(client).tolist()) for client in range(20)}
    assert held == {(0, 1), (0, 2)}


def test_room_type_deals_kinds_and_needs_more_than_one() -> None:
    """Kinds 0, 1 and 2 go round: clients 0 and 3 share kind 0, the others have one kind each."""
    kinds = torch.tensor([0, 0, 0, 0, 1, 1, 2])
    shards = cut("room-type", kinds, 4, 3)
    assert shards.table(kinds, 3).tolist() == [[2, 0, 0], [0, 2, 0], [0, 0, 1], [2, 0, 0]]
    assert cut("room-type", torch.zeros(5, dtype=torch.int64), 1, 1).sizes().tolist() == [5]
    with pytest.raises(InputError, match="all samples are of one type"):
        cut("room-type", torch.zeros(5, dtype=torch.int64), 2, 1)
    with pytest.raises(InputError, match="1 scenes of type 2 are too few for 2 clients"):
        cut("room-type", kinds, 6, 3)


def test_bad_boxes_are_refused() -> None:
    with pytest.raises(InputError, match=r"labels range over -2..1, not 0..1"):
        cut("class-subset", torch.tensor([[0, -2], [1, -1]]), 2, 2)
    with pytest.raises(InputError, match="no scene has a box"):
        cut("class-subset", torch.full((4, 2), -1), 2, 2)
    with pytest.raises(InputError, match="2 clients cannot share 0 samples"):
        cut("class-subset", torch.zeros(0, 2, dtype=torch.int64), 2, 2)
    with pytest.raises(InputError, match="partition 'class-subset': share: Input should be less than or equal to 1"):
        cut("class-subset", torch.tensor([[0]]), 1, 1, share=1.5)


@pytest.mark.parametrize("name", ["iid", "label-skew", "dirichlet", "pathological", "pooled"])
def test_impossible_numbers_of_clients_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="6 clients cannot share 5 samples: ask for at most 5"):
        cut(name, torch.tensor([0, 1, 0, 1, 0]), 6, 2)
    with pytest.raises(InputError, match="at least one client, not 0"):
        cut(name, torch.tensor([0, 1]), 0, 2)
    with pytest.raises(InputError, match=r"labels range over 0..2, not 0..1"):
        cut(name, torch.tensor([0, 2]), 1, 2)


def test_names_and_settings_are_checked() -> None:
    labels = torch.tensor([0, 1])
    with pytest.raises(InputError, match="unknown partition 'dirichlett': did you mean 'dirichlet'"):
        cut("dirichlett", labels, 1, 2)
    with pytest.raises(InputError, match="partition 'dirichlet': alpha: Input should be greater than 0"):
        cut("dirichlet", labels, 1, 2, alpha=-1.0)
    with pytest.raises(InputError, match="partition 'iid': alpha: Extra inputs"):
        cut("iid", labels, 1, 2, alpha=0.1)
    with pytest.raises(InputError, match="instance of Iid"):
        partition("iid", labels, 1, 2, Streams(0), Dirichlet())
    assert len(partition("iid", labels, 2, 2, Streams(0), Iid())) == 2
    assert all(partitions.summary(name).endswith(".") for name in partitions)


def test_a_client_that_does_not_exist_has_no_rows() -> None:
    with pytest.raises(IndexError, match="client 2 of 2"):
        cut("iid", torch.tensor([0, 1]), 2, 2).rows(2)


def test_ten_thousand_clients_take_no_time() -> None:
    labels = torch.arange(10).repeat(6000)
    for name, options in LENIENT.items():
        shards = cut(name, labels, 10_000, 10, **options)
        assert shards.table(labels, 10).sum() == 60_000


@pytest.mark.parametrize("name", ["iid", "label-skew", "dirichlet", "pathological"])
def test_groups_stay_whole_in_shards(name: str) -> None:
    groups = torch.arange(90).repeat_interleave(2)[torch.randperm(180, generator=torch.Generator().manual_seed(0))]
    labels = groups % 3
    shards = partition(name, labels, 4, 3, Streams(0), groups=groups)
    held = [set(groups[shards.rows(client)].tolist()) for client in range(4)]
    assert sum(map(len, held)) == 90
    assert sorted(shards.order.tolist()) == list(range(180))
    singles = partition(name, group_labels(labels, groups)[0], 4, 3, Streams(0))
    assert [len(one) for one in held] == singles.sizes().tolist()


def test_more_clients_than_groups_are_refused() -> None:
    with pytest.raises(InputError, match="5 clients cannot share 2 whole groups: ask for at most 2"):
        partition("iid", torch.zeros(8, dtype=torch.int64), 5, 2, Streams(0), groups=torch.arange(8) % 2)
