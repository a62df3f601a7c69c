"""Where boxes are: the convention on a box anybody can draw, and points against explicit rotation matrices."""

from __future__ import annotations

from math import cos, pi, sin
from typing import Any

import numpy as np
import pytest
import torch

from fedstill.core.errors import InputError
from fedstill.detection.boxes import check_boxes, footprints, lies_in, volumes


def test_headings_turn_counter_clockwise_seen_from_above() -> None:
    """A box 4 long and 2 wide at heading pi/2 has its front, which was at +x, at +y; its left side at -x."""
    box = torch.tensor([10.0, 20, 30, 4, 2, 6, pi / 2])
    expected = [[9.0, 22.0], [9.0, 18.0], [11.0, 18.0], [11.0, 22.0]]
    assert torch.allclose(footprints(box), torch.tensor(expected))
    a_bit = footprints(torch.tensor([0.0, 0, 0, 2, 0, 1, 0.1]))[0]  # the middle of the front
    assert torch.allclose(a_bit, torch.tensor([cos(0.1), sin(0.1)]))


def test_footprints_are_counter_clockwise_around_the_centre(draw: Any) -> None:
    boxes = draw(20, 1)
    found = footprints(boxes)
    assert found.shape == (20, 4, 2)
    assert torch.allclose(found.mean(dim=1), boxes[:, :2])
    x, y = found[..., 0], found[..., 1]
    area = (x * y.roll(-1, 1) - y * x.roll(-1, 1)).sum(dim=1) / 2
    assert torch.allclose(area * boxes[:, 5], volumes(boxes))  # positive: counter-clockwise
    assert torch.equal(footprints(boxes.view(4, 5, 7)), found.view(4, 5, 4, 2))


def test_points_against_rotation_matrices(draw: Any) -> None:
    boxes = draw(30, 2)
    points = torch.rand(400, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 4 - 2
    inside = lies_in(points[None], boxes[None])[0].numpy()
    assert inside.shape == (400, 30)
    for column, (x, y, z, dx, dy, dz, heading) in enumerate(boxes.tolist()):
        matrix = np.array([[cos(heading), -sin(heading), 0], [sin(heading), cos(heading), 0], [0, 0, 1]])
        local = (points.numpy() - [x, y, z]) @ matrix  # by the inverse, which is the transpose
        expected = [all(abs(v) <= s / 2 for v, s in zip(row, (dx, dy, dz), strict=True)) for row in local]
        assert inside[:, column].tolist() == expected
    assert 100 < inside.sum() < 1000


def test_the_surface_belongs_to_the_box() -> None:
    box = torch.tensor([[0.0, 0, 0, 2, 4, 6, 0]])
    points = torch.tensor([[1.0, 2.0, 3.0], [1.001, 0, 0], [0, -2.0, 0], [0, 0, 3.001]])
    assert lies_in(points[None], box[None]).flatten().tolist() == [True, False, True, False]
    assert lies_in(points[None], torch.zeros(1, 0, 7)).shape == (1, 4, 0)
    assert lies_in(torch.zeros(1, 0, 3), box[None]).shape == (1, 0, 1)


@pytest.mark.parametrize(
    ("boxes", "sentence"),
    [
        (torch.zeros(3, 6), r"some boxes must be of shape \(N, 7\): centre, full sizes, heading; not \(3, 6\)"),
        (torch.zeros(7), r"not \(7,\)"),
        (torch.tensor([[0.0] * 7, [0, torch.nan, 0, 1, 1, 1, 0]]), "some boxes: box 1 has a value that is not finite"),
        (torch.tensor([[0.0, 0, 0, 1, -1, 1, 0]]), "some boxes: box 0 has a negative size"),
    ],
    ids=["six", "flat", "nan", "negative"],
)
def test_what_is_no_list_of_boxes(boxes: torch.Tensor, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        check_boxes(boxes, "some boxes")


def test_no_boxes_and_flat_boxes_are_fine() -> None:
    check_boxes(torch.zeros(0, 7), "none")
    check_boxes(torch.zeros(2, 7), "flat")
