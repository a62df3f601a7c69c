"""Tokens of a scene: above the floor, and the same in the fast way and in plain torch."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import Tensor

from fedstill.core.errors import InputError
from fedstill.detection.model.tokens import Tokens, above_the_floor, downsample, floor_height
from fedstill.models.kernels import farthest_points, rows_at
from fedstill.models.pointnet2_levels import Ball, SetAbstraction


def tokens(floor: float = 0.1, channels: int = 0) -> Tokens:
    return Tokens(Ball(20, 0.6, 8), (8, 8, 16), floor, places=19, channels=channels)


def featured(rooms: Tensor, channels: int) -> Tensor:
    """Rooms with features that differ from point to point."""
    return torch.cat(
        [rooms, torch.rand(*rooms.shape[:2], channels, generator=torch.Generator().manual_seed(0))], dim=-1
    )


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


@pytest.mark.parametrize("channels", [0, 1, 4])
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_the_fast_way_gives_what_plain_torch_gives(training: bool, channels: int, rooms: Tensor) -> None:
    rooms = featured(rooms, channels) if channels else rooms
    quick = tokens(channels=channels)
    quick(rooms)
    assert quick.places(rooms, compact=True).rows is not None
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


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_points_at_one_place_with_other_features_are_not_merged(training: bool) -> None:
    """The maximum over a neighbourhood contains the features of every point in it, whichever comes first."""
    cloud = torch.rand(1, 60, 3)
    cloud[:, 40:] = cloud[:, :1]
    equal, different = torch.zeros(1, 60, 1), torch.zeros(1, 60, 1)
    different[:, 50] = 5.0
    module = tokens(floor=0.0, channels=1).train(training)
    assert module.places(torch.cat([cloud, equal], dim=-1), compact=True).rows is not None
    assert module.places(torch.cat([cloud, different], dim=-1), compact=True).rows is None
    plain = deepcopy(module)
    plain.fast = False
    for features in (equal, different):
        points = torch.cat([cloud, features], dim=-1)
        with torch.set_grad_enabled(training):
            torch.testing.assert_close(module(points)[1], plain(points)[1], rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", ["training", "evaluation", "behind prompts that are trained"])
def test_downsampled_tokens_are_those_of_plain_torch(kind: str, rooms: Tensor) -> None:
    """Values, gradients of weights and of features, and statistics; most balls have fewer members than they may."""
    training, learns = kind == "training", kind != "evaluation"
    positions = rooms[:, :60].contiguous()
    features = torch.randn(*positions.shape[:2], 16, generator=torch.Generator().manual_seed(1))
    level = SetAbstraction(Ball(20, 0.5, 8), 16, (16, 16, 16), unit=0.5).train()
    level(positions, positions[:, :20], features)  # statistics that are not the initial ones
    level.train(training).requires_grad_(training)
    other = deepcopy(level)
    places = rows_at(positions, farthest_points(positions, 20))
    with torch.set_grad_enabled(learns):
        ours, theirs = (features.clone().requires_grad_(learns) for _ in range(2))
        here, found = downsample(level, positions, ours)
        expected = other(positions, places, theirs)
    assert torch.equal(here, places)
    assert found.requires_grad == learns
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    if learns:
        for outputs in (found, expected):
            (outputs * torch.linspace(-1, 1, 16)).square().sum().backward()
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-3)
    if training:
        for mine, plain in zip(level.layers(), other.layers(), strict=True):
            torch.testing.assert_close(mine[0].weight.grad, plain[0].weight.grad, rtol=1e-3, atol=1e-3)
            torch.testing.assert_close(mine[1].running_var, plain[1].running_var)


def test_features_change_what_tokens_say_and_not_where_they_are(rooms: Tensor) -> None:
    module = tokens(channels=2).eval()
    one, two = featured(rooms, 2), featured(rooms, 2)
    two[..., 3:] = two[..., 3:].flip(1)
    (here, first), (there, second) = module(one), module(two)
    assert torch.equal(here, there)
    assert torch.equal(here, tokens().eval()(rooms)[0])
    assert (first != second).any(dim=-1).float().mean() > 0.9


def test_points_above_the_floor_keep_their_own_features(rooms: Tensor) -> None:
    marked = torch.cat([rooms, rooms * 2], dim=-1)
    kept = above_the_floor(marked, 0.1)
    assert torch.equal(kept[..., :3], above_the_floor(rooms, 0.1))
    assert torch.equal(kept[..., 3:], kept[..., :3] * 2)


@pytest.mark.parametrize("fast", [True, False])
def test_points_with_other_features_than_it_reads_are_refused(fast: bool, rooms: Tensor) -> None:
    for channels, columns, sentence in (
        (4, 3, "reads coordinates and colour and height of points, and these have coordinates: set detection.features"),
        (0, 4, "reads coordinates of points, and these have coordinates and height"),
    ):
        module = tokens(channels=channels)
        module.fast = fast
        with pytest.raises(InputError, match=sentence):
            module(featured(rooms, columns - 3))
