from __future__ import annotations

import pickle
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstill.core.errors import InputError
from fedstill.core.streams import Streams
from fedstill.data.clouds import normalise
from fedstill.shared_image.cloud_patches import CloudPatches, nearest, unit_size
from fedstill.shared_image.patches import PatchSettings, make_patches

CLOUD = np.random.default_rng(3).normal(size=(700, 3)).astype(np.float32)
STILL: Any = {"cloud_scale": (1.0, 1.0), "cloud_noise": 0.0}


def slow_patch(cloud: np.ndarray, points: int, chosen: PatchSettings) -> np.ndarray:
    """The first patch of a pool, from the plain sequences of its streams and with the library's functions."""
    u = Streams(chosen.seed).draw("cloud patches").random(8)
    centre, whole = int(u[0] * len(cloud)), len(cloud)
    size = int(np.exp(np.log(points) + u[1] * (np.log(whole + 1) - np.log(points))))
    v = Streams(chosen.seed).draw("cloud patch points").random(size + 12 * points)
    near = np.sort(np.argsort(np.linalg.norm(cloud - cloud[centre], axis=1), kind="stable")[:size])
    patch = normalise(cloud[near[np.argsort(v[:size])[:points]]].astype(np.float64))
    angle = (2 * u[2] - 1) * np.pi
    turn = np.array([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]])
    low, high = chosen.cloud_scale
    patch = patch @ turn.T * (low + u[3:6] * (high - low))
    bell = (v[size:].reshape(4, points, 3).sum(axis=0) - 2) / np.sqrt(4 / 12)
    return normalise(patch + chosen.cloud_noise * bell)


@pytest.mark.parametrize("seed", range(6))
def test_a_patch_is_a_point_and_its_nearest_turned_stretched_and_blurred(seed: int) -> None:
    chosen = PatchSettings(count=5, seed=seed)
    made = CloudPatches(CLOUD, (64, 3), chosen).batch(torch.tensor([0]))["inputs"][0].numpy()
    assert made == pytest.approx(slow_patch(CLOUD, 64, chosen), abs=1e-6)


def test_only_the_vertical_stays_where_it_is() -> None:
    whole = CloudPatches(CLOUD, (700, 3), PatchSettings(count=2, **STILL)).batch(torch.tensor([1]))["inputs"][0]
    plain = normalise(CLOUD.astype(np.float64))
    assert np.sort(whole[:, 2].numpy()) == pytest.approx(np.sort(plain[:, 2]), abs=1e-6)
    assert np.sort(whole.norm(dim=1).numpy()) == pytest.approx(np.sort(np.linalg.norm(plain, axis=1)), abs=1e-6)
    assert not np.allclose(np.sort(whole[:, 0].numpy()), np.sort(plain[:, 0]), atol=1e-2)


def test_sizes_are_log_uniform_and_middles_uniform() -> None:
    """The logarithm of the size, from ln 64 to ln 701, has the mean 5.36 and, of 4,000 draws, an error of 0.011."""
    pool = CloudPatches(CLOUD, (64, 3), PatchSettings(count=4000))
    centres, sizes = pool.places(torch.arange(4000))
    assert np.log(sizes).mean() == pytest.approx((np.log(64) + np.log(701)) / 2, abs=0.055)
    assert (min(sizes), max(sizes)) == (64, 700)
    assert len(set(centres)) > 650


def test_stretch_and_noise_are_as_large_as_asked() -> None:
    still = CloudPatches(CLOUD, (700, 3), PatchSettings(count=8, **STILL)).batch(torch.arange(8))["inputs"].double()
    noisy = CloudPatches(CLOUD, (700, 3), PatchSettings(count=8, cloud_scale=(1.0, 1.0), cloud_noise=0.02))
    moved = noisy.batch(torch.arange(8))["inputs"].double() - still
    assert moved.std().item() == pytest.approx(0.02, rel=0.1)
    wide = CloudPatches(CLOUD, (700, 3), PatchSettings(count=8, cloud_scale=(0.5, 2.0), cloud_noise=0.0))
    ratio = (wide.batch(torch.arange(8))["inputs"].double() / still).std(dim=1)
    assert ratio.max() < 1e-2, "each axis has one factor"


