"""From points to tokens: places spread over the scene, each with a description of the points around it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedstill.models.kernels import check_clouds, farthest_points, rows_at
from fedstill.models.kernels.compact import Rows, compact_geometry
from fedstill.models.kernels.latest import latest
from fedstill.models.pointnet2_levels import Ball, SetAbstraction, way_of

_LOWEST = 0.01  # the share of points that lie lower than the floor is taken to be


@dataclass(frozen=True)
class Places:
    """Where the tokens of a batch are; it depends on the clouds alone."""

    points: Tensor  # (batch, points, 3): the clouds, or what is left of them
    positions: Tensor  # (batch, tokens, 3)
    rows: Rows | None  # the neighbourhoods without repetition, where they can be had


class Tokens(nn.Module):
    """One level of set abstraction: `(positions, features)` of (batch, tokens, ...).

    Sampling spreads tokens evenly, and a floor is the largest surface of most scenes: points lower than `floor` above
    the lowest ones are left out of the sample and of its neighbourhoods.

    In single precision on a CPU the level runs on distinct rows, as those of PointNet++ do, to the same results.
    """

    fast = True

    def __init__(self, ball: Ball, width: int, floor: float, places: int) -> None:
        super().__init__()
        self.ball, self.floor = ball, floor
        self.level = SetAbstraction(ball, 0, (width // 2, width // 2, width))
        self.position = nn.Linear(places, width)  # of what the detector says of places; see `Detector.describe`

    def forward(self, points: Tensor) -> tuple[Tensor, Tensor]:
        way = way_of(points, self, [self.level]) if self.fast else "plain"
        places = latest.of(points, (self.ball, self.floor, way == "plain"), lambda: self.places(points, way != "plain"))
        if places.rows is None:
            features: Tensor = self.level(places.points, places.positions, None)
            return places.positions, features
        found = (self.level.train_rows if way == "train" else self.level.infer_rows)(places.rows, None)
        return places.positions, found.unflatten(0, (len(points), -1))

    def places(self, points: Tensor, compact: bool) -> Places:
        """What `forward` works out first; models that sample alike and see the same batch share it."""
        check_clouds(points)
        points = above_the_floor(points, self.floor) if self.floor else points
        if compact:
            # The second level is there for the places of its centres only.
            geometry = compact_geometry(points, self.ball, Ball(self.ball.centres, 0.0, 1))
            # Clouds with fewer locations than tokens have fewer groups: those are written out.
            if geometry.level1.groups == len(points) * self.ball.centres:
                positions = torch.from_numpy(geometry.level3.offset).unflatten(0, (len(points), -1))
                return Places(points, positions, geometry.level1)
        chosen = farthest_points(points, self.ball.centres)
        return Places(points, rows_at(points, chosen), None)


def floor_height(points: Tensor) -> Tensor:
    """Of each cloud (batch, points, 3), (batch,): few points lie lower, and those are noise."""
    rank = max(1, round(_LOWEST * points.shape[1]))
    return points[..., 2].kthvalue(rank, dim=1).values


def above_the_floor(points: Tensor, height: float) -> Tensor:
    """Clouds (batch, points, 3) of those points alone, in their order, over and over until the clouds are full.

    Copies of a point lie on it, so sampling passes them by. Of a cloud without such points all are kept.

    >>> above_the_floor(torch.tensor([[[0.0, 0, 0], [1, 0, 2], [2, 0, 0], [3, 0, 1]]]), 0.5)[0, :, 0].tolist()
    [1.0, 3.0, 1.0, 3.0]
    """
    above = points[..., 2] > (floor_height(points) + height).unsqueeze(1)
    above |= ~above.any(dim=1, keepdim=True)
    order = torch.argsort((~above).to(torch.uint8), dim=1, stable=True)
    places = torch.arange(points.shape[1], device=points.device) % above.sum(dim=1, keepdim=True)
    return rows_at(points, order.gather(1, places))
