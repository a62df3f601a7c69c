"""What an experiment requires of a site, and the noise that a site's policy demands of an experiment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from fedstill.core.noise import StepNoise
from fedstill.core.settings import Settings


@dataclass(frozen=True)
class Terms:
    """What an experiment requires of a site, beside the lines of its manifest."""

    method: str
    rounds: int
    samples: int  # the fewest behind a reply: of training or test data
    class_samples: int  # the fewest of one class that there are samples of
    noise: float | None = None  # deviation of the noise in each reply, in units of the clip; None: there is none
    clip: float | None = None  # norm to which updates are clipped
    secure: bool = False  # whether the server sees only sums
    sites: int = 1  # the fewest sites in a sum that the server sees
    colluding: int | None = None  # where the noise is in sums: how many sites may give theirs away; None: in replies
    steps: StepNoise | None = None  # noise in each step of training here; None: there is none


class PrivacyDemand(Settings):
    """The noise that a site demands."""

    level: Literal["client", "record"] = Field(
        "client",
        description="client: noise in replies hides all data of this site; record: noise in steps of training hides one"
        " record",
    )
    noise: float | None = Field(
        None, gt=0, description="least deviation of the noise in a reply, or in a step, in units of the clip"
    )
    clip: float | None = Field(None, gt=0, description="largest norm of an update, or of one record's gradient")
    epsilon: float | None = Field(None, gt=0, description="most that all models sent may reveal to the server")
    delta: float = Field(1e-5, gt=0, lt=1, description="delta of that epsilon")
    colluding: int | None = Field(
        None,
        ge=0,
        description="accept noise in sums over sites, if it suffices when so many of the others tell the server theirs;"
        " unset: the noise must be in this site's own replies",
    )

    @field_validator("*", mode="before")
    @classmethod
    def _no_switches(cls, value: Any) -> Any:
        return no_switch(value)

    @model_validator(mode="after")
    def _steps_hold_alone(self) -> PrivacyDemand:
        if self.level == "record" and self.colluding is not None:
            raise ValueError(
                "colluding is for noise in sums over sites: leave it out with level: record, where each site's own"
                " noise suffices"
            )
        return self

    def refusal(self, terms: Terms) -> str | None:
        return self._refusal_of_steps(terms.steps) if self.level == "record" else self._refusal_of_replies(terms)

    def _refusal_of_steps(self, steps: StepNoise | None) -> str | None:
        if steps is None:
            return (
                "its policy requires noise in every step of training (privacy=record-level), and the experiment adds"
                " none"
            )
        if self.noise is not None and steps.deviation < self.noise:
            has = f"and the experiment has {steps.deviation:g}"
            return f"its policy requires noise of at least {self.noise:g} in each step of training, {has}"
        if self.clip is not None and steps.clip > self.clip:
            return (
                f"its policy requires the gradient of each record clipped to {self.clip:g}, and the experiment clips to"
                f" {steps.clip:g}"
            )
        return None

    def _refusal_of_replies(self, terms: Terms) -> str | None:
        if terms.noise is None and terms.steps is not None:
            return (
                "its policy requires noise in what leaves (privacy=client-level with where=client, or"
                " privacy=distributed with secure=true), and the experiment has it in steps of training: `level:"
                " record` under `privacy` would demand that instead"
            )
        if terms.noise is None:
            return (
                "its policy requires noise at the site (privacy=client-level with where=client, or privacy=distributed"
                " with secure=true), and the experiment adds none"
            )
        if terms.colluding is not None and self.colluding is None:
            return (
                "its policy requires noise in its own replies, and the experiment has it in sums over sites: write"
                " `colluding` under `privacy` to accept that"
            )
        if terms.colluding is not None and self.colluding is not None and terms.colluding < self.colluding:
            return (
                f"its policy assumes {self.colluding} sites that work with the server, and the experiment"
                f" {terms.colluding} (privacy.colluding)"
            )
        if self.noise is not None and terms.noise < self.noise:
            has = f"and the experiment has {terms.noise:g}"
            return f"its policy requires noise of at least {self.noise:g} in each reply, {has}"
        if self.clip is not None and (terms.clip is None or terms.clip > self.clip):
            return f"its policy requires updates clipped to {self.clip:g}, and the experiment clips to {terms.clip:g}"
        return None


def no_switch(value: Any) -> Any:
    """Refuse `yes` and `no`, which would count as the numbers 1 and 0."""
    if isinstance(value, bool):
        raise ValueError("write a value, and not yes or no")
    return value
