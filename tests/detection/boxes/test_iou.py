"""IoU and gIoU: by hand, against a grid of points, polygon clipping and scipy's hull, and what never changes."""

from __future__ import annotations

from math import pi, sqrt
from typing import Any

import numpy as np
import pytest
import torch
from scipy.spatial import ConvexHull
from torch import Tensor

from fedstill.detection.boxes import footprints, generalised_iou, iou, pairwise_generalised_iou, pairwise_iou, volumes
from fedstill.detection.boxes.hull import hull_area
from fedstill.detection.boxes.overlap import footprint_overlap

TOLERANCE = {torch.float32: 5e-6, torch.float64: 1e-12}
PRECISIONS = pytest.mark.parametrize("dtype", list(TOLERANCE), ids=["single", "double"])
QUARTER, EIGHTH = pi / 2, pi / 4


def sampled_iou(one: list[float], two: list[float], steps: int = 56) -> float:
    """Points of a grid around both, counted."""

    def inside(box: list[float]) -> Any:
        x, y = grid[0] - box[0], grid[1] - box[1]
        ahead, left = np.array([np.cos(box[6]), np.sin(box[6])]), np.array([-np.sin(box[6]), np.cos(box[6])])
        flat = (abs(x * ahead[0] + y * ahead[1]) < box[3] / 2) & (abs(x * left[0] + y * left[1]) < box[4] / 2)
        return flat & (abs(grid[2] - box[2]) < box[5] / 2)

    reach = [np.hypot(box[3], box[4]) / 2 for box in (one, two)]
    low = [min(box[axis] - r for box, r in zip((one, two), reach, strict=True)) for axis in (0, 1)]
    high = [max(box[axis] + r for box, r in zip((one, two), reach, strict=True)) for axis in (0, 1)]
    low.append(min(box[2] - box[5] / 2 for box in (one, two)))
    high.append(max(box[2] + box[5] / 2 for box in (one, two)))
    grid = np.meshgrid(*[(np.arange(steps) + 0.5) / steps * (b - a) + a for a, b in zip(low, high, strict=True)])
    first, second = inside(one), inside(two)
    return float((first & second).sum() / (first | second).sum())


def clipped_area(one: list[list[float]], two: list[list[float]]) -> float:
    """One polygon cut by each edge of another in turn (Sutherland and Hodgman)."""
    kept = [tuple(corner) for corner in one]
    for (ax, ay), (bx, by) in zip(two, two[1:] + two[:1], strict=True):

        def side(v: Any, ax: float = ax, ay: float = ay, bx: float = bx, by: float = by) -> float:
            return (bx - ax) * (v[1] - ay) - (by - ay) * (v[0] - ax)

        before, kept = kept, []
        for u, v in zip(before, before[1:] + before[:1], strict=True):
            if side(u) >= 0:
                kept.append(u)
            if (side(u) >= 0) != (side(v) >= 0):
                share = side(u) / (side(u) - side(v))
                kept.append((u[0] + share * (v[0] - u[0]), u[1] + share * (v[1] - u[1])))
    return sum(u[0] * v[1] - u[1] * v[0] for u, v in zip(kept, kept[1:] + kept[:1], strict=True)) / 2


def test_against_a_grid_of_points(draw: Any) -> None:
    first, second = draw(24, 10, spread=0.5), draw(24, 11, spread=0.5)
    first[:6, 6] = second[:6, 6] = 0
    exact = iou(first, second).tolist()
    sampled = [sampled_iou(one, two) for one, two in zip(first.tolist(), second.tolist(), strict=True)]
    assert exact == pytest.approx(sampled, abs=0.015)
    assert max(exact) > 0.3


