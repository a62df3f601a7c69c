"""Scenes among clients: shares of classes and scenes, overlap, and types of rooms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fedstill.core.dataset import ArrayDataset
from fedstill.core.errors import InputError
from fedstill.core.protocols import RoundContext
from fedstill.core.streams import Streams
from fedstill.data.partitions import Shards, partition
from fedstill.detection.scene_partitions import dealt, kind_rows
from fedstill.detection.scenes import Scenes, class_presence
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.plan import make_plan

from .test_distillation_runs import bundle


@pytest.fixture
def tiny() -> Scenes:
    """Four classes of which the last never occurs; scene k of 30 has class k mod 3, and every third has no box."""
    classes = torch.full((30, 2), -1)
    for row in range(20):
        classes[row, 0] = row % 3
    kinds = torch.arange(30) % 2
    return Scenes(torch.zeros(30, 64, 3), torch.zeros(30, 2, 7), classes, kinds, ("a", "b", "c", "d"), ("x", "y"))


def subset(scenes: Scenes, clients: int, seed: int = 0, **settings: Any) -> Shards:
    return partition("class-subset", scenes.classes, clients, len(scenes.class_names), Streams(seed), settings)


def holds(scenes: Scenes) -> Tensor:
    return class_presence(scenes.classes, len(scenes.class_names))


def known_classes(scenes: Scenes, clients: int, seed: int = 0) -> Tensor:
    held = holds(scenes).any(dim=0)
    return torch.stack([dealt(held, client, Streams(seed), 0.7) for client in range(clients)])


def test_each_client_has_its_share_of_classes_and_of_their_scenes(rooms: Scenes) -> None:
    """7 of 10 classes; 70 % of the scenes that have any of them, and no other scene."""
    shards = subset(rooms, 8, seed=1)
    known = known_classes(rooms, 8, seed=1)
    assert known.sum(dim=1).tolist() == [7] * 8
    assert len({tuple(row.tolist()) for row in known}) > 4
    for client in range(8):
        rows = shards.rows(client)
        has = (holds(rooms) & known[client]).any(dim=1)
        assert len(rows) == round(0.7 * int(has.sum()))
        assert has[rows].all()
        assert torch.equal(rows, rows.unique())
    assert len(shards.order.unique()) < len(shards.order)  # they overlap


def test_rare_classes_by_hand(tiny: Scenes) -> None:
    """2 of the 3 classes that occur; 7 + 7 + 6 scenes, so two classes have 13 or 14, and half of them is 6 or 7."""
    shards = subset(tiny, 6, share=0.7, scenes_share=0.5)
    known = known_classes(tiny, 6)
    assert known.sum(dim=1).tolist() == [2] * 6
    assert not known[:, 3].any()
    assert set(shards.sizes().tolist()) <= {6, 7}
    for client in range(6):
        assert known[client][tiny.classes[shards.rows(client), 0]].all()


def test_a_client_does_not_depend_on_how_many_there_are(rooms: Scenes) -> None:
    few, many = subset(rooms, 3, seed=2), subset(rooms, 9, seed=2)
    assert all(torch.equal(few.rows(client), many.rows(client)) for client in range(3))
    other = subset(rooms, 3, seed=3)
    assert not torch.equal(few.order, other.order)


def test_clients_can_be_kept_small(rooms: Scenes) -> None:
    assert subset(rooms, 5, most=6).sizes().tolist() == [6] * 5


def test_everything_to_everyone(tiny: Scenes) -> None:
    shards = subset(tiny, 2, share=1.0, scenes_share=1.0)
    assert shards.rows(0).tolist() == shards.rows(1).tolist() == list(range(20))


@pytest.mark.parametrize("clients", [1, 2, 3, 5, 8])
def test_room_types_are_dealt_whole(rooms: Scenes, clients: int) -> None:
    shards = kind_rows(rooms.kinds, clients, Streams(0))
    assert torch.equal(shards.order.sort().values, torch.arange(len(rooms)))
    kinds = [set(rooms.kinds[shards.rows(client)].tolist()) for client in range(clients)]
    if clients >= 5:
        assert all(len(each) == 1 for each in kinds)
    assert set.union(*kinds) == set(range(5))


def test_clients_of_one_type_share_equally(tiny: Scenes) -> None:
    """15 scenes of each of two types for five clients: three have the first type, two the second."""
    assert kind_rows(tiny.kinds, 5, Streams(0)).sizes().tolist() == [5, 8, 5, 7, 5]


def test_bad_input_is_refused(tiny: Scenes) -> None:
    with pytest.raises(InputError, match="at least one client, not 0"):
        subset(tiny, 0)
    with pytest.raises(InputError, match="15 scenes of type 0 are too few for 20 clients"):
        kind_rows(tiny.kinds, 40, Streams(0))


def test_boxes_of_other_classes_can_be_hidden(rooms: Scenes) -> None:
    """The scenes are those of the partition without it; a client sees the boxes of its own classes, in their order."""
    data = ArrayDataset(inputs=rooms.points, labels=rooms.classes, boxes=rooms.boxes)
    count = len(rooms.class_names)
    plain = subset(rooms, 3, share=0.4)
    shards = subset(rooms, 3, share=0.4, hide_others=True)
    assert torch.equal(plain.order, shards.order)
    occurring = class_presence(rooms.classes, count).any(dim=0)
    table = shards.table(rooms.classes, count)
    for client in range(3):
        known = dealt(occurring, client, Streams(0), 0.4).nonzero().flatten().tolist()
        shard = shards.of(data, client)
        batch = shard.batch(torch.arange(len(shard)))
        labels = shard.labels()
        assert labels is not None
        assert torch.equal(batch["labels"], labels)
        for place, row in enumerate(shards.rows(client).tolist()):
            boxes, kinds = rooms.boxes_of(row)
            stays = [number for number, kind in enumerate(kinds.tolist()) if kind in known]
            assert labels[place, : len(stays)].tolist() == kinds[stays].tolist()
            assert (labels[place, len(stays) :] == -1).all()
            assert torch.equal(batch["boxes"][place, : len(stays)], boxes[stays])
            assert not batch["boxes"][place, len(stays) :].any()
        assert table[client].tolist() == torch.bincount(labels[labels >= 0], minlength=count).tolist()
        assert torch.equal(batch["inputs"], rooms.points[shards.rows(client)])
    assert (plain.table(rooms.classes, count) > table).any()
    with pytest.raises(InputError, match=r"hide_others hides boxes, and these samples have none: leave partition"):
        partition("class-subset", torch.arange(4), 2, 4, Streams(0), {"hide_others": True})


@pytest.mark.parametrize("evaluation", ["central", "on-site"])
def test_clients_of_a_run_do_not_see_hidden_boxes(evaluation: str) -> None:
    given = {"method": "fedavg", "model": "small-detr3d-lite", "data": "few-rooms", "clients": 2}
    cut = {"name": "class-subset", "share": 0.3, "hide_others": True}
    plan = make_plan(make_experiment({**given, "partition": cut, "evaluation": evaluation}), bundle=bundle())
    masks = plan.clients.shards.known
    assert masks is not None
    for who in plan.profiles:
        client = plan.clients(who, {}, RoundContext.of(plan.streams, 0, 1, 2, "train"))
        known = {-1, *masks[who.id].nonzero().flatten().tolist()}
        held = [client.data] if client.test is None else [client.data, client.test]
        assert len(held) == (1 if evaluation == "central" else 2)
        assert all(set(one.labels().unique().tolist()) <= known for one in held)  # type: ignore[union-attr]
    whole = plan.bundle.test.labels()
    assert whole is not None
    assert set(whole.unique().tolist()) > known
