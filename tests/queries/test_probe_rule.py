"""Which classes a model knows, by its outputs on noise: both rules against plain loops, and their corners."""

from __future__ import annotations

from math import exp, inf, isnan, log, nan

import numpy as np
import pytest
import torch
from torch import Tensor

from fedstill.core.errors import InputError
from fedstill.core.settings import make_settings
from fedstill.queries.clue import ClueSettings
from fedstill.queries.probe_rule import NoiseOutputs, ProbeRule, near_misses, no_teacher, unmatched
from fedstill.queries.qkt import NaiveSettings, QKTSettings
from fedstill.queries.qkt_light import LightSettings


def outputs(*rows: list[float]) -> NoiseOutputs:
    """From probabilities of noise samples."""
    return NoiseOutputs.of(torch.tensor(rows, dtype=torch.float64).log())


def by_loops(each: list[list[float]], least: float) -> list[bool]:
    """The rule gap, sample by sample and cut by cut, without torch."""
    classes = len(each[0])
    scores = [sum(row[number] for row in each) / len(each) for number in range(classes)]
    order = sorted(scores, reverse=True)
    best, kept = -1.0, classes
    for above in range(1, classes):
        gap = order[above - 1] - order[above]
        if gap >= best:
            best, kept = gap, above
    if classes == 1 or best < least:
        return [True] * classes
    return [score >= order[kept - 1] for score in scores]