def test_areas_against_clipping_and_hulls(draw: Any) -> None:
    first, second = draw(400, 12), draw(400, 13)
    corners = list(zip(footprints(first).tolist(), footprints(second).tolist(), strict=True))
    clipped = [clipped_area(one, two) for one, two in corners]
    assert footprint_overlap(first, second).tolist() == pytest.approx(clipped, abs=1e-13)
    assert 0.2 < np.mean(np.array(clipped) == 0) < 0.8
    hulls = [ConvexHull(np.array(one + two)).volume for one, two in corners]
    assert hull_area(first, second).tolist() == pytest.approx(hulls, rel=1e-13)
    assert torch.allclose(
        footprint_overlap(first.float(), second.float()).double(), Tensor(clipped).double(), atol=2e-6
    )
    assert torch.allclose(hull_area(first.float(), second.float()).double(), Tensor(hulls).double(), atol=5e-6)


UNIT = [0.0, 0, 0, 1, 1, 1, 0]
OCTAGON = 2 * (sqrt(2) - 1)  # what a unit square shares with itself turned by an eighth
HAND_MADE = {
    "identical": (UNIT, UNIT, 1.0, 1.0),
    "half over": (UNIT, [0.5, 0, 0, 1, 1, 1, 0], 1 / 3, 1 / 3),
    "half over in height": (UNIT, [0, 0, 0.5, 1, 1, 1, 0], 1 / 3, 1 / 3),
    "contained": (UNIT, [0.1, 0.1, 0, 0.5, 0.5, 0.5, 0], 1 / 8, 1 / 8),
    "touching": (UNIT, [1.0, 0, 0, 1, 1, 1, 0], 0.0, 0.0),
    "corner to corner": (UNIT, [1.0, 1, 0, 1, 1, 1, 0], 0.0, -0.5),
    "far": (UNIT, [0, 0, 9, 1, 1, 1, 0], 0.0, -0.8),
    "a quarter turn": (UNIT, [0, 0, 0, 1, 1, 1, QUARTER], 1.0, 1.0),
    "a cross": ([0, 0, 0, 4, 1, 1, 0], [0, 0, 0, 4, 1, 1, QUARTER], 1 / 7, 1 / 7 - (11.5 - 7) / 11.5),
    "an eighth turn": (UNIT, [0, 0, 0, 1, 1, 1, EIGHTH], OCTAGON / (2 - OCTAGON), None),
    "contained and turned": ([0, 0, 0, 4, 4, 1, 0], [0.5, 0, 0, 1, 1, 1, EIGHTH], 1 / 16, 1 / 16),
    "identical and turned": ([1.0, 2, 3, 1, 2, 3, 0.7], [1.0, 2, 3, 1, 2, 3, 0.7], 1.0, 1.0),
    "turned by half of all": ([1.0, 2, 3, 1, 2, 3, 0.7], [1.0, 2, 3, 1, 2, 3, 0.7 + pi], 1.0, 1.0),
    # Two diamonds whose corners touch: a strip sqrt(2) wide and sqrt(2) long between two half diamonds, 3 in all.
    "touching corners": ([0, 0, 0, 1, 1, 1, EIGHTH], [sqrt(2), 0, 0, 1, 1, 1, EIGHTH], 0.0, -1 / 3),
    # Squares corner to corner, not axis-aligned: the hull is 3, where the box around both would be 4.
    "corner to corner and turned": ([0, 0, 0, 1, 1, 1, pi], [1.0, 1, 0, 1, 1, 1, pi], 0.0, -1 / 3),
    "flat": ([0, 0, 0, 1, 1, 0, 0.3], [0, 0, 0, 1, 1, 1, 0.3], 0.0, 0.0),
    "nothing at all": ([0.0] * 7, [0.0] * 7, 0.0, 0.0),
    "points": ([0, 0, 0, 0, 0, 0, 1.0], [1.0, 0, 0, 0, 0, 0, 2.0], 0.0, 0.0),
}


