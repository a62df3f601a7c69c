"""From points to tokens: positions spread over the scene, each with features of the points around it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedstill.models.kernels import check_clouds, farthest_points, rows_at
from fedstill.models.kernels.compact import Rows, compact_geometry
from fedstill.models.kernels.latest import latest
from fedstill.models.pointnet2_levels import Ball, SetAbstraction, way_of

_LOWEST = 0.01  # fraction of points below the estimated floor height


@dataclass(frozen=True)
class Places:
    """The positions of a batch's tokens; they depend only on the clouds."""

    points: Tensor  # (batch, points, 3): the clouds, or their points above the floor
    positions: Tensor  # (batch, tokens, 3)
    rows: Rows | None  # the neighbourhoods without repetition, if available


class Tokens(nn.Module):
    """One level of set abstraction: `(positions, features)` of (batch, tokens, ...).

    Sampling spreads tokens evenly, and the floor is the largest surface of most scenes: points lower than `floor` above
    the lowest ones are excluded from the sample and from its neighbourhoods.

    In single precision on a CPU the level computes distinct rows only, like those of PointNet++, with the same results.
    """

    fast = True

    def __init__(
        self, ball: Ball, widths: tuple[int, int, int], floor: float, places: int, relative: bool = False
    ) -> None:
        """`relative`: coordinates in a neighbourhood are in units of its radius, not in metres."""
        super().__init__()
        self.ball, self.floor = ball, floor
        self.level = SetAbstraction(ball, 0, widths, unit=ball.radius if relative else 1.0)
        if places:
            self.position = nn.Linear(places, widths[-1])  # of the position features; see `Detector.describe`

    def forward(self, points: Tensor) -> tuple[Tensor, Tensor]:
        way = way_of(points, self, [self.level]) if self.fast else "plain"
        places = latest.of(
            points,
            (self.ball, self.floor, self.level.unit, way == "plain"),
            lambda: self.places(points, way != "plain"),
        )
        if places.rows is None:
            features: Tensor = self.level(places.points, places.positions, None)
            return places.positions, features
        found = (self.level.train_rows if way == "train" else self.level.infer_rows)(places.rows, None)
        return places.positions, found.unflatten(0, (len(points), -1))

    def places(self, points: Tensor, compact: bool) -> Places:
        """The geometry that `forward` needs; models with the same sampling share it on the same batch."""
        check_clouds(points)
        points = above_the_floor(points, self.floor) if self.floor else points
        if compact:
            # The second level is used only for the positions of its centres.
            geometry = compact_geometry(points, self.ball, Ball(self.ball.centres, 0.0, 1))
            # Clouds with fewer locations than tokens have fewer groups: those use the plain implementation.
            if geometry.level1.groups == len(points) * self.ball.centres:
                positions = torch.from_numpy(geometry.level3.offset).unflatten(0, (len(points), -1))
                return Places(points, positions, geometry.level1.in_units(self.level.unit))
        chosen = farthest_points(points, self.ball.centres)
        return Places(points, rows_at(points, chosen), None)


def floor_height(points: Tensor) -> Tensor:
    """The floor height of each cloud (batch, points, 3), (batch,): the few lower points are noise."""
    rank = max(1, round(_LOWEST * points.shape[1]))
    return points[..., 2].topk(rank, dim=1, largest=False).values[:, -1]


def above_the_floor(points: Tensor, height: float) -> Tensor:
    """Clouds (batch, points, 3) of the points above the floor, in their order, repeated until the clouds are full.

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
