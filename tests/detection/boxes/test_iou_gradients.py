"""Gradients of IoU and gIoU against finite differences, and finite where boxes touch, coincide or vanish."""

from __future__ import annotations

from math import pi
from typing import Any

import pytest
import torch

from fedstill.detection.boxes import generalised_iou, iou, pairwise_generalised_iou

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
