"""Settings of secure aggregation."""

from __future__ import annotations

from math import floor
from typing import ClassVar, Literal

from pydantic import Field

from fedstill.methods.wrappers.choices import Aggregation

LEAST = 3  # clients of a sum that hides anything: of two, each finds the other's part by subtracting its own


class SumSettings(Aggregation):
    """The numbers that are added up, and how many clients must be there for it."""

    masks: ClassVar[bool] = False

    clip: float = Field(64.0, gt=0, le=2**20, description="largest change of a weight that is sent; more is clipped")
    bits: int = Field(32, ge=8, le=48, description="fractional bits of that change: it is rounded to 2^-bits")
    norm: float | None = Field(
        None, gt=0, description="a client whose own update is longer (L2 norm) sends none; unset: no limit"
    )
    reports: Literal["sums", "clear", "off"] = Field(
        "sums",
        description="losses and numbers of steps: added up with the rest, in the clear from each client, or not sent",
    )
    threshold: Literal["majority", "two-thirds"] = Field(
        "majority",
        description="how many of the n clients must help to take masks off: majority, floor(n/2) + 1; two-thirds,"
        " floor(2n/3) + 1, against clients that collude with the server",
    )
    least: int = Field(2, ge=2, description="fewest clients in a sum: with fewer, clients do not sign the list of them")

    def needed(self, clients: int) -> int:
        """The threshold if so many clients are asked, and no fewer than `least`: with fewer, a round is skipped.

        >>> [SumSettings().needed(n) for n in (3, 4, 5)]
        [2, 3, 3]
        >>> [SumSettings(threshold="two-thirds").needed(n) for n in (3, 4, 5)]
        [3, 3, 4]
        """
        share = floor(clients / 2) if self.threshold == "majority" else floor(2 * clients / 3)
        return max(share + 1, self.least)


class MaskSettings(SumSettings):
    """The numbers that are added up, masked, and who must be there to take the masks off."""

    masks: ClassVar[bool] = True
