"""Rules that decide which classes a model knows, from its outputs on noise.

*Query-Based Knowledge Transfer for Heterogeneous Learning Environments*, Alballa et al., 2025,
https://arxiv.org/abs/2504.09205, Equation 2, for `threshold`; `gap` is ours.

    p_i(c)      a model's probability of class c on noise sample i
    threshold   c is known if  mean_i p_i(c) >= threshold
    gap         l(c) = mean_i log p_i(c); over classes in descending order of l, cut at the largest difference between
                neighbours; the classes above the cut are known. If that difference is below `least_gap`, all are.

The probability that a confident model gives to its second and third class on noise can be far below any fixed
threshold, but is still orders of magnitude above that of classes it never saw: their logits were only ever pushed down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import floor, inf, isfinite, isnan, log10, nan
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedstill.core.numbers import listed
from fedstill.core.settings import Settings

UNMATCHED = "unmatched"  # in a client's state: the queried classes that no peer knows, see `as_table`
RuleName = Literal["threshold", "gap"]
THRESHOLD, LEAST_GAP = 0.01, 1.5  # as published; chosen by the F1 score on seeds that no table reports
RULES: tuple[RuleName, ...] = ("threshold", "gap")


class ProbeSettings(Settings):
    """The probe by which a client selects peers as teachers."""

    probe_rule: RuleName = Field(
        "gap",
        description="how a probe decides which classes a model knows: gap cuts its classes at the largest gap in mean"
        " log-probability on noise; threshold, as published, takes those with a mean probability of at least"
        " `threshold`, and is meant wherever a threshold is set",
    )
    threshold: float = Field(
        THRESHOLD,
        ge=0,
        le=1,
        description="of the rule threshold: smallest probability of a class on noise for it to count as known",
    )
    least_gap: float = Field(
        LEAST_GAP,
        ge=0,
        description="of the rule gap: smallest gap, in nats, that separates known from unknown classes; below it all"
        " classes count as known",
    )
    noise: int = Field(20, ge=1, description="number of noise samples for the probe")

    @model_validator(mode="before")
    @classmethod
    def _implied_rule(cls, given: Any) -> Any:
        """A threshold without a rule, as in runs of earlier releases, is one of the rule threshold."""
        if not isinstance(given, Mapping) or "probe_rule" in given or "threshold" not in given:
            return given
        if "least_gap" in given:
            raise ValueError("threshold and least_gap belong to different rules: set probe_rule to threshold or gap")
        return {**given, "probe_rule": "threshold"}

    @property
    def rule(self) -> ProbeRule:
        return ProbeRule(self.probe_rule, self.threshold, self.least_gap)


@dataclass(frozen=True)
class NoiseOutputs:
    """A model's outputs on noise: the mean probability of each class, and its mean log-probability."""

    probabilities: Tensor
    log_probabilities: Tensor

    @classmethod
    def of(cls, log_probabilities: Tensor) -> NoiseOutputs:
        """From the log-probabilities of every noise sample."""
        each = log_probabilities.double()
        return cls(each.exp().mean(dim=0), each.mean(dim=0))