@PRECISIONS
@pytest.mark.parametrize("case", list(HAND_MADE))
def test_by_hand(case: str, dtype: torch.dtype) -> None:
    """The hull of a cross of two bars 4 by 1 is a square of side 4 without four triangles of 1.5 * 1.5 / 2: 11.5."""
    one, two, expected, generalised = HAND_MADE[case]
    first, second = torch.tensor(one, dtype=dtype), torch.tensor(two, dtype=dtype)
    for a, b in ((first, second), (second, first)):
        assert iou(a, b).dtype == dtype
        assert float(iou(a, b)) == pytest.approx(expected, abs=TOLERANCE[dtype])
        if generalised is not None:
            assert float(generalised_iou(a, b)) == pytest.approx(generalised, abs=TOLERANCE[dtype])


@PRECISIONS
def test_identical_boxes_share_exactly_all_of_themselves(draw: Any, dtype: torch.dtype) -> None:
    for turned in (False, True):
        boxes = draw(200, 20, dtype, turned=turned, spread=30.0)
        assert (iou(boxes, boxes) == 1).all()
        assert torch.allclose(generalised_iou(boxes, boxes), torch.ones(200, dtype=dtype), atol=TOLERANCE[dtype])


@PRECISIONS
def test_boxes_apart_share_exactly_nothing(draw: Any, dtype: torch.dtype) -> None:
    first, second = draw(500, 21, dtype), draw(500, 22, dtype)
    reach = (first[:, 3:5].norm(dim=1) + second[:, 3:5].norm(dim=1)) / 2
    angle = torch.arange(500, dtype=dtype)
    second[:, 0], second[:, 1] = first[:, 0] + reach * angle.cos() * 1.001, first[:, 1] + reach * angle.sin() * 1.001
    assert (iou(first, second) == 0).all()
    assert (generalised_iou(first, second) < 0).all()


@PRECISIONS
def test_boxes_side_by_side_share_exactly_nothing(draw: Any, dtype: torch.dtype) -> None:
    """A ten-thousandth beyond the side of the other, along an axis that is not its own."""
    first, second = draw(500, 32), draw(500, 33)
    turn, heading = second[:, 6] - first[:, 6], first[:, 6]
    reach = (first[:, 3] + second[:, 3] * turn.cos().abs() + second[:, 4] * turn.sin().abs()) / 2 * 1.0001
    aside = torch.linspace(-0.5, 0.5, 500).double() * first[:, 4]
    second[:, 0] = first[:, 0] + reach * heading.cos() - aside * heading.sin()
    second[:, 1] = first[:, 1] + reach * heading.sin() + aside * heading.cos()
    second[:, 2] = first[:, 2]
    first, second = first.to(dtype), second.to(dtype)
    assert (iou(first, second) == 0).all()
    assert (iou(second, first) == 0).all()
    nearer = second.clone()
    nearer[:, :2] = first[:, :2] + (second[:, :2] - first[:, :2]) * 0.5
    assert (iou(first, nearer) > 0).double().mean() > 0.9


@PRECISIONS
def test_what_never_changes(draw: Any, dtype: torch.dtype) -> None:
    """Swapping, moving and turning both, turning one by half of all, and turning into a quarter with sizes swapped."""
    first, second = draw(300, 23, dtype), draw(300, 24, dtype)
    same = {"atol": 2 * TOLERANCE[dtype], "rtol": 0}

    def moved(boxes: Tensor) -> Tensor:
        return boxes + torch.tensor([3.0, -5.0, 2.0, 0, 0, 0, 0], dtype=dtype)

    def turned(boxes: Tensor, angle: float = 0.9) -> Tensor:
        x, y = boxes[:, 0], boxes[:, 1]
        out = boxes.clone()
        out[:, 0], out[:, 1] = x * np.cos(angle) - y * np.sin(angle), x * np.sin(angle) + y * np.cos(angle)
        out[:, 6] += angle
        return out

    def half(boxes: Tensor) -> Tensor:
        return boxes + torch.tensor([0, 0, 0, 0, 0, 0, pi], dtype=dtype)

    def quarter(boxes: Tensor) -> Tensor:
        return boxes[:, [0, 1, 2, 4, 3, 5, 6]] + torch.tensor([0, 0, 0, 0, 0, 0, QUARTER], dtype=dtype)

    for measure in (iou, generalised_iou):
        value = measure(first, second)
        assert torch.allclose(measure(second, first), value, **same)
        assert torch.allclose(measure(moved(first), moved(second)), value, **same)
        assert torch.allclose(measure(turned(first), turned(second)), value, **same)
        assert torch.allclose(measure(half(first), second), value, **same)
        assert torch.allclose(measure(first, quarter(second)), value, **same)
    assert (generalised_iou(first, second) <= iou(first, second) + TOLERANCE[dtype]).all()
    assert (generalised_iou(first, second) > -1).all()


