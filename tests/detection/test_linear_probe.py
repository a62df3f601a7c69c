"""The linear probe: its score by another classifier, its targets by hand, and that it changes nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.detection.small_scenes import rooms, tiny_detector
from torch import Tensor

from fedstill.core.dataset import ArrayDataset
from fedstill.core.kinds import state_of
from fedstill.detection.linear_probe import LinearProbe, _targets, mean_recall, ridge
from fedstill.detection.model import Detector
from fedstill.detection.rooms.furniture import CLASSES


def _detector() -> Detector:
    torch.manual_seed(3)
    detector = tiny_detector((256, 3), len(CLASSES), 0.0)
    assert isinstance(detector, Detector)
    return detector


class Telling(Detector):
    """A detector whose tokens contain their position alone, or nothing."""

    knows = True

    def encode(self, points: Tensor, low: Tensor, extent: Tensor) -> tuple[Tensor, Tensor]:
        places = points[:, :16]
        return places, places if self.knows else torch.zeros_like(places)


def _boxed(scenes: int) -> ArrayDataset:
    """Clouds in a unit cube; what is below half the height is in a box of class 1, the rest is in none."""
    points = torch.from_numpy(np.random.default_rng(scenes).random((scenes, 64, 3))).float()
    box = torch.tensor([0.5, 0.5, 0.25, 2.0, 2.0, 0.5, 0.0]).expand(scenes, 1, 7)
    return ArrayDataset(inputs=points, labels=torch.ones(scenes, 1, dtype=torch.int64), boxes=box.clone())


def test_a_position_tells_what_it_tells_and_nothing_is_chance() -> None:
    detector = _detector()
    telling = Telling(detector.sizes, 2, "detr3d-lite")
    probe = LinearProbe(_boxed(60), _boxed(40), 2)
    assert probe.score(telling) > 0.95
    telling.knows = False
    assert probe.score(telling) == pytest.approx(0.5)  # one of the two that occur is said always
    assert probe.chance == pytest.approx(1 / 3)


def test_targets_are_the_smallest_boxes() -> None:
    positions = torch.tensor([[[0.0, 0, 0], [0.9, 0, 0], [5, 5, 5]]])
    boxes = torch.tensor([[[0.0, 0, 0, 2, 2, 2, 0], [0, 0, 0, 1, 1, 1, 0], [5, 5, 5, 9, 9, 9, 0]]])
    labels = torch.tensor([[3, 4, -1]])  # the last one is padding
    assert _targets(positions, labels, boxes, 7).tolist() == [[4, 3, 7]]


def test_ridge_minimises_what_it_says() -> None:
    """Against gradient descent on the same weighted squares, by hand."""
    rng = np.random.default_rng(0)
    features = torch.from_numpy(rng.normal(size=(40, 3)) * [1, 10, 0.1] + 5)
    targets = torch.from_numpy(np.r_[np.zeros(30), np.ones(10)].astype(np.int64))
    weights = torch.where(targets == 0, 0.5 / 30, 0.5 / 10).unsqueeze(1)
    centre = (weights * features).sum(0)
    spread = (weights * (features - centre) ** 2).sum(0).sqrt()
    rows = torch.cat([(features - centre) / spread, torch.ones(40, 1)], dim=1)
    aims = torch.stack([1.0 - targets, 1.0 * targets], dim=1).double()
    solved = torch.zeros(4, 2, dtype=torch.float64)
    for _ in range(3000):
        solved -= 0.3 * (rows.T @ (weights * (rows @ solved - aims)) + 1e-3 * solved)
    assert torch.allclose(ridge(features, targets, 2, features), rows @ solved, atol=1e-6)


def test_classes_that_do_not_occur_do_not_count() -> None:
    assert mean_recall(torch.tensor([5, 0, 2]), torch.tensor([5, 5, 2])) == 0.75


def test_it_only_reads() -> None:
    detector = _detector().train()
    before, generator = state_of(detector), torch.get_rng_state()
    data = rooms(3)
    first = LinearProbe(data, rooms(2, first=3), len(CLASSES)).score(detector)
    assert 0 <= first <= 1
    assert LinearProbe(data, rooms(2, first=3), len(CLASSES)).score(detector) == first
    assert detector.training
    assert detector.prompted
    assert torch.equal(torch.get_rng_state(), generator)
    after = state_of(detector)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_prompts_do_not_count() -> None:
    detector = _detector()
    probe = LinearProbe(rooms(3), rooms(2, first=3), len(CLASSES))
    before = probe.score(detector)
    with torch.no_grad():
        detector.prompts.mul_(100)
    assert probe.score(detector) == before


def test_numbers_that_are_not_finite_have_no_score() -> None:
    detector = _detector()
    with torch.no_grad():
        detector.encoder[0].norm1.bias.fill_(float("nan"))
    assert np.isnan(LinearProbe(rooms(3), rooms(2, first=3), len(CLASSES)).score(detector))
