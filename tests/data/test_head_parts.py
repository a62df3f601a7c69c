"""The built-in heads with a part for every point."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedstill.data import head_parts, heads
from fedstill.data.catalogue import check, load
from fedstill.data.head_parts import PARTS, make_head_parts, part_of
from fedstill.data.point_labels import kind_names


@pytest.fixture(scope="module")
def some_heads() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return make_head_parts(per_class=3)


def test_clouds_are_those_of_heads(some_heads: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    clouds, labels, kinds = some_heads
    theirs, classes = heads.make_heads(per_class=3)
    assert np.array_equal(clouds, theirs)
    assert np.array_equal(kinds, classes)
    assert labels.shape == clouds.shape[:2]


def test_every_head_has_every_part_in_its_place(some_heads: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    clouds, labels, _ = some_heads
    for cloud, marks in zip(clouds, labels, strict=True):
        middle = {name: cloud[marks == number].mean(axis=0) for number, name in enumerate(PARTS)}
        share = {name: float((marks == number).mean()) for number, name in enumerate(PARTS)}
        assert min(share.values()) > 0.008
        assert max(share, key=lambda name: share[name]) == "cranium"
        assert middle["cranium"][2] > middle["forehead"][2] > middle["face"][2]  # up
        assert middle["nose"][1] > middle["face"][1] > middle["nape"][1] > middle["occiput"][1]  # to the front
        assert abs(middle["nose"][0]) < 0.2
        ears = cloud[marks == PARTS.index("ears")]
        assert ears[:, 0].min() < -0.4 < 0.4 < ears[:, 0].max()  # one on each side
        assert middle["nape"][2] < middle["occiput"][2]


def test_parts_are_symmetric_and_follow_the_bumps_of_the_generator() -> None:
    directions = heads.draw_directions(np.random.default_rng(0), 4096)
    assert np.array_equal(part_of(directions), part_of(directions * [-1, 1, 1]))
    for bump, name in ((head_parts.NOSE, "nose"), (head_parts.EARS, "ears")):
        assert bump[1] == max(height for centre, height, _ in heads.FEATURES if (centre[0] == 0) == (name == "nose"))
        assert PARTS[part_of(np.array([bump[0]]))[0]] == name
    assert (np.array(head_parts.NOSE[0]) * [0, 1, 0]).sum() > 0.8  # the nose is in front, the ears at the sides
    assert head_parts.EARS[0][0] > 0.9


def test_the_built_in_set() -> None:
    bundle = load("head-parts")
    assert bundle.classes == PARTS
    assert (bundle.kind, bundle.shape, len(bundle.train), len(bundle.test)) == ("cloud", (2048, 3), 128, 32)
    labels = bundle.train.labels()
    assert labels is not None
    assert (labels.shape, labels.dtype) == ((128, 2048), torch.int64)
    assert torch.bincount(bundle.test.batch(torch.arange(32))["category"]).tolist() == [8, 8, 8, 8]
    assert bundle.fingerprint() == load("head-parts").fingerprint()
    assert kind_names(bundle) == kind_names(bundle.with_points(64)) == heads.CLASSES
    report = check("head-parts")
    assert report.ok
    assert (report.counted, check("digits").counted) == ("points", "samples")
    assert report.fingerprint == bundle.fingerprint()
    assert sum(report.counts["train"]) == 128 * 2048
