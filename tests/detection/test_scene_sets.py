"""Scenes as data sets: their columns, what is asked of them by the rest of the house, and parts of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedstill.core.dataset import ArrayDataset, Subset, class_counts, has_boxes
from fedstill.core.errors import InputError
from fedstill.core.streams import Streams
from fedstill.data.bundle import Bundle
from fedstill.data.catalogue import load
from fedstill.data.clouds import first_points
from fedstill.data.partitions import partition
from fedstill.data.point_labels import has_point_labels, kind_names, partition_labels, shape_kinds
from fedstill.detection.rooms import CLASSES, KINDS, make_rooms
from fedstill.detection.scene_sets import scene_bundle, scenes_of, some_scenes
from fedstill.detection.scenes import Scene, stack

BOX = [0.0, 0.0, 0.5, 1.0, 2.0, 1.0, 0.0]


def scene(boxes: int, kind: int = -1, seed: int = 0) -> Scene:
    points = 5 + 3 * np.random.default_rng(seed).normal(size=(80, 3))
    return Scene(points, np.array([BOX] * boxes).reshape(-1, 7), np.arange(boxes) % 2, f"scene {seed}", kind)


def tiny(kinds: tuple[int, ...] = (0, 1, 0, 1)) -> Bundle:
    """Scene k has k boxes, of two classes in turn; the test scene has five."""
    scenes = [scene(number, kind, number) for number, kind in enumerate(kinds)]
    names = ("hall", "attic") if max(kinds) >= 0 else ()
    return scene_bundle(
        "tiny",
        {"train": stack(scenes, ("chair", "table"), names), "test": stack([scene(5)], ("chair", "table"), names)},
    )


@pytest.mark.usefixtures("few_rooms")
def test_the_built_in_rooms() -> None:
    """Training rooms are the first of seed 0, test rooms the next."""
    bundle = load("rooms")
    assert (bundle.kind, bundle.shape, bundle.classes, bundle.categories) == ("scene", (2048, 3), CLASSES, KINDS)
    assert (len(bundle.train), len(bundle.test)) == (24, 8)
    made = make_rooms(8, first=24)
    columns = bundle.test.columns
    assert torch.equal(columns["inputs"], made.points)
    assert torch.equal(columns["boxes"], made.boxes)
    assert torch.equal(columns["labels"], made.classes)
    assert torch.equal(columns["category"], made.kinds)
    assert columns["sample_id"].tolist() == list(range(8))
    assert load("rooms").fingerprint() == bundle.fingerprint()


def test_columns_are_filled_up_alike_in_all_splits() -> None:
    bundle = tiny()
    assert bundle.train.columns["labels"].tolist()[:3] == [[-1] * 5, [0] + [-1] * 4, [0, 1] + [-1] * 3]
    assert bundle.test.columns["labels"].tolist() == [[0, 1, 0, 1, 0]]
    assert bundle.train.columns["boxes"].shape == (4, 5, 7)
    assert (bundle.train.columns["boxes"][0] == 0).all()
    assert bundle.train.columns["category"].tolist() == [0, 1, 0, 1]
    assert bundle.test.columns["category"].tolist() == [0]  # nobody says
    assert bundle.train.columns["inputs"].mean() > 4  # as measured, not normalised


def test_who_is_asked_what_it_is_about() -> None:
    bundle = tiny()
    part = Subset(bundle.train, torch.tensor([1, 3]))
    for data in (bundle.train, part, Subset(part, torch.tensor([], dtype=torch.int64))):
        assert has_boxes(data)
        assert not has_point_labels(data)
        assert not has_boxes(data.unlabelled())
        assert data.unlabelled().labels() is None
        assert not {"boxes", "labels"} & set(data.unlabelled().batch(torch.tensor([], dtype=torch.int64)))
    points = ArrayDataset(inputs=torch.zeros(2, 4, 3), labels=torch.zeros(2, 4, dtype=torch.int64))
    assert has_point_labels(points)
    assert not has_boxes(points)
    assert not has_boxes(ArrayDataset(inputs=torch.zeros(2, 1), labels=torch.tensor([0, 1])))


def test_boxes_are_counted_without_those_that_fill_up() -> None:
    """0 + 1 + 2 + 3 boxes: chairs 1 + 1 + 2, tables 1 + 1."""
    assert class_counts(tiny().train, 3).tolist() == [4, 2, 0]


def test_samples_are_split_and_partitioned_by_the_type_of_room() -> None:
    bundle = tiny()
    assert shape_kinds(bundle.train).tolist() == [0, 1, 0, 1]
    assert kind_names(bundle) == ("hall", "attic")
    assert kind_names(tiny((-1, -1, -1, -1))) == ("scenes",)


def test_what_a_partition_goes_by() -> None:
    bundle = tiny()
    boxes, count = partition_labels("class-subset", bundle.train, 2)
    assert torch.equal(boxes, bundle.train.columns["labels"])
    assert count == 2
    for name in ("iid", "dirichlet", "room-type"):
        kinds, count = partition_labels(name, bundle.train, 2)
        assert (kinds.tolist(), count) == ([0, 1, 0, 1], 2)
    blind, count = partition_labels("class-subset", bundle.train.unlabelled(), 2)
    assert (blind.tolist(), count) == ([0, 0, 0, 0], 2)
    plain = ArrayDataset(inputs=torch.zeros(3, 1), labels=torch.tensor([0, 4, 0]))
    labels, count = partition_labels("class-subset", plain, 5)
    assert (labels.tolist(), count) == ([0, 4, 0], 5)
    shards = partition("class-subset", boxes, 3, 2, Streams(0), {"share": 1.0, "scenes_share": 1.0})
    assert [shards.rows(client).tolist() for client in range(3)] == [[1, 2, 3]] * 3  # scene 0 has nothing in it


def test_fewer_points_are_the_first_ones_as_they_are() -> None:
    bundle = tiny()
    fewer = bundle.with_points(70)
    assert fewer.shape == (70, 3)
    assert torch.equal(fewer.train.columns["inputs"], bundle.train.columns["inputs"][:, :70])
    assert torch.equal(fewer.train.columns["boxes"], bundle.train.columns["boxes"])
    assert fewer.fingerprint() != bundle.fingerprint()
    assert bundle.with_points(80) is bundle
    outside = first_points(Subset(bundle.train, torch.arange(4)), 70, anew=False)
    assert torch.equal(outside.batch(torch.arange(4))["inputs"], fewer.train.columns["inputs"])
    assert has_boxes(outside)
    with pytest.raises(InputError, match="tiny holds scenes of 80 points: 81 cannot be taken of each"):
        bundle.with_points(81)
    with pytest.raises(InputError, match="tiny holds scenes, which need at least 64 points each, not 63"):
        bundle.with_points(63)


@pytest.mark.usefixtures("few_rooms")
def test_parts_have_their_share_of_every_type() -> None:
    whole, first, second = (load(name) for name in ("rooms", "rooms[:50%]", "rooms[50%:]"))
    kinds = torch.bincount(shape_kinds(whole.train), minlength=5)
    assert torch.bincount(shape_kinds(first.train), minlength=5).tolist() == (kinds // 2).tolist()
    ids = [set(bundle.train.columns["sample_id"].tolist()) for bundle in (first, second)]
    assert ids[0] | ids[1] == set(range(24))
    assert not ids[0] & ids[1]
    assert has_boxes(first.train)
    assert len({bundle.fingerprint() for bundle in (whole, first, second)}) == 3


def test_scenes_come_back_as_they_went_in() -> None:
    bundle = tiny()
    scenes = scenes_of(bundle, bundle.train, torch.tensor([2, 3]))
    assert scenes.classes.tolist() == [[0, 1, -1, -1, -1], [0, 1, 0, -1, -1]]
    assert scenes.kinds.tolist() == [0, 1]
    assert scenes.names == ("scene 2", "scene 3")
    assert torch.equal(scenes.points, bundle.train.columns["inputs"][2:])
    blind = scenes_of(bundle, bundle.train.unlabelled(), torch.tensor([3]))
    assert len(blind.boxes_of(0)[0]) == 0
    assert some_scenes(scenes, torch.tensor([1])).names == ("scene 3",)
