"""Shared base of the four objectives that add a feature term to soft targets, and the weight of that term."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from fedstill.core.settings import Settings
from fedstill.distillation.logits import soft_targets
from fedstill.distillation.objective import Lesson, Objective, Softened, Terms

SEED_BETA = 0.5


class IntermediateSettings(Softened):
    """Weights of the three terms, and the temperature of the soft targets."""

    beta: Literal["seed", "reference"] | Annotated[float, Field(ge=0)] = Field(
        "seed",
        description="beta: weight of the terms on features: `seed` (0.5), `reference` (as in public code) or a number",
    )


class Intermediate(Objective):
    """(1-a-b) CE + a T^2 KL + b (feature term); at the default a = b = 0.5 the labels have weight zero.

    `beta: seed` is 0.5. The feature terms are means of squares of normalised numbers, about 1e-3 to 1e-4, beside soft
    targets of about 1, so their contribution is negligible. `beta: reference` uses the weights of public collections
    (https://github.com/HobbitLong/RepDistiller, https://github.com/megvii-research/mdistiller), together with the terms
    that these weights multiply there: each objective documents what changes.

    It does not adopt their sum, which is CE at weight 1 without soft targets: this would add labels to an objective
    that is used because it has none. A reference weight is not a fraction of one, so the labels keep the weight they
    have with `beta: seed`, 1 - a - 0.5. No weight is ever negative.
    """

    Options: ClassVar[type[Settings]] = IntermediateSettings
    settings: IntermediateSettings
    compares_features = True

    @abstractmethod
    def from_features(self, lesson: Lesson) -> Terms:
        """The weighted feature terms."""

    def from_teacher(self, lesson: Lesson) -> Terms:
        alpha, temperature = self.settings.alpha, self.settings.temperature
        soft = alpha * soft_targets(*lesson.log_probabilities, temperature)
        return {"soft-targets": soft, **self.from_features(lesson)}

    def label_weight(self) -> float:
        # Rounded, because 1 - 0.7 - 0.3 is 5e-17 and the labels would be read for nothing.
        return round(max(0.0, 1 - self.settings.alpha - self.beta(reference=SEED_BETA)), 12)

    @property
    def as_reference(self) -> bool:
        return self.settings.beta == "reference"

    def beta(self, reference: float) -> float:
        """The weight of a term whose public weight is `reference`."""
        if self.settings.beta == "seed":
            return SEED_BETA
        return reference if self.settings.beta == "reference" else self.settings.beta