def fresh() -> CloudPatches:
    return CloudPatches(CLOUD, (50, 3), PatchSettings(count=400, seed=4))


POOL = fresh()


@cache
def every() -> torch.Tensor:
    return fresh().batch(torch.arange(400))["inputs"]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 399), max_size=12))
def test_a_patch_does_not_depend_on_the_others(rows: list[int]) -> None:
    wanted = torch.tensor(rows, dtype=torch.int64)
    assert torch.equal(fresh().batch(wanted)["inputs"], every()[wanted])
    assert torch.equal(POOL.batch(wanted)["inputs"], every()[wanted])


def test_it_is_a_data_set_of_clouds_as_all_are() -> None:
    batch = POOL.batch(torch.tensor([9, 2]))
    assert {name: column.dtype for name, column in batch.items()} == {
        "inputs": torch.float32,
        "sample_id": torch.int64,
    }
    assert every().norm(dim=2).amax(dim=1).sub(1).abs().max() < 1e-6
    assert every().mean(dim=1).abs().max() < 1e-6
    assert (len(POOL), POOL.labels(), POOL.unlabelled() is POOL) == (400, None, True)
    copy = pickle.loads(pickle.dumps(POOL))
    assert copy.fingerprint() == POOL.fingerprint()
    assert torch.equal(copy.batch(torch.tensor([7]))["inputs"], every()[7:8])


def test_fingerprints_tell_cloud_settings_and_points_apart() -> None:
    other = CLOUD.copy()
    other[0, 0] += 1e-3
    pools = [
        POOL,
        CloudPatches(other, (50, 3), POOL.settings),
        CloudPatches(CLOUD, (51, 3), POOL.settings),
        CloudPatches(CLOUD, (50, 3), PatchSettings(count=400, seed=5)),
    ]
    assert len({pool.fingerprint() for pool in pools}) == 4
    assert len({pool.source_digest for pool in pools}) == 2
    unused = POOL.settings.model_copy(update={"shear": 1.0})
    assert CloudPatches(CLOUD, (50, 3), unused).fingerprint() == POOL.fingerprint()


def test_nearest_points_are_those_of_a_full_sort() -> None:
    grid = np.stack(np.meshgrid(*[np.arange(5.0)] * 3, indexing="ij"), axis=-1).reshape(-1, 3)  # with many ties
    for centre in (0, 62, 124):
        order = np.argsort(((grid - grid[centre]) ** 2).sum(axis=1), kind="stable")
        for count in (1, 2, 5, 33, 125):
            assert nearest(grid, centre, count).tolist() == sorted(order[:count].tolist())


def test_unit_size_is_what_all_clouds_have() -> None:
    cloud = CLOUD.astype(np.float64) * 5 + 3
    assert unit_size(cloud) == pytest.approx(normalise(cloud.copy()), abs=1e-12)
    assert unit_size(np.ones((4, 3))).tolist() == np.zeros((4, 3)).tolist()


def test_the_built_in_head_and_what_cannot_be_used() -> None:
    pool = make_patches("heads:0", (256, 3), "cloud", PatchSettings(count=3))
    assert pool.batch(torch.arange(3))["inputs"].shape == (3, 256, 3)
    with pytest.raises(InputError, match="a cloud of 700 points is too small for patches of 701"):
        CloudPatches(CLOUD, (701, 3))
    with pytest.raises(InputError, match=r"samples of shape \(points, 3\), not \(3, 8, 8\)"):
        CloudPatches(CLOUD, (3, 8, 8))
    with pytest.raises(InputError, match="a cloud comes as finite numbers"):
        CloudPatches(np.full((10, 3), np.nan), (4, 3))
    with pytest.raises(InputError, match="there is no patch 3: the pool holds 3"):
        pool.batch(torch.tensor([3]))
