from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedstill.core.dataset import ArrayDataset, Subset, column
from fedstill.core.errors import InputError
from fedstill.data.bundle import Bundle, Source
from fedstill.data.clouds import DrawnPoints, drawn_points, normalise
from fedstill.data.digits import digits
from fedstill.data.single_input import read_input


def bundle(points: int = 12, size: int = 300) -> Bundle:
    values = np.random.default_rng(3).normal(5, 4, size=(size, points, 3)).astype(np.float32)
    data = ArrayDataset(inputs=torch.from_numpy(normalise(values)), labels=torch.arange(size) % 2)
    return Bundle("toy", data, Subset(data, torch.arange(9)), ("a", "b"), "cloud", (points, 3), validation=data)


def test_normalising_by_hand() -> None:
    """Mean (2, 0, 1); the farthest point is (3, 0, 4) from it, at distance 5."""
    cloud = np.array([[5.0, 0, 5], [0, 1, 0], [1, -1, -2]], dtype=np.float32)
    expected = np.array([[3, 0, 4], [-2, 1, -1], [-1, -1, -3]]) / 5
    assert np.allclose(normalise(cloud), expected)
    assert np.allclose(cloud, expected)  # in place


def test_every_cloud_is_normalised_by_itself() -> None:
    clouds = np.random.default_rng(0).normal(9, 3, size=(600, 20, 3)).astype(np.float32)  # more than are done at once
    alone = np.stack([normalise(cloud.copy()) for cloud in clouds])
    assert np.array_equal(normalise(clouds), alone)
    assert np.abs(alone.mean(axis=1)).max() < 1e-6
    assert np.linalg.norm(alone, axis=2).max(axis=1) == pytest.approx(1, abs=1e-6)


def test_a_cloud_without_size_or_with_gaps_does_not_spread() -> None:
    clouds = np.random.default_rng(0).normal(size=(3, 5, 3))
    clouds[0], clouds[1, 2, 0] = 4.0, np.inf
    out = normalise(clouds)
    assert not out[0].any()
    assert not np.isfinite(out[1]).all()
    assert np.isfinite(out[2]).all()


def test_the_first_points_are_a_data_set_of_their_own() -> None:
    whole = bundle()
    few = whole.with_points(5)
    assert few.shape == (5, 3)
    assert len({whole.fingerprint(), few.fingerprint(), whole.with_points(6).fingerprint()}) == 3
    for split in ("train", "validation", "test"):
        data = few.splits()[split]
        rows = torch.arange(len(data))
        cut = whole.splits()[split].batch(rows)["inputs"][:, :5].numpy().copy()
        assert np.array_equal(data.batch(rows)["inputs"].numpy(), normalise(cut))
        assert torch.equal(data.labels(), whole.splits()[split].labels())
        assert "labels" not in data.unlabelled().batch(rows[:2])
    assert isinstance(few.train, ArrayDataset)
    assert few.train.columns["inputs"].untyped_storage().nbytes() == 300 * 5 * 3 * 4  # nothing more is held
    assert whole.train.columns["inputs"].shape == (300, 12, 3)


def test_the_first_points_do_not_depend_on_how_many_there_were() -> None:
    whole = bundle()
    direct, by_way = (
        data.train.columns["inputs"] for data in (whole.with_points(4), whole.with_points(8).with_points(4))
    )
    assert torch.allclose(direct, by_way, atol=1e-6)
    assert whole.with_points(12) is whole
    assert whole.with_points(4) is whole.with_points(4)


def test_what_cannot_be_taken_is_said() -> None:
    with pytest.raises(InputError, match="toy holds clouds of 12 points: 1,024 cannot be taken of each"):
        bundle().with_points(1024)
    with pytest.raises(InputError, match="0 cannot be taken"):
        bundle().with_points(0)
    with pytest.raises(InputError, match="digits holds images"):
        digits(Source("digits", Path())).with_points(5)


