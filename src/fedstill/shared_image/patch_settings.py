"""What can be chosen about patches of one shared image or cloud."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from fedstill.core.settings import Settings

Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
Range = tuple[Positive, Positive]


class PatchSettings(Settings):
    """A pool of patches; client and server that agree on these and on the image hold the same pool.

    Defaults are those of "Extrapolating from a Single Image to a Thousand Classes using Distillation",
    https://arxiv.org/abs/2112.00725, as the single-image federation uses them.
    """

    count: int = Field(10_000, ge=1, le=2**31 - 1, description="patches in the pool")
    seed: int = Field(0, ge=0, description="seed of the pool; patch i depends on it and on i")
    area: tuple[Share, Share] = Field(
        (1 / 500, 1.0), description="share of the first crop that the second one covers, uniform between these"
    )
    ratio: Range = Field((3 / 4, 4 / 3), description="width by height of the second crop, log-uniform between these")
    rotation: float = Field(30.0, ge=0, le=180, description="degrees a patch is turned at most, either way")
    shear: float = Field(30.0, ge=0, le=60, description="degrees a patch is sheared at most, either way")
    flip: Share = Field(0.5, description="probability that a patch is mirrored")
    jitter: tuple[Share, Share, Share, Annotated[float, Field(ge=0, le=0.5)]] = Field(
        (0.4, 0.4, 0.4, 0.1), description="how much brightness, contrast, saturation and hue change at most"
    )
    jitter_probability: Share = Field(0.5, description="probability that the colours of a patch change")
    cloud_scale: Range = Field((0.8, 1.25), description="clouds: stretch of each axis, uniform between these")
    cloud_noise: float = Field(0.01, ge=0, le=1, description="clouds: noise of a coordinate, by the patch's radius")

    @model_validator(mode="after")
    def _ordered(self) -> PatchSettings:
        for name in ("area", "ratio", "cloud_scale"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"{name} must be given as lowest, highest, not {low:g}, {high:g}")
        if self.area[0] == 0:
            raise ValueError("area must begin above 0: a crop of nothing shows nothing")
        return self
