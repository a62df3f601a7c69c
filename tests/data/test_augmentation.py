from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from fedstill.core.streams import Streams
from fedstill.data.augmentation import NoAugmentation, PointAugmentation, augmentations


def clouds(size: int = 400, points: int = 256) -> torch.Tensor:
    values = np.random.default_rng(0).normal(size=(size, points, 3))
    return torch.from_numpy(values.astype(np.float32))


def draw(seed: int = 0) -> np.random.Generator:
    return Streams(seed).draw("augment")


class Told:
    """A generator that returns given draws, and records how many were requested."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.asked = list(answers), []

    def random(self, shape: tuple[int, ...], dtype: Any = None) -> np.ndarray:
        self.asked.append(shape)
        return np.array(self.answers.pop(0), dtype=np.float32).reshape(shape)

    def uniform(self, low: float, high: float, shape: tuple[int, ...]) -> np.ndarray:
        return low + (high - low) * self.random(shape).astype(float)


def test_a_case_by_hand() -> None:
    """Ratio 0.875 * 0.4 = 0.35 drops the last two of four points; scale 0.8 + 0.45 * 0.5; shift -0.1 + 0.2 * u."""
    cloud = torch.tensor([[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0], [0.0, 0.0, 0.0]]])
    generator = Told([0.4], [0.5, 0.36, 0.34, 0.0], [0.5], [0.0, 0.5, 1.0])
    out = PointAugmentation()({"inputs": cloud, "labels": torch.tensor([2])}, generator)  # type: ignore[arg-type]
    first, second = [1.025 - 0.1, 2.05, 3.075 + 0.1], [4.1 - 0.1, 5.125, 6.15 + 0.1]
    assert torch.allclose(out["inputs"], torch.tensor([[first, second, first, first]]))
    assert out["labels"].tolist() == [2]
    assert generator.asked == [(1, 1), (1, 4), (1, 1, 1), (1, 1, 3)]


def test_dropped_points_are_point_0_and_nothing_else_moves() -> None:
    before = clouds()
    out = PointAugmentation(scale_low=1, scale_high=1, shift=0)({"inputs": before}, draw())["inputs"]
    same, gone = (out == before).all(dim=2), (out == before[:, :1]).all(dim=2)
    assert bool((same | gone).all())
    shares = (~same).float().mean(dim=1)  # U[0, 0.875]: mean 0.4375, sd 0.2526
    assert shares.mean().item() == pytest.approx(0.4375, abs=0.04)
    assert shares.std().item() == pytest.approx(0.2526, abs=0.03)
    assert shares.max() < 0.96
    assert shares.min() < 0.05


def test_scales_and_shifts_are_uniform_and_one_per_cloud() -> None:
    before = clouds()
    out = PointAugmentation(dropout=0)({"inputs": before}, draw())["inputs"]
    scale = (out[:, 1:] - out[:, :1]) / (before[:, 1:] - before[:, :1])
    middle = scale.flatten(1).median(dim=1).values
    assert (scale.flatten(1) - middle[:, None]).abs().median() < 1e-5  # the same for all points and axes
    assert middle.min() >= 0.8
    assert middle.max() <= 1.25
    assert middle.mean().item() == pytest.approx(1.025, abs=0.02)
    shift = (out - before * middle[:, None, None]).median(dim=1).values
    assert shift.abs().max() <= 0.1001
    assert shift.std(dim=0) == pytest.approx([0.2 / 12**0.5] * 3, abs=0.006)
    assert abs(np.corrcoef(shift.numpy().T)[0, 1]) < 0.2


def test_the_generator_is_the_only_randomness_and_the_input_is_kept() -> None:
    before = clouds(20)
    kept = before.clone()
    torch.manual_seed(1)
    first = PointAugmentation()({"inputs": before}, draw())["inputs"]
    torch.manual_seed(2)
    torch.rand(9)
    state = torch.get_rng_state()
    again = PointAugmentation()({"inputs": before}, draw())["inputs"]
    assert torch.equal(first, again)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(before, kept)
    assert first.dtype == torch.float32
    assert not torch.equal(first, PointAugmentation()({"inputs": before}, draw(1))["inputs"])


def test_everything_off_is_the_same_cloud() -> None:
    before = clouds(5)
    settings = PointAugmentation(dropout=0, scale_low=1, scale_high=1, shift=0)
    assert torch.equal(settings({"inputs": before}, draw())["inputs"], before)


def test_names_and_settings() -> None:
    assert augmentations.names() == ["none", "points", "scenes"]
    assert all(augmentations.summary(name).endswith(".") for name in augmentations)
    batch = {"inputs": torch.zeros(2, 1, 8, 8)}
    assert NoAugmentation()(batch, draw()) is batch
    for wrong in ({"dropout": 1.5}, {"scale_low": 2.0}, {"shift": -1}, {"rotation": 1}):
        with pytest.raises(ValidationError):
            PointAugmentation(**wrong)