@dataclass(frozen=True)
class ProbeRule:
    """Decides which classes a model knows.

    >>> outputs = NoiseOutputs.of(torch.tensor([[0.996, 0.0039, 0.0001]]).log())
    >>> ProbeRule("threshold").known(outputs).tolist(), ProbeRule("gap").known(outputs).tolist()
    ([True, False, False], [True, False, False])
    >>> outputs = NoiseOutputs.of(torch.tensor([[0.996, 0.0039, 1e-9]]).log())
    >>> ProbeRule("threshold").known(outputs).tolist(), ProbeRule("gap").known(outputs).tolist()
    ([True, False, False], [True, True, False])
    """

    name: RuleName = "gap"
    threshold: float = THRESHOLD
    least_gap: float = LEAST_GAP

    def known(self, outputs: NoiseOutputs) -> Tensor:
        """One flag for each class; none for a model whose outputs are not numbers."""
        if self.name == "threshold":
            return outputs.probabilities >= self.threshold
        return known_by_gap(outputs.log_probabilities, self.least_gap)

    def scores(self, outputs: NoiseOutputs) -> Tensor:
        """The values that the rule compares: probabilities, or log-probabilities."""
        return outputs.probabilities if self.name == "threshold" else outputs.log_probabilities

    def admits(self, outputs: NoiseOutputs, query: Iterable[int]) -> bool:
        """Whether the model knows a queried class."""
        known = self.known(outputs)
        return any(bool(known[number]) for number in query)

    def bound(self, outputs: NoiseOutputs, number: int) -> float:
        """The value of the rule's setting from which on it counts this class as known; NaN if no value does.

        Of `threshold` it is the largest such value, of `least_gap` the smallest, to three digits.
        """
        score = float(self.scores(outputs)[number])
        if bool(self.scores(outputs).isnan().any()):
            return nan
        if self.name == "threshold":
            return _three_digits(score)
        gap, _ = largest_gap(outputs.log_probabilities)
        return _three_digits(gap, above=True) if isfinite(score) and isfinite(gap) else nan

    @property
    def setting(self) -> str:
        """The name of the rule's setting."""
        return "threshold" if self.name == "threshold" else "least_gap"

    @property
    def value(self) -> float:
        return self.threshold if self.name == "threshold" else self.least_gap


def known_by_gap(scores: Tensor, least_gap: float) -> Tensor:
    """The classes above the largest gap; all of them if it is below `least_gap`, none if a score is not a number.

    >>> known_by_gap(torch.tensor([-9.0, -0.1, -4.0, -12.0]), 2.0).tolist()  # gaps of 3.9, 5 and 3
    [False, True, True, False]
    >>> known_by_gap(torch.tensor([-1.5, -1.2, -1.6]), 2.0).tolist()
    [True, True, True]
    """
    if bool(scores.isnan().any()) or not bool(scores.isfinite().any()):
        return torch.zeros(len(scores), dtype=torch.bool)
    gap, lowest = largest_gap(scores)
    return scores >= lowest if gap >= least_gap else torch.ones(len(scores), dtype=torch.bool)


def largest_gap(scores: Tensor) -> tuple[float, float]:
    """The largest difference between neighbours in descending order, and the score just above it.

    Of equal gaps the lowest counts, which leaves more classes above it. Classes at minus infinity do not differ from
    each other. A single class has no gap: zero, below it.

    >>> largest_gap(torch.tensor([0.0, -3.0, -6.0])), largest_gap(torch.tensor([0.0, -float("inf"), -float("inf")]))
    ((3.0, -3.0), (inf, 0.0))
    """
    order = scores.double().sort(descending=True).values
    if len(order) < 2:
        return 0.0, -inf
    gaps = torch.where(order[:-1] == order[1:], 0.0, order[:-1] - order[1:])
    last = int(torch.nonzero(gaps == gaps.max())[-1])
    return float(gaps[last]), float(order[last])


@dataclass(frozen=True)
class NearMiss:
    """A peer that does not know a queried class by the rule, and the value of its setting that would admit it."""

    number: int  # the class
    peer: int
    score: float
    bound: float


def near_misses(rule: ProbeRule, outputs: Mapping[int, NoiseOutputs], number: int, most: int = 3) -> list[NearMiss]:
    """The peers nearest to knowing a class, the nearest first; empty if a peer knows it.

    >>> outputs = {4: NoiseOutputs.of(torch.tensor([[0.9961, 0.0039]]).log())}
    >>> near_misses(ProbeRule("threshold"), outputs, 1)
    [NearMiss(number=1, peer=4, score=0.0039..., bound=0.0039)]
    >>> [round(one.bound, 2) for one in near_misses(ProbeRule("gap"), outputs, 1)]  # log(0.9961 / 0.0039) is 5.543
    [5.55]
    """
    if any(bool(rule.known(one)[number]) for one in outputs.values()):
        return []
    found = [
        NearMiss(number, peer, float(rule.scores(one)[number]), rule.bound(one, number))
        for peer, one in outputs.items()
    ]
    upwards = 1 if rule.name == "gap" else -1
    return sorted((one for one in found if not isnan(one.bound)), key=lambda one: upwards * one.bound)[:most]


