"""The settings of patches of one shared image or cloud."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from fedstill.core.settings import Settings

Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
Range = tuple[Positive, Positive]


class PatchSettings(Settings):
    """A pool of patches; client and server that agree on these settings and on the image have the same pool.

    Defaults are those of "Extrapolating from a Single Image to a Thousand Classes using Distillation",
    https://arxiv.org/abs/2112.00725, as the single-image federation uses them.
    """

    count: int = Field(10_000, ge=1, le=2**31 - 1, description="patches in the pool")
    seed: int = Field(0, ge=0, description="seed of the pool; patch i depends on it and on i")
    area: tuple[Share, Share] = Field(
        (1 / 500, 1.0), description="fraction of the first crop that the second one covers, uniform in this range"
    )
    ratio: Range = Field((3 / 4, 4 / 3), description="aspect ratio of the second crop, log-uniform in this range")
    rotation: float = Field(
        30.0, ge=0, le=180, description="largest rotation of a patch, in degrees, in either direction"
    )
    shear: float = Field(30.0, ge=0, le=60, description="largest shear of a patch, in degrees, in either direction")
    flip: Share = Field(0.5, description="probability that a patch is mirrored")
    jitter: tuple[Share, Share, Share, Annotated[float, Field(ge=0, le=0.5)]] = Field(
        (0.4, 0.4, 0.4, 0.1), description="largest change of brightness, contrast, saturation and hue"
    )
    jitter_probability: Share = Field(0.5, description="probability that the colours of a patch change")
    cloud_scale: Range = Field((0.8, 1.25), description="clouds: scale of each axis, uniform in this range")
    cloud_noise: float = Field(
        0.01,
        ge=0,
        le=1,
        description="clouds: standard deviation of coordinate noise, as a fraction of the patch's radius",
    )

    @model_validator(mode="after")
    def _ordered(self) -> PatchSettings:
        for name in ("area", "ratio", "cloud_scale"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"{name} must be given as lowest, highest, not {low:g}, {high:g}")
        if self.area[0] == 0:
            raise ValueError("area must begin above 0: a crop of nothing shows nothing")
        return self
