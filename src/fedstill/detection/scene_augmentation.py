"""Augmentation of scenes with their boxes: flips, rotations and scaling."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedstill.core.dataset import Batch
from fedstill.data.augmentation import Augmentation, augmentations
from fedstill.detection.boxes import aligned_hulls
from fedstill.detection.point_features import COORDINATES, features_of, split_columns


@augmentations.register("scenes")
class SceneAugmentation(Augmentation):
    """Scene augmentation: random flips in x and y, rotation about z and scaling of clouds and boxes.

    Per scene: flipped in x and in y with probability 1/2 each; rotated by a random number of quarter turns if
    `quarter_turns`; rotated by U[-`turn`, `turn`] degrees; scaled by U[`scale_low`, `scale_high`], all about the
    origin. Boxes of heading 0 stay at heading 0 under flips and quarter turns, with their sizes along x and y
    exchanged, so that axis-aligned data stays axis-aligned. Any other rotation gives them a heading; or, with `refit`,
    they become the smallest axis-aligned box around the rotated one, as in VoteNet, which is larger than the object by
    up to the factor |cos| + |sin| of the angle along each side of a square. Unlabelled scenes are changed in the same
    way. Heights of points are scaled with their scene; colours are not changed.
    """

    kinds = frozenset({"scene"})

    mirror_x: bool = Field(True, description="mirror half of the scenes in x")
    mirror_y: bool = Field(True, description="mirror half of the scenes in y")
    quarter_turns: bool = Field(True, description="also rotate by 90, 180 or 270 degrees")
    turn: float = Field(
        0.0, ge=0, le=180, description="largest further rotation, degrees; 5 (ScanNet) to 30 (SUN RGB-D)"
    )
    refit: bool = Field(
        False,
        description="keep axis-aligned boxes axis-aligned after a rotation by `turn`, as the smallest such box around"
        " the rotated one",
    )
    scale_low: float = Field(0.9, gt=0, description="smallest scale")
    scale_high: float = Field(1.1, gt=0, description="largest scale")

    added_later: ClassVar[frozenset[str]] = frozenset({"refit"})

    @model_validator(mode="after")
    def _ordered(self) -> SceneAugmentation:
        if self.scale_low > self.scale_high:
            raise ValueError(f"scale_low ({self.scale_low}) must not be larger than scale_high ({self.scale_high})")
        return self

    def __call__(self, batch: Batch, generator: np.random.Generator) -> Batch:
        size = len(batch["inputs"])
        # The draws and their order define the meaning of a stream, and do not depend on which steps are switched off.
        mirrors = generator.random((size, 2)) < 0.5
        quarters = generator.integers(0, 4, size)
        angles = np.radians(generator.uniform(-1.0, 1.0, size) * self.turn)
        scales = generator.uniform(self.scale_low, self.scale_high, size)
        points, features = split_columns(batch["inputs"])
        boxes = batch["boxes"] if "boxes" in batch else points.new_zeros(size, 0, 7)
        points, boxes = mirrored(points, boxes, torch.from_numpy(mirrors & [self.mirror_x, self.mirror_y]))
        if self.quarter_turns:
            points, boxes = quarter_turned(points, boxes, torch.from_numpy(quarters))
        if self.turn > 0:
            flat = boxes[..., 6:] == 0
            points, boxes = turned(points, boxes, torch.from_numpy(angles))
            boxes = torch.where(flat, aligned_hulls(boxes), boxes) if self.refit else boxes
        points, boxes = scaled(points, boxes, torch.from_numpy(scales))
        if features is not None:
            points = torch.cat([points, scaled_features(features, torch.from_numpy(scales))], dim=-1)
        return {**batch, "inputs": points} | ({"boxes": boxes} if "boxes" in batch else {})


def mirrored(points: Tensor, boxes: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
    """Scenes (n, points, 3) with boxes (n, boxes, 7), with x and y negated where `which` (n, 2) is True."""
    signs = torch.ones(len(points), 1, 3, dtype=points.dtype, device=points.device)
    signs[:, 0, :2] = torch.where(which.to(points.device), -1.0, 1.0)
    heading = boxes[..., 6]
    flat = heading == 0
    # A flipped x axis points the other way along x: pi - heading. The box is the same at heading + pi.
    heading = torch.where((signs[:, :, 0] < 0) & ~flat, math.pi - heading, heading)
    heading = torch.where((signs[:, :, 1] < 0) & ~flat, -heading, heading)
    moved = torch.cat([boxes[..., :3] * signs, boxes[..., 3:6], _wrapped(heading, flat).unsqueeze(-1)], dim=-1)
    return points * signs, _real(moved, boxes)


def quarter_turned(points: Tensor, boxes: Tensor, quarters: Tensor) -> tuple[Tensor, Tensor]:
    """Scenes rotated counter-clockwise by a number of quarter turns each, without rounding of positions."""
    quarters = quarters.to(points.device)
    cosine = torch.tensor([1, 0, -1, 0], dtype=points.dtype, device=points.device)[quarters]
    sine = torch.tensor([0, 1, 0, -1], dtype=points.dtype, device=points.device)[quarters]
    heading, flat = boxes[..., 6], boxes[..., 6] == 0
    swap = (flat & (quarters % 2 == 1).unsqueeze(1)).unsqueeze(-1)
    sizes = torch.where(swap, boxes[..., [4, 3, 5]], boxes[..., 3:6])
    heading = torch.where(flat, heading, heading + quarters.to(points.dtype).unsqueeze(1) * (math.pi / 2))
    centre = _rotated(boxes[..., :3], cosine, sine)
    moved = torch.cat([centre, sizes, _wrapped(heading, flat).unsqueeze(-1)], dim=-1)
    return _rotated(points, cosine, sine), _real(moved, boxes)


def turned(points: Tensor, boxes: Tensor, angles: Tensor) -> tuple[Tensor, Tensor]:
    """Scenes rotated counter-clockwise by an angle each, in radians."""
    angles = angles.to(points.device)
    cosine, sine = angles.cos().to(points.dtype), angles.sin().to(points.dtype)
    heading = boxes[..., 6] + angles.to(points.dtype).unsqueeze(1)
    centre = _rotated(boxes[..., :3], cosine, sine)
    same = torch.zeros_like(heading, dtype=torch.bool)
    moved = torch.cat([centre, boxes[..., 3:6], _wrapped(heading, same).unsqueeze(-1)], dim=-1)
    return _rotated(points, cosine, sine), _real(moved, boxes)


def scaled(points: Tensor, boxes: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    """Scenes scaled about the origin by a factor each."""
    factor = scales.to(points.device, points.dtype).reshape(-1, 1, 1)
    return points * factor, torch.cat([boxes[..., :6] * factor, boxes[..., 6:]], dim=-1)


def scaled_features(features: Tensor, scales: Tensor) -> Tensor:
    """Features of points in scenes that are scaled: heights are scaled too; flips and rotations change no feature."""
    if "height" not in features_of(COORDINATES + features.shape[-1]):
        return features
    factor = scales.to(features.device, features.dtype).reshape(-1, 1, 1)
    return torch.cat([features[..., :-1], features[..., -1:] * factor], dim=-1)


def _rotated(points: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    x, y, z = points.unbind(-1)
    cosine, sine = cosine.unsqueeze(1), sine.unsqueeze(1)
    return torch.stack([cosine * x - sine * y, sine * x + cosine * y, z], dim=-1)


def _wrapped(heading: Tensor, keep: Tensor) -> Tensor:
    """Angles wrapped into -pi to pi; those to keep are unchanged."""
    return torch.where(keep, heading, torch.remainder(heading + math.pi, 2 * math.pi) - math.pi)


def _real(moved: Tensor, boxes: Tensor) -> Tensor:
    """Padding rows stay zeros."""
    return torch.where(boxes[..., 3:4] > 0, moved, boxes)