def unmatched(rule: ProbeRule, outputs: Mapping[int, NoiseOutputs], query: Iterable[int]) -> dict[int, list[NearMiss]]:
    """The queried classes that none of these peers knows, each with the peers that come nearest to it."""
    return {
        number: near_misses(rule, outputs, number)
        for number in query
        if not any(bool(rule.known(one)[number]) for one in outputs.values())
    }


def as_table(missing: Mapping[int, Sequence[NearMiss]]) -> Tensor:
    """Classes without a teacher as a client's state has them: rows of class, peer, score and bound; no peer is -1."""
    rows = [
        (number, one.peer, one.score, one.bound)
        for number, nearest in missing.items()
        for one in (nearest or [NearMiss(number, -1, nan, nan)])
    ]
    return torch.tensor(rows, dtype=torch.float64).reshape(-1, 4)


def noted(state: Mapping[str, Tensor], missing: Mapping[int, Sequence[NearMiss]]) -> dict[str, Tensor]:
    """A client's state with the classes without a teacher, in place of earlier ones; no entry if there are none."""
    kept = {name: tensor for name, tensor in state.items() if name != UNMATCHED}
    return {**kept, UNMATCHED: as_table(missing)} if missing else kept


def from_table(rows: Tensor) -> dict[int, list[NearMiss]]:
    """The inverse of `as_table`.

    >>> missing = {7: [NearMiss(7, 4, -9.0, 5.2), NearMiss(7, 1, -9.5, 6.0)], 8: []}
    >>> from_table(as_table(missing)) == missing
    True
    """
    missing: dict[int, list[NearMiss]] = {}
    for number, peer, score, bound in rows.tolist():
        nearest = missing.setdefault(int(number), [])
        if peer >= 0:
            nearest.append(NearMiss(int(number), int(peer), score, bound))
    return missing


def no_teacher(rule: ProbeRule, wanted: str, nearest: Sequence[NearMiss], name: Callable[[int], str] = str) -> str:
    """Why no peer teaches a class: the rule, the nearest peers with their scores, and the setting that admits one.

    `name` gives what a peer is called.

    >>> no_teacher(ProbeRule("threshold"), "deer", [NearMiss(7, 4, 0.0081, 0.0081)])
    'no peer passed the probe (rule threshold, threshold 0.01) for "deer"; the nearest is peer 4 at 0.0081; \
threshold=0.0081 would admit peer 4'
    """
    start = f'no peer passed the probe (rule {rule.name}, {rule.setting} {rule.value:g}) for "{wanted}"'
    if not nearest:
        return f"{start}; no value of {rule.setting} would admit one"
    what = "" if rule.name == "threshold" else "a mean log-probability of "
    each = [
        f"peer {name(one.peer)} at {what}{one.score:.3g}"
        + ("" if rule.name == "threshold" else f" (gap {one.bound:.3g})")
        for one in nearest
    ]
    verb = "is" if len(each) == 1 else "are"
    return (
        f"{start}; the nearest {verb} {listed(each)}; {rule.setting}={nearest[0].bound:g} would admit peer"
        f" {name(nearest[0].peer)}"
    )


def _three_digits(value: float, above: bool = False) -> float:
    """The largest number of three digits up to this one, or the smallest above it.

    >>> _three_digits(0.0041237), _three_digits(3.14, above=True), _three_digits(0.0)
    (0.00412, 3.15, 0.0)
    """
    if value == 0:
        return 1e-6 if above else 0.0
    digits = 2 - floor(log10(abs(value)))
    return float(round((floor(value * 10**digits) + above) / 10**digits, digits))
