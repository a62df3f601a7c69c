"""From points to tokens: positions spread over the scene, each with features of the points around it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from fedstill.core.errors import InputError
from fedstill.detection.point_features import COORDINATES, features_of, split_columns
from fedstill.models.kernels import check_clouds, farthest_points, rows_at
from fedstill.models.kernels.compact import Rows, compact_geometry
from fedstill.models.kernels.latest import latest
from fedstill.models.pointnet2_levels import Ball, SetAbstraction, way_of

_LOWEST = 0.01  # fraction of points below the estimated floor height


@dataclass(frozen=True)
class Places:
    """A sample of a batch's points, such as its tokens; the positions depend only on those of the points."""

    points: Tensor  # (batch, points, 3): the clouds, or their points above the floor
    features: Tensor | None  # (batch, points, channels): of these points, if they have any
    positions: Tensor  # (batch, tokens, 3)
    rows: Rows | None  # the neighbourhoods without repetition, if available


class Tokens(nn.Module):
    """One level of set abstraction: `(positions, features)` of (batch, tokens, ...).

    Sampling spreads tokens evenly, and the floor is the largest surface of most scenes: points lower than `floor` above
    the lowest ones are excluded from the sample and from its neighbourhoods.

    In single precision on a CPU the level computes distinct rows only, like those of PointNet++, with the same results.
    Points may have features beside their coordinates, `channels` of them; these neither move a token nor choose its
    neighbours.
    """

    fast = True

    def __init__(
        self,
        ball: Ball,
        widths: tuple[int, int, int],
        floor: float,
        places: int,
        relative: bool = False,
        channels: int = 0,
    ) -> None:
        """`relative`: coordinates in a neighbourhood are in units of its radius, not in metres."""
        super().__init__()
        self.ball, self.floor, self.columns = ball, floor, COORDINATES + channels
        self.level = SetAbstraction(ball, channels, widths, unit=ball.radius if relative else 1.0)
        if places:
            self.position = nn.Linear(places, widths[-1])  # of the position features; see `Detector.describe`

    def forward(self, points: Tensor) -> tuple[Tensor, Tensor]:
        if points.shape[-1] != self.columns:  # the fast way would not notice
            here, there = (" and ".join(("coordinates", *features_of(n))) for n in (self.columns, points.shape[-1]))
            raise InputError(f"this detector reads {here} of points, and these have {there}: set detection.features")
        way = way_of(points, self, [self.level]) if self.fast else "plain"
        places = latest.of(
            points,
            (self.ball, self.floor, self.level.unit, way == "plain"),
            lambda: self.places(points, way != "plain"),
        )
        return places.positions, abstracted(self.level, places, way)

    def places(self, points: Tensor, compact: bool) -> Places:
        """The geometry that `forward` needs; models with the same sampling share it on the same batch."""
        check_clouds(split_columns(points)[0])
        points, features = split_columns(above_the_floor(points, self.floor) if self.floor else points)
        return sampled(points, features, self.ball, self.level.unit, compact)


def downsample(level: SetAbstraction, positions: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
    """Fewer tokens: a sample of their positions, and what a level makes of the features around each."""
    assert level.ball is not None
    way = way_of(positions, level, [level])
    if way == "infer" and torch.is_grad_enabled() and features.requires_grad:
        way = "plain"  # a frozen level, behind prompts that are trained
    places = sampled(positions, features, level.ball, level.unit, way != "plain")
    return places.positions, abstracted(level, places, way)


def sampled(points: Tensor, features: Tensor | None, ball: Ball, unit: float, compact: bool) -> Places:
    """A sample of the points, with the neighbourhoods in `unit`s where distinct rows can be used (`compact`)."""
    if compact and (features is None or copies_agree(points, features)):
        # The second level is used only for the positions of its centres.
        geometry = compact_geometry(points, ball, Ball(ball.centres, 0.0, 1))
        # Clouds with fewer locations than centres have fewer groups: those use the plain implementation.
        if geometry.level1.groups == len(points) * ball.centres:
            positions = torch.from_numpy(geometry.level3.offset).unflatten(0, (len(points), -1))
            rows = geometry.level1.in_units(unit)
            rows = rows if features is None else replace(rows, sources=features.shape[:2].numel())
            return Places(points, features, positions, rows)
    return Places(points, features, rows_at(points, farthest_points(points, ball.centres)), None)


def abstracted(level: SetAbstraction, places: Places, way: Literal["plain", "train", "infer"]) -> Tensor:
    """The features of sampled places (batch, centres, channels)."""
    if places.rows is None:
        plain: Tensor = level(places.points, places.positions, places.features)
        return plain
    features = None if places.features is None else places.features.flatten(0, 1)
    found = (level.train_rows if way == "train" else level.infer_rows)(places.rows, features)
    by_cloud: Tensor = found.unflatten(0, (len(places.points), -1))
    return by_cloud


def copies_agree(points: Tensor, features: Tensor) -> bool:
    """Whether points at the location of their cloud's first one have its features too.

    The compact geometry represents all of them by the first one.
    """
    same_place = (points == points[:, :1]).all(dim=-1)
    same_features = (features == features[:, :1]).all(dim=-1)
    return bool((same_features | ~same_place).all())


def floor_height(points: Tensor) -> Tensor:
    """The floor height of each cloud (batch, points, columns), (batch,): the few lower points are noise."""
    rank = max(1, round(_LOWEST * points.shape[1]))
    return points[..., 2].topk(rank, dim=1, largest=False).values[:, -1]


def above_the_floor(points: Tensor, height: float) -> Tensor:
    """Clouds (batch, points, columns) of the points above the floor, in their order, repeated until they are full.

    Copies of a point coincide with it, so sampling skips them. In a cloud without such points all are kept.

    >>> above_the_floor(torch.tensor([[[0.0, 0, 0], [1, 0, 2], [2, 0, 0], [3, 0, 1]]]), 0.5)[0, :, 0].tolist()
    [1.0, 3.0, 1.0, 3.0]
    """
    above = points[..., 2] > (floor_height(points) + height).unsqueeze(1)
    above |= ~above.any(dim=1, keepdim=True)
    numbers = torch.arange(points.shape[1], device=points.device)
    order = torch.where(above, numbers, numbers + len(numbers)).argsort(dim=1)  # distinct keys: no ties to break
    places = numbers % above.sum(dim=1, keepdim=True)
    return rows_at(points, order.gather(1, places))
