"""Augmentation of training batches, drawn anew for every batch. Test data is never augmented.

A custom augmentation is a settings class with a `__call__` and a registered name:

    @augmentations.register("jitter")
    class Jitter(Augmentation):
        '''One sentence for the lists.'''

        width: float = 0.01

        def __call__(self, batch, generator): ...
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field, model_validator

from fedstill.core.dataset import Batch
from fedstill.core.errors import InputError
from fedstill.core.numbers import listed
from fedstill.core.registry import Registry
from fedstill.core.settings import Settings


class Augmentation(Settings):
    """A named augmentation: its settings, with a call that changes a batch."""

    kinds: ClassVar[frozenset[str]] = frozenset()  # of data that it is for; empty: any

    def check(self, kind: str, shape: tuple[int, ...]) -> None:
        """Refuse data of a kind, with samples of a shape, that it cannot change."""
        if self.kinds and kind not in self.kinds:
            able = [name for name in augmentations if kind in augmentations[name].kinds]
            own, fitting = augmentations.name_of(type(self)), " or ".join([*able, "none"])
            raise InputError(
                f"the augmentation {own} is for {listed([f'{one}s' for one in sorted(self.kinds)])},"
                f" and this data holds {kind}s: choose augmentation={fitting}"
            )

    @abstractmethod
    def __call__(self, batch: Batch, generator: np.random.Generator) -> Batch:
        """The augmented batch; the input batch is not modified, and the generator is the only source of randomness."""


augmentations: Registry[type[Augmentation]] = Registry("augmentation")
augmentations.declare("fedstill.data.image_augmentation", "images")


@augmentations.register("none")
class NoAugmentation(Augmentation):
    """No augmentation."""

    def __call__(self, batch: Batch, generator: np.random.Generator) -> Batch:
        return batch


@augmentations.register("points")
class PointAugmentation(Augmentation):
    """Point-cloud augmentation: random point dropout, scaling and shift per cloud; no rotation.

    Per cloud: a dropout ratio U[0, `dropout`], and each point is dropped with that probability, that is, replaced by
    point 0, so that clouds keep their size; then one scale U[`scale_low`, `scale_high`] for all three axes; then a
    shift U[-`shift`, `shift`] along each axis.
    """

    kinds = frozenset({"cloud"})

    dropout: float = Field(0.875, ge=0, le=1, description="largest share of points to drop")
    scale_low: float = Field(0.8, gt=0, description="smallest scale")
    scale_high: float = Field(1.25, gt=0, description="largest scale")
    shift: float = Field(0.1, ge=0, description="largest shift along each axis")

    @model_validator(mode="after")
    def _ordered(self) -> PointAugmentation:
        if self.scale_low > self.scale_high:
            raise ValueError(f"scale_low ({self.scale_low}) must not be larger than scale_high ({self.scale_high})")
        return self

    def __call__(self, batch: Batch, generator: np.random.Generator) -> Batch:
        clouds = batch["inputs"]
        size, points, _ = clouds.shape
        # The draws and their order define the meaning of a stream: ratios, points, scales, shifts.
        ratio = generator.random((size, 1), dtype=np.float32) * np.float32(self.dropout)
        dropped = generator.random((size, points), dtype=np.float32) < ratio
        scale = generator.uniform(self.scale_low, self.scale_high, (size, 1, 1)).astype(np.float32)
        shift = generator.uniform(-self.shift, self.shift, (size, 1, 3)).astype(np.float32)
        device = clouds.device
        kept = torch.where(torch.from_numpy(dropped).unsqueeze(2).to(device), clouds[:, :1], clouds)
        places = kept[:, :, :3]  # normals behind them stay
        places.mul_(torch.from_numpy(scale).to(device)).add_(torch.from_numpy(shift).to(device))
        return {**batch, "inputs": kept}
