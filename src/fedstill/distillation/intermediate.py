"""What the four objectives share that add a term on features to soft targets, and how that term is weighed."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from fedstill.core.settings import Settings
from fedstill.distillation.logits import soft_targets
from fedstill.distillation.objective import Lesson, Objective, Softened, Terms

SEED_BETA = 0.5


class IntermediateSettings(Softened):
    """Weights of the three terms, and the temperature of one of them."""

    beta: Literal["seed", "reference"] | Annotated[float, Field(ge=0)] = Field(
        "seed",
        description="beta: weight of the terms on features: `seed` (0.5), `reference` (as in public code) or a number",
    )


class Intermediate(Objective):
    """(1-a-b) CE + a T^2 KL + b (something on features); at the seed's a = b = 0.5 the labels have no say.

    `beta: seed` is 0.5. The terms are means of squares of normalised numbers, some 1e-3 to 1e-4, beside soft targets
    of about 1, so that they weigh next to nothing. `beta: reference` takes the weights of public collections
    (https://github.com/HobbitLong/RepDistiller, https://github.com/megvii-research/mdistiller), together with what
    these weights multiply there: each objective says what that changes.

    What it does not take over is their sum, which is CE at weight 1 and no soft targets: labels would come back into
    an objective that is used because it has none. A reference weight is no share of a sum of one, so the labels keep
    the weight they have at the seed's beta, 1 - a - 0.5. No weight is ever negative.
    """

    Options: ClassVar[type[Settings]] = IntermediateSettings
    settings: IntermediateSettings
    compares_features = True

    @abstractmethod
    def from_features(self, lesson: Lesson) -> Terms:
        """The terms on features, weighted."""

    def from_teacher(self, lesson: Lesson) -> Terms:
        alpha, temperature = self.settings.alpha, self.settings.temperature
        soft = alpha * soft_targets(*lesson.logits, temperature)
        return {"soft-targets": soft, **self.from_features(lesson)}

    def label_weight(self) -> float:
        # Rounded, because 1 - 0.7 - 0.3 is 5e-17 and would read the labels for nothing.
        return round(max(0.0, 1 - self.settings.alpha - self.beta(reference=SEED_BETA)), 12)

    @property
    def as_reference(self) -> bool:
        return self.settings.beta == "reference"

    def beta(self, reference: float) -> float:
        """The weight of a term whose public weight is `reference`."""
        if self.settings.beta == "seed":
            return SEED_BETA
        return reference if self.settings.beta == "reference" else self.settings.beta