def test_one_cloud_for_a_prediction(tmp_path: Path) -> None:
    cloud = np.random.default_rng(0).normal(7, 2, size=(30, 3))
    np.save(tmp_path / "one.npy", cloud)
    read = read_input(tmp_path / "one.npy", (20, 3))
    assert read.shape == (20, 3)
    assert read.norm(dim=1).max().item() == pytest.approx(1, abs=1e-6)
    repeats = read_input(tmp_path / "one.npy", (64, 3))
    assert repeats.shape == (64, 3)
    assert len(repeats.unique(dim=0)) == 30
    with pytest.raises(InputError, match=r"one.npy holds 30 points: this model needs 256"):
        read_input(tmp_path / "one.npy", (256, 3))
    (tmp_path / "one.doc").write_text("")
    with pytest.raises(InputError, match=r"one.doc: this model reads clouds of 64 points, given as .ply"):
        read_input(tmp_path / "one.doc", (64, 3))


def test_points_in_an_order_are_drawn_and_not_the_first_ones() -> None:
    """Clouds sorted by height: their first half is the lower half."""
    draw = np.random.default_rng(0)
    clouds = torch.from_numpy(draw.random((12, 200, 3)).astype(np.float32))
    by_height = clouds.gather(1, clouds[..., 2:].argsort(dim=1).expand(-1, -1, 3))
    labels = torch.arange(12) % 2

    def boxes(inputs: torch.Tensor) -> Bundle:
        data = ArrayDataset(inputs=torch.from_numpy(normalise(inputs.numpy().copy())), labels=labels)
        return Bundle("boxes", data, data, ("a", "b"), "cloud", (200, 3))

    shuffled, ordered = (boxes(inputs).with_points(50) for inputs in (clouds, by_height))
    firsts = torch.from_numpy(normalise(clouds[:, :50].numpy().copy()))
    assert torch.allclose(column(shuffled.train, "inputs"), firsts, atol=1e-6)
    assert not shuffled.notes
    heights = column(ordered.train, "inputs")[..., 2]
    lowest = torch.from_numpy(normalise(by_height[:, :50].numpy().copy()))[..., 2]
    spread = column(boxes(by_height).train, "inputs")[..., 2].std()
    assert heights.std() > 0.8 * spread
    assert lowest.std() < 0.6 * spread
    assert "drawn at random" in ordered.notes[0]
    again = boxes(by_height).with_points(50)
    assert again.fingerprint() == ordered.fingerprint()


def test_labels_of_points_are_drawn_with_them_also_from_data_that_is_not_in_memory() -> None:
    heights = torch.linspace(0, 1, 64).repeat(4, 1)
    clouds = torch.stack([heights, torch.rand(4, 64), torch.rand(4, 64)], dim=2)
    data = ArrayDataset(inputs=clouds, labels=(heights * 10).long(), category=torch.zeros(4, dtype=torch.int64))
    held = drawn_points(data, 16)
    lazy = drawn_points(Subset(data, torch.arange(4)), 16)
    assert isinstance(lazy, DrawnPoints)
    for one in (held, lazy):
        batch = one.batch(torch.arange(4))
        assert batch["inputs"].shape == (4, 16, 3)
        order = batch["inputs"][..., 0].argsort(dim=1)
        assert (batch["labels"].gather(1, order).diff(dim=1) >= 0).all()
        assert torch.equal(one.labels(), batch["labels"])
    assert torch.equal(held.batch(torch.arange(4))["inputs"], lazy.batch(torch.arange(4))["inputs"])


def test_more_points_than_there_are_repeat_some_drawn_for_each_cloud() -> None:
    clouds = torch.rand(3, 10, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(10).repeat(3, 1)
    data = ArrayDataset(inputs=clouds, labels=labels)
    more = drawn_points(data, 25)
    counts = torch.stack([torch.bincount(row, minlength=10) for row in more.batch(torch.arange(3))["labels"]])
    assert counts.sum(dim=1).tolist() == [25] * 3
    assert sorted(counts.unique().tolist()) == [2, 3]
    assert len(counts.unique(dim=0)) > 1
    toy = Bundle("toy", train=data, test=data, classes=("a", "b"), kind="cloud", shape=(10, 3))
    larger = toy.with_points(80)
    assert larger.shape == (80, 3)
    assert "clouds hold 10 points: some of each, drawn at random, are repeated to make 80" in larger.notes
    # Each point eight times has the same mean: the normalised cloud has the places of the stored one.
    places = torch.from_numpy(normalise(clouds[0].numpy().copy()))
    apart = larger.train.batch(torch.tensor([0]))["inputs"][0].unsqueeze(1) - places
    assert apart.abs().amax(dim=2).amin(dim=1).max() < 1e-5
    with pytest.raises(InputError, match="choose from 1 to 80"):
        toy.with_points(81)
