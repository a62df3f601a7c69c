"""Settings of ensemble distillation, with the number of steps in a round and the rounds in which weights are sent."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from pydantic import Field

from fedstill.shared_image.proxy_selection import Selection
from fedstill.shared_image.shared_samples import LogitSettings, Statistics, StepSettings, rate_field, statistics_field
from fedstill.shared_image.teacher_weights import TeacherWeighting

_RESTART = 5  # rounds between restarts of the cosine schedule


class EnsembleSettings(StepSettings, LogitSettings):
    """Statistics and rate were chosen on validation data, by the recipe `image-statistics`."""

    rate: float = rate_field(0.001)
    statistics: Statistics = statistics_field("frozen")
    weights: TeacherWeighting = Field(
        "samples",
        description="weight of each client's logits in the average: its number of samples; equal weights; samples times"
        " its confidence in each proxy sample; or its samples of each class, which it then sends",
    )
    initialise: float = Field(
        1.0,
        gt=0,
        le=1,
        description="fraction of rounds in which clients also send weights, from which the server's model starts",
    )
    averaging: Literal["intervals", "multiples"] = Field(
        "intervals",
        description="which rounds those are: at 0.2, rounds 1, 6, 11, ...; or 1, 5, 10, ..., as in the paper's code",
    )
    selection: Selection | None = Field(
        None, description="select each round's proxy samples by the model's outputs on them"
    )
    selector: Literal["first", "best"] = Field(
        "first",
        description="with several architectures, whose model selects: that of the first, or the one with the best"
        " validation accuracy",
    )
    schedule: Literal["uniform", "growing", "cosine"] = Field(
        "uniform",
        description="the same number of steps in every round; growing from half of them to all in the last round; or"
        " falling to half of them along a cosine that restarts in every fifth round",
    )
    mu: float = Field(0.0, ge=0, description="weight of FedProx's proximal term towards the round's model; 0: none")
    proximal: Literal["distance", "sum-as-released"] = Field(
        "distance",
        description="FedProx's term: the squared distance; sum-as-released: the squared sum of differences, by a fault"
        " of the released code",
    )
    objective: str = Field("vanilla", description="distillation loss of the server's model; one that needs only logits")
    clip_logits: float | None = Field(
        None,
        gt=0,
        description="in the losses of clients and server, scale logits to this norm if theirs exceeds its reciprocal;"
        " the paper's code has 2.5",
    )
    keep: Literal["last", "best-step"] = Field(
        "last",
        description="the model that a distillation ends with: that of the last step; or the best by validation accuracy"
        " after the first step, every `validate_every` steps and the last",
    )
    validate_every: int = Field(50, ge=1, description="steps between validations, with keep=best-step")
    replace: Literal["always", "if-not-worse"] = Field(
        "always",
        description="when a distilled model replaces the one that it started from: always, or if its validation"
        " accuracy is not lower",
    )
    downlink: Literal["model", "logits"] = Field(
        "model",
        description="what the server sends: the model; or averaged logits, if clients can compute the model from them",
    )

    added_later: ClassVar[frozenset[str]] = frozenset(
        {"averaging", "selector", "proximal", "clip_logits", "keep", "validate_every", "replace"}
    )

    @property
    def judges(self) -> bool:
        """Whether the server compares models during or after a distillation."""
        return self.keep == "best-step" or self.replace == "if-not-worse"

    def initialises(self, round: int) -> bool:
        """Whether clients send weights in this round, counted from zero.

        >>> [round + 1 for round in range(15) if EnsembleSettings(initialise=0.2).initialises(round)]
        [1, 6, 11]
        >>> released = EnsembleSettings(initialise=0.2, averaging="multiples")
        >>> [round + 1 for round in range(15) if released.initialises(round)]
        [1, 5, 10, 15]
        """
        number = round + (self.averaging == "multiples")
        due = [int(one * self.initialise + 1e-9) for one in (number - 1, number)]
        return round == 0 or due[0] < due[1]


def steps_in(settings: EnsembleSettings, number: int, rounds: int) -> int:
    """The number of steps in a round, numbered from zero; growing, 30 rounds take 3/4 of a uniform schedule.

    >>> growing = EnsembleSettings(steps=500, schedule="growing")
    >>> [steps_in(growing, round, 30) for round in (0, 29)], sum(steps_in(growing, round, 30) for round in range(30))
    ([250, 500], 11250)
    >>> steps_in(EnsembleSettings(steps=500), 0, 30)
    500

    The cosine is that of the paper's code: all steps in rounds 1, 5, 10, ..., half of them in rounds 4, 9, ...; rounds
    2 to 4 belong to a period that would have begun with a round 0.

    >>> cosine = EnsembleSettings(steps=500, schedule="cosine")
    >>> [steps_in(cosine, round, 30) for round in range(10)]
    [500, 375, 286, 250, 500, 463, 375, 286, 250, 500]
    >>> sum(steps_in(cosine, round, 30) for round in range(30))
    11281
    """
    if settings.schedule == "uniform":
        return settings.steps
    if settings.schedule == "growing":
        progress = number / max(rounds - 1, 1)
        return max(1, round(settings.steps * (1 + progress) / 2))
    since = 0 if number == 0 else (number + 1) % _RESTART
    least = settings.steps / 2
    return max(1, int(least + (settings.steps - least) / 2 * (1 + math.cos(math.pi * since / (_RESTART - 1)))))
