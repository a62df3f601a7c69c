"""The sizes that define a PointNet++ variant: a named model is a set of sizes, and each can be overridden."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedstill.core.errors import InputError
from fedstill.models.pointnet2_levels import Ball, SetAbstraction


@dataclass(frozen=True)
class PointNet2Sizes:
    """Two sampling levels with their centres, neighbours and radii, and the unit of all widths."""

    width: int
    centres1: int
    radius1: float
    neighbours1: int
    centres2: int
    radius2: float
    neighbours2: int
    dropout: float  # in the head

    def __post_init__(self) -> None:
        if self.centres2 > self.centres1:
            raise InputError(f"the second level samples the first: {self.centres2} of {self.centres1} is too many")

    @property
    def balls(self) -> tuple[Ball, Ball]:
        return (
            Ball(self.centres1, self.radius1, self.neighbours1),
            Ball(self.centres2, self.radius2, self.neighbours2),
        )

    def levels(self) -> tuple[SetAbstraction, SetAbstraction, SetAbstraction]:
        """Set abstraction from points to one vector; widths in units of `width`: 1-1-2, 2-2-4, 4-8-16."""
        (first, second), w = self.balls, self.width
        return (
            SetAbstraction(first, 0, (w, w, 2 * w)),
            SetAbstraction(second, 2 * w, (2 * w, 2 * w, 4 * w)),
            SetAbstraction(None, 4 * w, (4 * w, 8 * w, 16 * w)),
        )


TEACHER = PointNet2Sizes(
    width=64,
    centres1=512,
    radius1=0.2,
    neighbours1=32,
    centres2=128,
    radius2=0.4,
    neighbours2=64,
    dropout=0.4,
)
STUDENT = replace(TEACHER, width=32, centres1=256, neighbours1=16, centres2=64, neighbours2=32)
# Fewer centres with larger radii, for shapes that differ at a coarse scale.
LITE_TEACHER = replace(
    TEACHER, width=32, centres1=64, radius1=0.3, neighbours1=16, centres2=16, radius2=0.6, neighbours2=16
)
LITE_STUDENT = replace(LITE_TEACHER, width=16, neighbours1=8, neighbours2=8)