def test_both_ways_agree_on_axis_aligned_boxes(draw: Any) -> None:
    first, second = draw(300, 25, turned=False), draw(300, 26, turned=False)
    closed = iou(first, second)
    first[:, 6] = second[:, 6] = 2 * pi
    assert torch.allclose(iou(first, second), closed, atol=1e-14)
    assert 0.1 < (closed > 0).double().mean() < 0.9


def test_a_heading_that_is_hardly_any(draw: Any) -> None:
    for heading in (1e-38, 1e-20, 1e-12, 1e-7):
        first, second = draw(100, 27, torch.float32, turned=False), draw(100, 28, torch.float32, turned=False)
        closed = iou(first, second)
        first[:, 6] = heading
        assert torch.allclose(iou(first, second), closed, atol=2e-6)


def test_a_pair_depends_on_nothing_but_the_pair(draw: Any) -> None:
    first, second = draw(6, 29), draw(5, 30)
    first[:3, 6] = second[:3, 6] = 0
    for measure, pairwise in ((iou, pairwise_iou), (generalised_iou, pairwise_generalised_iou)):
        table = pairwise(first, second)
        assert table.shape == (6, 5)
        for row in range(6):
            for column in range(5):
                assert torch.allclose(table[row, column], measure(first[row], second[column]), rtol=0, atol=1e-15)
        scenes = pairwise(torch.stack([first, first + 0.1]), torch.stack([second, second]))
        assert torch.allclose(scenes[0], table, rtol=0, atol=1e-15)
        assert pairwise(first[:0], second).shape == (0, 5)
        assert pairwise(first, second[:0]).shape == (6, 0)


def test_small_boxes_in_large_ones_keep_their_digits(draw: Any) -> None:
    small = draw(100, 31, torch.float32)
    small[:, 3:6] *= 1e-3
    large = torch.tensor([0.1, 0.2, 0, 20, 30, 40, 0.5])
    assert torch.allclose(iou(small, large), volumes(small) / volumes(large), rtol=2e-5)


MEASURES = pytest.mark.parametrize("measure", [iou, generalised_iou], ids=["iou", "giou"])


