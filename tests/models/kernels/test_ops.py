"""Sampling, neighbourhoods and grouping: what they promise, on clouds that hypothesis makes as awkward as it can."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedstill.core.errors import InputError
from fedstill.models.kernels import ball_query, farthest_points, group, plain
from fedstill.models.kernels.ops import squared

QUICK = settings(max_examples=60, deadline=None, database=None)


@st.composite
def clouds(draw: st.DrawFn) -> Tensor:
    """Random clouds with copies of point 0, as dropout makes them, other copies, grids full of ties, and lines."""
    batch, count = draw(st.integers(1, 3)), draw(st.integers(1, 40))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    points = torch.rand(batch, count, 3, generator=generator) * 2 - 1
    if draw(st.booleans()):
        points = (points * 3).round() / 3
    if draw(st.booleans()):
        points[:, :, 1:] = 0
    if draw(st.booleans()):
        dropped = torch.rand(batch, count, generator=generator) < draw(st.floats(0, 1))
        points = torch.where(dropped.unsqueeze(-1), points[:, :1], points)
    return points.to(draw(st.sampled_from([torch.float32, torch.float64])))


@QUICK
@given(clouds(), st.integers(1, 50))
def test_sampling_takes_the_farthest_point_every_time(points: Tensor, samples: int) -> None:
    chosen = farthest_points(points, samples)
    assert chosen.shape == (len(points), samples)
    assert chosen.dtype == torch.int64
    assert 0 <= int(chosen.min()) <= int(chosen.max()) < points.shape[1]
    assert torch.equal(chosen[:, 0], torch.zeros(len(points), dtype=torch.int64))
    for cloud, indices in zip(points, chosen, strict=True):
        apart = plain.squared_distances(cloud[None], cloud[None])[0]
        for number in range(1, samples):
            to_sample = apart[indices[:number]].amin(0)
            assert int(indices[number]) == int((to_sample == to_sample.max()).nonzero()[0]), "lowest of the farthest"


@QUICK
@given(clouds(), st.integers(1, 50))
def test_sampling_equals_the_plain_computation_and_itself(points: Tensor, samples: int) -> None:
    chosen = farthest_points(points, samples)
    assert torch.equal(chosen, plain.farthest_points(points, samples))
    assert torch.equal(chosen, farthest_points(points, samples))


@QUICK
@given(clouds(), st.integers(1, 50), st.integers(1, 50))
def test_sampling_is_nested(points: Tensor, one: int, other: int) -> None:
    few, many = sorted((one, other))
    chosen = farthest_points(points, many)
    assert torch.equal(farthest_points(points, few), chosen[:, :few])
    sampled = group(points, chosen.unsqueeze(1)).squeeze(1)
    again = farthest_points(sampled, few)
    assert torch.equal(group(sampled, again.unsqueeze(1)).squeeze(1), sampled[:, :few]), "how the first begins"


@pytest.mark.parametrize("samples", [1, 3, 4, 9])
def test_a_cloud_with_fewer_locations_than_samples_repeats_its_first_point(samples: int) -> None:
    points = torch.tensor([[[0.0, 0, 0], [4, 0, 0], [0, 0, 0], [4, 0, 0], [1, 0, 0]]])
    assert farthest_points(points, samples).tolist() == [[0, 1, 4, 0, 0, 0, 0, 0, 0][:samples]]


@QUICK
@given(clouds(), st.integers(1, 12), st.floats(0.0, 2.0), st.integers(1, 50))
def test_balls_hold_the_lowest_indices_and_repeat_the_first(
    points: Tensor, samples: int, radius: float, neighbours: int
) -> None:
    centres = group(points, farthest_points(points, samples).unsqueeze(1)).squeeze(1)
    found = ball_query(points, centres, radius, neighbours)
    assert torch.equal(found, plain.ball_query(points, centres, squared(radius, points.dtype), neighbours))
    assert torch.equal(found, ball_query(points, centres, radius, neighbours))
    inside = plain.squared_distances(points, centres) <= squared(radius, points.dtype)
    for cloud, balls in zip(inside, found, strict=True):
        for ball, indices in zip(cloud, balls, strict=True):
            members = ball.nonzero().flatten()[:neighbours].tolist()
            assert indices.tolist() == members + members[:1] * (neighbours - len(members))


@QUICK
@given(clouds(), st.floats(0.0, 0.5), st.integers(1, 9))
def test_an_empty_ball_stands_for_the_nearest_point(points: Tensor, radius: float, neighbours: int) -> None:
    centres = points[:, :1] + torch.tensor([7.0, 0, 0], dtype=points.dtype)
    found = ball_query(points, centres, radius, neighbours)
    assert torch.equal(found, plain.ball_query(points, centres, squared(radius, points.dtype), neighbours))
    nearest = plain.squared_distances(points, centres).argmin(-1, keepdim=True)
    assert torch.equal(found, nearest.expand_as(found))


def test_a_point_on_the_sphere_is_in_the_ball() -> None:
    points = torch.tensor([[[0.0, 0, 0], [0.5, 0, 0], [0.5000001, 0, 0]]])
    assert ball_query(points, points[:, :1], 0.5, 3).tolist() == [[[0, 1, 0]]]


def test_grouping_copies_rows_and_adds_gradients_up() -> None:
    features = torch.randn(2, 7, 3, dtype=torch.float64, requires_grad=True)
    index = torch.randint(0, 7, (2, 4, 5))
    grouped = group(features, index)
    assert torch.equal(grouped, plain.group(features, index))
    assert torch.equal(grouped[1, 2, 3], features[1, index[1, 2, 3]])
    assert torch.autograd.gradcheck(lambda x: group(x, index), (features,))


def test_the_operators_are_what_torch_expects_of_operators() -> None:
    points, features = torch.rand(2, 9, 3), torch.rand(2, 9, 4, requires_grad=True)
    index = torch.randint(0, 9, (2, 3, 5))
    ops = torch.ops.fedstill
    for operator, arguments in [
        (ops.farthest_points.default, (points, 4)),
        (ops.ball_query.default, (points, points[:, :3].contiguous(), 0.25, 6)),
        (ops.group.default, (features, index)),
        (ops.ungroup.default, (torch.rand(2, 3, 5, 4), index, 9)),
    ]:
        tests = ("test_schema", "test_faketensor", "test_autograd_registration")
        torch.library.opcheck(operator, arguments, test_utils=tests)


def test_views_that_are_not_contiguous_give_the_same() -> None:
    points = torch.rand(3, 2, 30).permute(1, 2, 0)
    copy = points.contiguous()
    assert torch.equal(farthest_points(points, 9), farthest_points(copy, 9))
    assert torch.equal(ball_query(points, points, 0.4, 5), ball_query(copy, copy, 0.4, 5))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_coordinates_that_are_no_numbers_are_refused(bad: float) -> None:
    points = torch.rand(3, 8, 3)
    points[1, 4, 2] = bad
    with pytest.raises(InputError, match="cloud 1 of the batch holds NaN or infinity"):
        farthest_points(points, 4)
    with pytest.raises(InputError, match="cloud 1 of the batch"):
        ball_query(points, torch.rand(3, 2, 3), 0.2, 4)


def test_what_is_no_cloud_is_one_sentence() -> None:
    with pytest.raises(InputError, match="at least one point"):
        farthest_points(torch.rand(2, 0, 3), 4)
    with pytest.raises(InputError, match=r"\(batch, points, 3\), not \(5, 3\)"):
        farthest_points(torch.rand(5, 3), 4)
    with pytest.raises(InputError, match="at least one point, not 0"):
        farthest_points(torch.rand(2, 5, 3), 0)
    with pytest.raises(InputError, match="at least one neighbour"):
        ball_query(torch.rand(2, 5, 3), torch.rand(2, 5, 3), 0.2, 0)
    with pytest.raises(InputError, match="agree in precision and number"):
        ball_query(torch.rand(2, 5, 3), torch.rand(1, 5, 3), 0.2, 2)
    with pytest.raises(InputError, match=r"0\.\.4"):
        group(torch.rand(1, 5, 2), torch.tensor([[[5]]]))
