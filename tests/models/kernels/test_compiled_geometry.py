"""The geometry without repetition says exactly what the padded one says."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedstill.core.errors import InputError
from fedstill.models.kernels import ball_query, farthest_points, group
from fedstill.models.kernels.compact import Geometry, Rows, compact_geometry
from fedstill.models.pointnet2_levels import Ball


@st.composite
def clouds(draw: st.DrawFn) -> Tensor:
    """Dropped points as copies of point 0, all of them if need be; sometimes ties and other copies, too."""
    batch, count = draw(st.integers(1, 3)), draw(st.integers(1, 90))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    points = torch.rand(batch, count, 3, generator=generator) * 2 - 1
    if draw(st.booleans()):
        points = (points * 3).round() / 3
    dropped = torch.rand(batch, count, generator=generator) < draw(st.sampled_from([0.0, 0.3, 0.9, 1.0]))
    return torch.where(dropped.unsqueeze(-1), points[:, :1], points)


balls = st.builds(Ball, st.integers(1, 40), st.floats(0.05, 1.5), st.integers(1, 24))


def groups_of(rows: Rows) -> list[list[tuple[int, tuple[float, ...], float]]]:
    """Each group as (source, offset, weight) of its rows."""
    listed = list(zip(rows.source.tolist(), map(tuple, rows.offset.tolist()), rows.weight.tolist(), strict=True))
    return [listed[a:b] for a, b in zip(rows.starts, rows.starts[1:], strict=False)]


def padded(points: Tensor, centres: Tensor, ball: Ball) -> list[list[list[tuple[float, ...]]]]:
    """Offsets of all neighbours of all centres of all clouds, padding and copies included."""
    index = ball_query(points, centres, ball.radius, ball.neighbours)
    offsets: list[list[list[list[float]]]] = (group(points, index) - centres.unsqueeze(2)).tolist()
    return [[[tuple(row) for row in one] for one in cloud] for cloud in offsets]


@settings(max_examples=80, deadline=None, database=None)
@given(clouds(), balls, balls)
def test_rows_and_weights_are_those_of_the_padded_form(points: Tensor, first: Ball, second: Ball) -> None:
    second = Ball(min(first.centres, second.centres), second.radius, second.neighbours)
    geometry = compact_geometry(points, first, second)
    chosen = farthest_points(points, first.centres)
    centres1 = group(points, chosen.unsqueeze(1)).squeeze(1)
    centres2 = centres1[:, : second.centres]
    taken = [max(1, int((row != 0).sum()) + 1) for row in chosen]
    check_level(geometry.level1, padded(points, centres1, first), taken)
    check_level(geometry.level2, padded(centres1, centres2, second), [min(t, second.centres) for t in taken])
    check_level(geometry.level3, [[[tuple(p) for p in cloud]] for cloud in centres2.tolist()], [1] * len(points))
    for rows, sizes in ((geometry.level1, None), (geometry.level2, taken)):
        assert sizes is None or rows.sources == sum(sizes)
        assert (np.diff(rows.starts) > 0).all()
    assert geometry.level1.total == len(points) * first.centres * first.neighbours
    assert geometry.level2.total == len(points) * second.centres * second.neighbours
    assert geometry.level3.total == len(points) * second.centres


def check_level(rows: Rows, expected: list[list[list[tuple[float, ...]]]], taken: list[int]) -> None:
    """Group by group: distinct centres one by one, those that return to point 0 as weight of the first."""
    found = iter(groups_of(rows))
    for cloud, distinct in zip(expected, taken, strict=True):
        for number in range(distinct):
            times = 1 + len(cloud) - distinct if number == 0 else 1
            counted = Counter({row: times * count for row, count in Counter(cloud[number]).items()})
            mine: Counter[tuple[float, ...]] = Counter()
            for _, offset, weight in next(found):
                mine[offset] += int(weight)
            assert mine == counted
    assert next(found, None) is None


def test_sources_name_the_points_below() -> None:
    points = torch.rand(3, 50, 3)
    points[:, 20:35] = points[:, :1]
    geometry = compact_geometry(points, Ball(16, 0.4, 8), Ball(5, 0.6, 8))
    chosen = farthest_points(points, 16)
    centres = group(points, chosen.unsqueeze(1)).squeeze(1).flatten(0, 1)
    flat = points.flatten(0, 1)
    for number, one in enumerate(groups_of(geometry.level1)):
        for source, offset, _ in one:
            assert (flat[source] - centres[number]).tolist() == list(offset)
    for number, one in enumerate(groups_of(geometry.level2)):
        centre = centres[number // 5 * 16 + number % 5]
        for source, offset, _ in one:
            assert (centres[source] - centre).tolist() == list(offset)
    assert geometry.level3.source.tolist() == list(range(15))


def same(one: Geometry, other: Geometry) -> bool:
    return all(
        np.array_equal(getattr(a, name), getattr(b, name))
        for a, b in zip(vars(one).values(), vars(other).values(), strict=True)
        for name in ("source", "offset", "weight", "starts")
    )


def test_geometry_is_the_same_every_time_and_for_every_layout() -> None:
    points = torch.rand(3, 2, 64).permute(1, 2, 0)
    first, second = Ball(20, 0.3, 8), Ball(6, 0.5, 8)
    geometry = compact_geometry(points, first, second)
    compact_geometry(torch.rand(4, 300, 3), Ball(100, 0.3, 30), second)
    assert same(geometry, compact_geometry(points.contiguous(), first, second))


def test_pieces_cover_all_rows_at_group_borders() -> None:
    rows = compact_geometry(torch.rand(4, 200, 3), Ball(64, 0.3, 16), Ball(8, 0.5, 8)).level1
    pieces = rows.pieces(2**12)
    assert len(pieces) > 4
    assert [piece.groups.start for piece in pieces[1:]] == [piece.groups.stop for piece in pieces[:-1]]
    assert [piece.rows.start for piece in pieces[1:]] == [piece.rows.stop for piece in pieces[:-1]]
    assert (pieces[0].rows.start, pieces[-1].rows.stop) == (0, len(rows))
    assert (pieces[0].groups.start, pieces[-1].groups.stop) == (0, rows.groups)


def test_bad_clouds_are_refused() -> None:
    points = torch.rand(2, 9, 3)
    points[1, 3, 0] = torch.inf
    with pytest.raises(InputError, match="cloud 1 of the batch"):
        compact_geometry(points, Ball(4, 0.3, 4), Ball(2, 0.5, 4))