@MEASURES
@pytest.mark.parametrize("turned", [False, True], ids=["aligned", "turned"])
def test_against_finite_differences(draw: Any, measure: Any, turned: bool) -> None:
    """For axis-aligned boxes the heading is left alone, since any other is another kind of box."""
    first, second = draw(30, 40, turned=turned, spread=0.6), draw(30, 41, turned=turned, spread=0.6)
    numbers = 7 if turned else 6
    rest = first[:, numbers:], second[:, numbers:]
    inputs = [boxes[:, :numbers].clone().requires_grad_() for boxes in (first, second)]

    def value(one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
        return measure(torch.cat([one, rest[0]], dim=1), torch.cat([two, rest[1]], dim=1))

    assert (iou(first, second) > 0.05).sum() > 5
    assert (iou(first, second) == 0).any()
    assert torch.autograd.gradcheck(value, inputs, eps=1e-7, atol=1e-6)


def test_a_pairwise_loss_has_the_gradient_of_its_pairs(draw: Any) -> None:
    first, second = draw(4, 42).requires_grad_(), draw(3, 43)
    assert torch.autograd.gradcheck(lambda boxes: pairwise_generalised_iou(boxes, second), first, eps=1e-7, atol=1e-6)


DEGENERATE = {
    "identical": ([0, 0, 0, 1, 2, 3, 0.4], [0, 0, 0, 1, 2, 3, 0.4]),
    "identical and aligned": ([0, 0, 0, 1, 2, 3, 0], [0, 0, 0, 1, 2, 3, 0]),
    "a quarter turn": ([0, 0, 0, 1, 1, 1, 0], [0, 0, 0, 1, 1, 1, pi / 2]),
    "touching": ([0, 0, 0, 1, 1, 1, 0.4], [0, 0, 1, 1, 1, 1, 0.4]),
    "edge on edge": ([0, 0, 0, 1, 1, 1, pi], [1, 0, 0, 1, 1, 1, pi]),
    "contained": ([0, 0, 0, 4, 4, 4, 0.1], [0, 0, 0, 1, 1, 1, 0.9]),
    "far": ([0, 0, 0, 1, 1, 1, 0.1], [50, 50, 0, 1, 1, 1, 0.9]),
    "hardly turned": ([0, 0, 0, 1, 1, 1, 1e-20], [0.3, 0, 0, 1, 1, 1, 0]),
    "hardly turned at all": ([0, 0, 0, 1, 1, 1, 1e-38], [0.3, 0.5, 0, 1, 1, 1, 0]),
    "flat": ([0, 0, 0, 1, 1, 0, 0.2], [0, 0, 0, 1, 1, 1, 0.2]),
    "a point": ([0, 0, 0, 0, 0, 0, 0.2], [0, 0, 0, 1, 1, 1, 0.2]),
    "nothing": ([0, 0, 0, 0, 0, 0, 0.2], [0, 0, 0, 0, 0, 0, 0.2]),
    "nothing and aligned": ([0] * 7, [0] * 7),
}


@MEASURES
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["single", "double"])
@pytest.mark.parametrize("case", list(DEGENERATE))
def test_finite_everywhere(case: str, measure: Any, dtype: torch.dtype) -> None:
    for order in (1, -1):
        first, second = (torch.tensor(box, dtype=dtype).requires_grad_() for box in DEGENERATE[case][::order])
        measure(first, second).backward()
        assert first.grad is not None
        assert second.grad is not None
        assert first.grad.isfinite().all()
        assert second.grad.isfinite().all()
        assert first.grad.abs().max() < 100


def test_boxes_apart_are_drawn_together() -> None:
    """gIoU is 2 / H - 1 with a hull H of about 5 * 1.3 + 1 in area, which moving by d makes less by about 1.3 * d."""
    first = torch.tensor([0.0, 0, 0, 1, 1, 1, 0.2]).requires_grad_()
    generalised_iou(first, torch.tensor([5.0, 0, 0, 1, 1, 1, 0.9])).backward()
    assert first.grad is not None
    assert float(first.grad[0]) == pytest.approx(2 * 1.3 / 7.5**2, rel=0.2)
    assert abs(first.grad[2]) < 1e-6


def test_following_the_gradient_finds_the_box() -> None:
    target = torch.tensor([0.5, -0.3, 0.2, 1.0, 2.0, 1.5, 0.5], dtype=torch.float64)
    box = torch.tensor([0.0, 0, 0, 1.4, 1.4, 1, 0.2], dtype=torch.float64).requires_grad_()
    optimiser = torch.optim.Adam([box], lr=0.04)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 150)
    start = float(generalised_iou(box.detach(), target))
    for _ in range(150):
        optimiser.zero_grad()
        (1 - generalised_iou(box, target)).backward()
        optimiser.step()
        schedule.step()
    assert start < 0.3
    assert float(iou(box.detach(), target)) > 0.97
