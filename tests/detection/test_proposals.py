"""The two protocols: by hand, and the published one against slow loops written from its description alone."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedstill.core.dataset import ArrayDataset
from fedstill.detection.detection_task import Detection
from fedstill.detection.proposals import Proposals, published, strict

from .test_detection_task import Answers

Box = list[float]
Scene = dict[str, Any]  # boxes and chances of queries, points, truth and labels
NAMES = ("map_25", "map_50", "ar_25", "ar_50")


# An independent implementation: plain numbers and loops.


def corners(box: Box) -> list[tuple[float, float]]:
    """The footprint, counter-clockwise."""
    x, y, _, dx, dy, _, turn = box
    signs = ((1, 1), (-1, 1), (-1, -1), (1, -1))
    return [
        (
            x + math.cos(turn) * a * dx / 2 - math.sin(turn) * b * dy / 2,
            y + math.sin(turn) * a * dx / 2 + math.cos(turn) * b * dy / 2,
        )
        for a, b in signs
    ]


def holds(box: Box, point: list[float]) -> bool:
    """Left of each edge of the footprint, and at a height between bottom and top."""
    if abs(point[2] - box[2]) > box[5] / 2:
        return False
    seen = corners(box)
    for (ax, ay), (bx, by) in zip(seen, seen[1:] + seen[:1], strict=True):
        if (bx - ax) * (point[1] - ay) - (by - ay) * (point[0] - ax) < -1e-12:
            return False
    return True


def area(shape: list[tuple[float, float]]) -> float:
    return abs(sum(a[0] * b[1] - b[0] * a[1] for a, b in zip(shape, shape[1:] + shape[:1], strict=True))) / 2


def clipped(shape: list[tuple[float, float]], by: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """One convex polygon inside another, an edge at a time."""
    for (ax, ay), (bx, by_) in zip(by, by[1:] + by[:1], strict=True):
        side = [(bx - ax) * (y - ay) - (by_ - ay) * (x - ax) for x, y in shape]
        left = []
        for k, (here, value) in enumerate(zip(shape, side, strict=True)):
            there, other = shape[(k + 1) % len(shape)], side[(k + 1) % len(shape)]
            if value >= 0:
                left.append(here)
            if value * other < 0:
                part = value / (value - other)
                left.append((here[0] + part * (there[0] - here[0]), here[1] + part * (there[1] - here[1])))
        shape = left
        if not shape:
            break
    return shape


def turned_iou(one: Box, two: Box) -> float:
    high = min(one[2] + one[5] / 2, two[2] + two[5] / 2) - max(one[2] - one[5] / 2, two[2] - two[5] / 2)
    shared = area(clipped(corners(one), corners(two))) * max(high, 0.0)
    return shared / (one[3] * one[4] * one[5] + two[3] * two[4] * two[5] - shared)


def hull_iou(one: Box, two: Box) -> float:
    """Of the axis-aligned boxes around both."""
    shared, volumes = 1.0, [1.0, 1.0]
    spans = []
    for box in (one, two):
        xs, ys = [x for x, _ in corners(box)], [y for _, y in corners(box)]
        spans.append([(min(xs), max(xs)), (min(ys), max(ys)), (box[2] - box[5] / 2, box[2] + box[5] / 2)])
    for axis in range(3):
        (a, b), (c, d) = spans[0][axis], spans[1][axis]
        shared *= max(min(b, d) - max(a, c), 0.0)
        volumes[0] *= b - a
        volumes[1] *= d - c
    return shared / (volumes[0] + volumes[1] - shared)


def slow_proposals(scene: Scene) -> list[tuple[int, Box, float]]:
    boxes, chances = scene["boxes"], scene["chances"]
    objectness = [1 - row[-1] for row in chances]
    full = [sum(holds(box, point) for point in scene["points"]) >= 5 for box in boxes]
    if not any(full):
        full[objectness.index(max(objectness))] = True
    kind = [row[:-1].index(max(row[:-1])) for row in chances]
    left = sorted((k for k in range(len(boxes)) if full[k]), key=lambda k: (-objectness[k], k))
    kept: list[int] = []
    for k in left:
        if not any(kind[k] == kind[j] and hull_iou(boxes[k], boxes[j]) > 0.25 for j in kept):
            kept.append(k)
    return [
        (number, boxes[k], chances[k][number] * objectness[k])
        for k in kept
        if objectness[k] > 0.05
        for number in range(len(chances[k]) - 1)
    ]


def slow_metrics(scenes: list[Scene], classes: int) -> dict[str, float]:
    """Equal scores are one step of the curve."""
    every = [slow_proposals(scene) for scene in scenes]
    found: dict[str, float] = {}
    for threshold, name in ((0.25, "25"), (0.5, "50")):
        precisions, recalls = [], []
        for number in range(classes):
            truths = [[b for b, c in zip(s["truth"], s["labels"], strict=True) if c == number] for s in scenes]
            total = sum(map(len, truths))
            if not total:
                continue
            said = [(score, s, box) for s, one in enumerate(every) for kind, box, score in one if kind == number]
            taken: set[tuple[int, int]] = set()
            judged: list[tuple[float, bool]] = []
            for score, s, box in sorted(said, key=lambda each: -each[0]):
                overlaps = [turned_iou(box, truth) for truth in truths[s]]
                best = overlaps.index(max(overlaps)) if overlaps else -1
                right = bool(overlaps) and overlaps[best] > threshold and (s, best) not in taken
                if right:
                    taken.add((s, best))
                judged.append((score, right))
            curve = []
            for cut in sorted({score for score, _ in judged}, reverse=True):
                above = [right for score, right in judged if score >= cut]
                curve.append((sum(above), sum(above) / len(above)))
            best_from = [max([p for r, p in curve if r >= k], default=0.0) for k in range(1, total + 1)]
            precisions.append(sum(best_from) / total)
            recalls.append(len(taken) / total)
        found[f"map_{name}"] = sum(precisions) / len(precisions)
        found[f"ar_{name}"] = sum(recalls) / len(recalls)
    return found


# Cases.

headings = st.sampled_from([0.0, 0.0, 0.37, 1.1, -2.3])


@st.composite
def scenes(draw: st.DrawFn) -> list[Scene]:
    """Boxes near objects and elsewhere, on a grid of an eighth of a metre, half of them with enough points."""
    some = []
    for number in range(draw(st.integers(1, 3))):
        place = st.integers(-8, 8).map(lambda k: k / 8)
        size = st.integers(2, 12).map(lambda k: k / 8)
        box = st.tuples(place, place, place, size, size, size, headings).map(list)
        truth = draw(st.lists(box, min_size=1 if number == 0 else 0, max_size=3))
        near = st.sampled_from(truth or [[0.0] * 3 + [1.0] * 3 + [0.0]])
        moved = st.tuples(near, place).map(lambda two: [two[0][0] + two[1] / 4, *two[0][1:]])
        boxes = draw(st.lists(st.one_of(box, moved), min_size=1, max_size=6))
        weights = draw(
            st.lists(st.lists(st.integers(1, 40), min_size=4, max_size=4), min_size=len(boxes), max_size=len(boxes))
        )
        weights = [[*row[:3], row[3] * draw(st.sampled_from([0, 1, 60]))] for row in weights]
        points = [[9.0 + number, 0.0, 0.0]]
        for one in boxes:
            # Away from the surface, which a turned box has in another place by rounding.
            points += [
                [one[0] + k / 97, one[1] - k / 89, one[2] + 0.01] for k in range(draw(st.sampled_from([0, 4, 5])))
            ]
        some.append(
            {
                "boxes": boxes,
                "chances": [[w / sum(row) for w in row] for row in weights],
                "points": points,
                "truth": truth,
                "labels": [draw(st.integers(0, 2)) for _ in truth],
            }
        )
    return some


def padded(rows: list[list[Any]], empty: Any) -> Tensor:
    most = max(max(map(len, rows)), 1)
    return torch.tensor([row + [empty] * (most - len(row)) for row in rows], dtype=torch.float64)


def evaluated(some: list[Scene]) -> dict[str, float]:
    """What the task says of a model that answers so; a query more than a scene has says "no object" without points."""
    numbers = torch.arange(float(len(some))).view(-1, 1, 1).expand(-1, 1, 3)
    nowhere = [1e3, 1e3, 1e3, 0.1, 0.1, 0.1, 0.0]
    points = padded([one["points"] for one in some], [-50.0, 0.0, 0.0])
    task = Detection(("a", "b", "c"), (len(points[0]), 3), ("detr3d-lite",))
    data = ArrayDataset(
        inputs=torch.cat([numbers.double() + 500, points], dim=1),
        labels=padded([one["labels"] for one in some], -1).long(),
        boxes=padded([one["truth"] for one in some], [0.0] * 7),
    )
    model = _Exactly(
        padded([one["boxes"] for one in some], nowhere), padded([one["chances"] for one in some], [0.0] * 3 + [1.0])
    )
    return dict(task.summarise(task.score([model], data)))


class _Exactly(Answers):
    def forward(self, points: Tensor) -> Any:
        return super().forward(points - 500)


@settings(max_examples=80, deadline=None)
@given(scenes())
def test_as_the_slow_loops_have_it(some: list[Scene]) -> None:
    found, slow = evaluated(some), slow_metrics(some, 3)
    assert {name: found[name] for name in NAMES} == pytest.approx({name: slow[name] for name in NAMES}, abs=1e-9)


def cube(x: float, size: float = 1.0) -> Box:
    return [x, 0.0, 0.0, size, size, size, 0.0]


def proposed(boxes: list[Box], chances: list[list[float]], points: list[list[float]]) -> Proposals:
    return published(torch.tensor(chances).log(), torch.tensor(boxes), torch.tensor(points))


def five(x: float) -> list[list[float]]:
    return [[x, 0.0, 0.1 * k] for k in range(5)]


def test_every_class_of_a_box_is_a_proposal() -> None:
    """Objectness 0.75: scores 0.75 * 0.5 and 0.75 * 0.25, not the renormalised 2/3 and 1/3."""
    found = proposed([cube(0)], [[0.5, 0.25, 0.25]], five(0))
    assert found.classes.tolist() == [0, 1]
    assert found.scores.tolist() == pytest.approx([0.375, 0.1875])
    assert found.boxes[found.rows].tolist() == [cube(0)] * 2


def test_a_box_with_four_points_goes_and_one_with_five_stays() -> None:
    said = [[0.8, 0.1, 0.1], [0.3, 0.1, 0.6]]
    found = proposed([cube(0), cube(5)], said, [*five(0)[:4], *five(5)])
    assert found.boxes[:, 0].tolist() == [5.0]
    assert proposed([cube(0), cube(5)], said, [*five(0), *five(5)]).boxes[:, 0].tolist() == [0.0, 5.0]


def test_of_boxes_without_points_the_most_object_like_stays() -> None:
    said = [[0.1, 0.1, 0.8], [0.1, 0.3, 0.6], [0.1, 0.1, 0.8]]
    boxes = [cube(0), cube(5), cube(9)]
    assert proposed(boxes, said, [[20.0, 0.0, 0.0]]).boxes[:, 0].tolist() == [5.0]
    # But not where a box has points that is no proposal itself, for want of objectness.
    said[2] = [0.02, 0.02, 0.96]
    assert len(proposed(boxes, said, five(9)).scores) == 0
    # And it must be object-like enough.
    assert len(proposed(boxes[:1], [[0.02, 0.029, 0.951]], [[20.0, 0.0, 0.0]]).scores) == 0


def test_an_objectness_of_just_the_threshold_is_not_enough() -> None:
    """1 - 15/16 is exact; 0.05 is not, so it is approached from both sides."""
    for none, left in ((0.9501, 0), (0.9499, 2)):
        assert len(proposed([cube(0)], [[0.5 * (1 - none), 0.5 * (1 - none), none]], five(0)).scores) == left


def test_boxes_suppress_within_their_most_likely_class_by_objectness() -> None:
    """The second has the likelier class and the first more objectness: the first stays. The third is of class b."""
    said = [[0.5, 0.4, 0.1], [0.6, 0.1, 0.3], [0.3, 0.4, 0.3]]
    found = proposed([cube(0), cube(0.1), cube(0.1)], said, five(0))
    assert found.boxes[:, 0].tolist() == pytest.approx([0.0, 0.1])
    assert found.scores.tolist() == pytest.approx([0.9 * 0.5, 0.9 * 0.4, 0.7 * 0.3, 0.7 * 0.4])


def test_equal_objectness_keeps_the_first() -> None:
    said = [[0.5, 0.25, 0.25], [0.5, 0.25, 0.25]]
    assert proposed([cube(0.1), cube(0)], said, five(0)).boxes[:, 0].tolist() == pytest.approx([0.1])


def test_suppression_looks_at_hulls_and_points_at_boxes_as_they_are_turned() -> None:
    """Two crossing planks share a ninth, their hulls everything. A plank turned by 45 degrees does not hold the corner
    of its hull."""
    planks = [[0.0, 0.0, 0.0, 2.0, 0.4, 1.0, math.pi / 4], [0.0, 0.0, 0.0, 2.0, 0.4, 1.0, -math.pi / 4]]
    said = [[0.5, 0.2, 0.3], [0.5, 0.1, 0.4]]
    assert len(proposed(planks, said, five(0)).boxes) == 1
    assert len(strict(torch.tensor(said).log(), torch.tensor(planks), torch.zeros(0, 3)).boxes) == 2
    corner = [[0.7, -0.7, 0.1 * k] for k in range(5)]
    assert proposed(planks, said, corner).boxes[0, 6].item() == pytest.approx(-math.pi / 4)


def test_an_overlap_of_just_the_threshold_suppresses_nothing() -> None:
    """Cubes of 5 that are 3 apart share 2 of 8: an IoU of exactly 1/4."""
    said = [[0.5, 0.25, 0.25], [0.5, 0.2, 0.3]]
    points = [*five(0), *five(3)]
    assert len(proposed([cube(0, 5.0), cube(3, 5.0)], said, points).boxes) == 2
    assert len(proposed([cube(0, 5.0), cube(2.99, 5.0)], said, points).boxes) == 1


def test_outputs_that_are_not_finite_are_left_out() -> None:
    boxes = torch.tensor([cube(0), [math.nan, *cube(0)[1:]], cube(5)])
    said = torch.tensor([[0.5, 0.25, 0.25], [0.8, 0.1, 0.1], [math.nan] * 3]).log()
    found = published(said, boxes, torch.tensor(five(0)))
    assert found.boxes[:, 0].tolist() == [0.0]
    assert len(published(said[1:], boxes[1:], torch.tensor(five(0))).scores) == 0