@pytest.mark.parametrize("seed", range(40))
def test_the_gap_by_loops(seed: int) -> None:
    """Random log-probabilities of 1 to 9 classes, spread by little or by much; perturbed by 1e-8, the same classes."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(scale=generator.choice([0.5, 3.0, 20.0]), size=(1, 1 + seed % 9))
    logits = logits + generator.normal(scale=0.3, size=(5, logits.shape[1]))
    each = torch.from_numpy(logits).log_softmax(dim=1)
    for least in (0.0, 1.0, 4.0):
        expected = by_loops(each.tolist(), least)
        rule = ProbeRule("gap", least_gap=least)
        assert rule.known(NoiseOutputs.of(each)).tolist() == expected
        noisy = each + 1e-8 * torch.from_numpy(generator.normal(size=tuple(each.shape)))
        assert rule.known(NoiseOutputs.of(noisy)).tolist() == expected


def test_it_is_the_mean_of_logs_that_counts() -> None:
    """A class with 0.4 on one sample and nothing on the other has a mean of 0.2 but a mean log below the cut."""
    found = outputs([0.6, 0.4 - 1e-12, 1e-12], [1 - 2e-12, 1e-12, 1e-12])
    assert float(found.probabilities[1]) == pytest.approx(0.2)
    assert float(found.log_probabilities[1]) == pytest.approx((log(0.4) + log(1e-12)) / 2, abs=1e-6)
    assert ProbeRule("threshold").known(found).tolist() == [True, True, False]
    assert ProbeRule("gap").known(found).tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("scores", "known"),
    [
        ([-0.1], [True]),  # one class has no gap
        ([-0.01, -5.0], [True, False]),
        ([-0.5, -0.9], [True, True]),  # the gap of two classes is below the least
        ([0.0, -3.0, -6.0], [True, True, False]),  # equal gaps: the lower one
        ([-1.0, -1.0, -9.0, -9.0], [True, True, False, False]),
        ([-1.0] * 4, [True] * 4),
        ([-0.2, -inf, -1.8, -inf], [True, False, True, False]),
        ([0.0, -inf], [True, False]),
        ([-inf, -inf], [False, False]),  # no distribution
        ([nan, -1.0, -9.0], [False] * 3),
        ([nan] * 3, [False] * 3),
    ],
    ids=str,
)
def test_corners_of_the_gap(scores: list[float], known: list[bool]) -> None:
    logs = torch.tensor(scores, dtype=torch.float64)
    assert ProbeRule("gap", least_gap=2.0).known(NoiseOutputs(logs.exp(), logs)).tolist() == known


def test_models_that_give_no_numbers_know_nothing() -> None:
    nothing = NoiseOutputs.of(torch.full((20, 3), nan))
    for name in ("threshold", "gap"):
        assert not ProbeRule(name).known(nothing).any()
        assert near_misses(ProbeRule(name), {4: nothing}, 1) == []
        sentence = no_teacher(ProbeRule(name), "deer", [])
        assert "no value of" in sentence


def peers() -> dict[int, NoiseOutputs]:
    def said(*logs: float) -> NoiseOutputs:
        tensor: Tensor = torch.tensor(logs, dtype=torch.float64)
        return NoiseOutputs(tensor.exp(), tensor)

    return {
        1: said(-0.01, -7.0, -20.0),
        2: said(-0.02, -5.0, -13.0),
        5: said(-0.01, -30.0, -6.0),
        6: NoiseOutputs.of(torch.full((2, 3), nan)),
    }


@pytest.mark.parametrize("name", ["threshold", "gap"])
def test_the_nearest_peer_is_admitted_by_the_setting_that_is_named_and_not_by_the_one_before(name: str) -> None:
    rule = ProbeRule("threshold") if name == "threshold" else ProbeRule("gap", least_gap=2.0)
    others = {number: one for number, one in peers().items() if name == "threshold" or number != 5}
    number = 1 if name == "threshold" else 2
    found = near_misses(rule, others, number)
    assert [one.peer for one in found] == [2, 1, 5][: len(others) - 1]
    for one in found:
        changed = {"threshold": one.bound} if name == "threshold" else {"least_gap": one.bound}
        barely = {key: value * (1.02 if name == "threshold" else 0.98) for key, value in changed.items()}
        assert ProbeRule(rule.name, **changed).admits(others[one.peer], [number])
        assert not ProbeRule(rule.name, **barely).admits(others[one.peer], [number])
    sentence = no_teacher(rule, "deer", found)
    assert f"rule {name}" in sentence
    assert "peer 2 at" in sentence
    assert f"{rule.setting}={found[0].bound:g} would admit peer 2" in sentence


def test_only_classes_without_a_teacher_are_named() -> None:
    found = unmatched(ProbeRule("threshold"), peers(), [0, 1, 2])
    assert list(found) == [1, 2]
    assert [one.peer for one in found[2]] == [5, 2, 1]
    assert found[2][0].score == pytest.approx(exp(-6))
    assert unmatched(ProbeRule("gap"), peers(), [0, 1]) == {}


def test_a_class_at_minus_infinity_is_admitted_by_no_least_gap() -> None:
    never = outputs([0.9, 0.1, 0.0])
    assert isnan(ProbeRule("gap").bound(never, 2))
    assert ProbeRule("threshold").bound(never, 2) == 0.0


@pytest.mark.parametrize("kind", [QKTSettings, LightSettings, NaiveSettings, ClueSettings])
def test_a_threshold_is_one_of_its_rule(kind: type[QKTSettings]) -> None:
    """Runs of earlier releases stored a threshold and no rule: they are read as what they were."""
    assert kind().probe_rule == "gap"
    assert kind(threshold=0.05).rule == ProbeRule("threshold", 0.05, kind().least_gap)
    assert kind(probe_rule="gap", threshold=0.05).probe_rule == "gap"
    assert kind.model_validate(kind(least_gap=3.0).model_dump()).probe_rule == "gap"
    assert "probe_rule" not in kind().hashed()
    assert kind(threshold=0.01).hashed()["probe_rule"] == "threshold"
    with pytest.raises(InputError, match="different rules: set probe_rule"):
        make_settings(kind, {"threshold": 0.05, "least_gap": 3.0}, "method")
    for wrong in ({"probe_rule": "largest"}, {"least_gap": -1}, {"least_gap": nan}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            make_settings(kind, wrong, "method")
