"""Heights of points: an independent computation, and what they do not depend on."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedstill.core.errors import InputError
from fedstill.detection.point_features import columns_with, features_of, heights, with_height


def test_the_floor_is_interpolated_between_the_lowest_points() -> None:
    """Of 201 points the floor is at place 0.0099 * 200 = 1.98 of the sorted heights, counted from 0."""
    z = np.random.default_rng(0).normal(size=201).astype(np.float32)
    low, high = np.sort(z.astype(np.float64))[1:3]
    found = heights(np.stack([z, z, z], axis=1)[None])
    assert found.shape == (1, 201, 1)
    assert found[0, :, 0] == pytest.approx(z - (low + 0.98 * (high - low)), abs=1e-6)


def test_each_scene_has_a_floor_of_its_own_wherever_it_lies() -> None:
    clouds = torch.rand(2, 100, 6)
    moved = clouds + torch.tensor([[[0.0] * 6], [[5.0, 7.0, 3.0, 0, 0, 0]]])
    one, two = with_height(clouds), with_height(moved)
    assert torch.equal(one[..., :6], clouds)
    torch.testing.assert_close(one[..., 6], two[..., 6], rtol=0, atol=1e-6)
    assert torch.equal(one[0], two[0])
    assert with_height(clouds[:0]).shape == (0, 100, 7)


def test_columns_name_their_features_and_no_others() -> None:
    for features in ((), ("height",), ("colour",), ("colour", "height")):
        assert features_of(columns_with(features)) == features
    with pytest.raises(InputError, match="not 5"):
        features_of(5)
