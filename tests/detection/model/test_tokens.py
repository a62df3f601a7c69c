"""Tokens of a scene: above the floor, and the same in the fast way and in plain torch."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import Tensor

from fedstill.detection.model.tokens import Tokens, above_the_floor, floor_height
from fedstill.models.pointnet2_levels import Ball


def tokens(floor: float = 0.1) -> Tokens:
    return Tokens(Ball(20, 0.6, 8), (8, 8, 16), floor, places=19)


def test_the_floor_is_where_hardly_any_point_is_lower() -> None:
    """Of 200 points the second lowest: one point in a hundred may be noise."""
    heights = torch.arange(200.0)
    cloud = torch.stack([heights, heights, heights.flip(0)], dim=1)
    assert floor_height(cloud.unsqueeze(0)).tolist() == [1.0]


def test_a_cloud_that_is_all_floor_is_kept() -> None:
    flat = torch.rand(2, 50, 3) * torch.tensor([1.0, 1.0, 0.05])
    assert torch.equal(above_the_floor(flat, 0.1), flat)


def test_no_token_lies_on_the_floor(rooms: Tensor) -> None:
    low = floor_height(rooms)[:, None]
    assert (rooms[..., 2] < low + 0.1).float().mean() > 0.1
    for fast in (True, False):
        module = tokens()
        module.fast = fast
        positions, _ = module(rooms)
        assert (positions[..., 2] > low + 0.1).all()
        assert all(len(one.unique(dim=0)) == 20 for one in positions)
    assert (tokens(floor=0.0)(rooms)[0][..., 2] < low + 0.1).any()


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_the_fast_way_gives_what_plain_torch_gives(training: bool, rooms: Tensor) -> None:
    quick = tokens()
    quick(rooms)
    plain = deepcopy(quick)
    plain.fast = False
    found = []
    for module in (quick.train(training), plain.train(training)):
        with torch.set_grad_enabled(training):
            positions, features = module(rooms)
        if training:
            features.square().sum().backward()
        found.append((positions, features, module))
    (here, one, _), (there, two, _) = found
    assert torch.equal(here, there)
    torch.testing.assert_close(one, two, rtol=0, atol=1e-4)
    if training:
        for ours, theirs in zip(quick.level.layers(), plain.level.layers(), strict=True):
            torch.testing.assert_close(ours[0].weight.grad, theirs[0].weight.grad, rtol=1e-3, atol=1e-3)
            torch.testing.assert_close(ours[1].running_var, theirs[1].running_var)


def test_a_cloud_with_fewer_places_than_tokens_repeats_them() -> None:
    few = torch.rand(2, 6, 3).repeat(1, 5, 1)
    positions, features = tokens(floor=0.0)(few)
    assert positions.shape == (2, 20, 3)
    assert torch.equal(positions[0, 6:], positions[0, :1].expand(14, -1))
    assert torch.equal(features[0, 6:], features[0, :1].expand(14, -1))
