"""Record-level privacy in whole runs: what it equals, what it spends, what leaves, what is refused."""

from __future__ import annotations

from math import comb, exp, log
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats

from fedstill.core.errors import InputError
from fedstill.core.noise import StepNoise
from fedstill.engines import InProcess
from fedstill.methods.wrappers.privacy_accounting import records_epsilon, steps_epsilon
from fedstill.methods.wrappers.record_privacy import RecordLevel
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.egress_manifest import egress_manifest
from fedstill.runtime.plan import make_plan
from fedstill.runtime.run import execute
from fedstill.runtime.run_folder import RunFolder

SMALL: dict[str, Any] = {
    "method": "fedavg",
    "data": "digits[:8%]",
    "clients": 4,
    "rounds": 2,
    "model": "mlp",
    "seed": 3,
    "evaluate_every": 2,
    "training": {"epochs": 2, "batch": 8, "momentum": 0.0},
    "privacy": {"name": "record-level", "delta": 1e-3},
}


def plan_of(**settings: Any) -> Any:
    return make_plan(make_experiment({**SMALL, **settings}))


def ran(folder: Path, **settings: Any) -> RunFolder:
    return execute(plan_of(**settings), InProcess(), folder)


def model_of(run: RunFolder) -> dict[str, torch.Tensor]:
    (model,) = run.load_models("last").values()
    return dict(model)


def by_hand(noise: float, rate: float, steps: int, delta: float) -> float:
    """Rényi divergences of the sampled Gaussian at whole orders (Mironov, Talwar and Zhang, 2019, section 3.3)."""

    def divergence(order: int) -> float:
        terms = [
            comb(order, k) * (1 - rate) ** (order - k) * rate**k * exp(k * (k - 1) / (2 * noise**2))
            for k in range(order + 1)
        ]
        return log(sum(terms)) / (order - 1)

    return min(
        steps * divergence(order) + log((order - 1) / order) - (log(delta) + log(order)) / (order - 1)
        for order in range(2, 33)
    )


@pytest.mark.parametrize(("noise", "rate", "steps"), [(1.0, 0.05, 200), (2.0, 0.2, 50), (1.5, 0.01, 1000)])
def test_epsilon_is_that_of_whole_orders_by_hand(noise: float, rate: float, steps: int) -> None:
    """The best order lies among those below 33 for these."""
    assert steps_epsilon(noise, rate, steps, 1e-5) == pytest.approx(by_hand(noise, rate, steps, 1e-5), rel=1e-6)


def test_replies_with_steps_of_two_kinds_add_up() -> None:
    """Runs of unlike batches: never more than both bounds together, and more than each."""
    few, many = StepNoise(1.0, 1.0, 0.05, 40), StepNoise(2.0, 1.0, 0.2, 50)
    one, other = steps_epsilon(1.0, 0.05, 80, 1e-5), steps_epsilon(2.0, 0.2, 50, 1e-5)
    assert records_epsilon([few, few], 1e-5) == one
    assert max(one, other) < records_epsilon([few, many, few], 1e-5) < one + other


def test_without_sampling_it_is_a_gaussian_mechanism() -> None:
    """A record moves the sum by C: k steps of noise z are one of z / sqrt(k), whose delta is known exactly."""
    found = steps_epsilon(4.0, 1.0, 4, 1e-5)
    mu = 1 / 2.0

    def delta(epsilon: float) -> float:
        return float(stats.norm.cdf(mu / 2 - epsilon / mu) - exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu))

    assert delta(found) <= 1e-5 < delta(0.85 * found)


def test_the_journal_has_the_epsilon_of_the_least_private_record(tmp_path: Path) -> None:
    """Of n samples in batches of 8, an epoch has ceil(n / 8) steps of rate 8 / n; two epochs a round."""
    plan = plan_of()
    records = execute(plan, InProcess(), tmp_path).journal()
    sizes = {who.samples for who in plan.profiles}
    assert len(sizes) > 1
    for rounds, record in enumerate(records, 1):
        told = record.method_metrics
        wanted = max(steps_epsilon(1.0, min(1, 8 / n), 2 * rounds * -(-n // 8), 1e-3) for n in sizes)
        assert told["epsilon"] == told["epsilon_server"] == told["epsilon_sites"] == wanted
        assert told["delta"] == 1e-3
        assert not record.loss


def test_without_noise_limit_and_sampling_it_is_full_gradient_descent(tmp_path: Path) -> None:
    """Batches that hold all records, so that every step takes all: the mean gradient, as without privacy."""
    given: dict[str, Any] = {"training": {"epochs": 2, "batch": 1000, "momentum": 0.0}, "model": "cnn", "rounds": 1}
    plain = model_of(ran(tmp_path, privacy="none", **given))
    private = {"name": "record-level", "clip": 1e6, "noise": 0, "delta": 1e-3}
    hidden = ran(tmp_path, privacy=private, **given)
    assert "epsilon" not in hidden.journal()[-1].method_metrics
    one = model_of(hidden)
    assert max(float((one[name] - plain[name]).abs().max()) for name in one) < 1e-6


@pytest.mark.parametrize("method", ["fedprox", "scaffold", "moon", "krum", "feddyn", "fednova"])
def test_losses_do_not_leave_with_any_method(method: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {"method": method, "model": "cnn" if method == "moon" else "mlp"}
    plan = plan_of(**given)
    names = {line["name"] for line in egress_manifest(plan, False)["leaves"]}
    assert not any(name.startswith("loss") for name in names)
    if method in ("moon", "scaffold"):
        records = execute(plan, InProcess(), tmp_path).journal()
        assert [len(one.failures) for one in records] == [0, 0]
        assert not records[-1].loss


def test_it_goes_with_sums_and_masks(tmp_path: Path) -> None:
    """The same noise at the same records; the sums differ from the plain mean by rounding alone."""
    plain, fixed, masked = (ran(tmp_path, secure=way) for way in (None, "fixed-point", True))
    assert all(torch.equal(model_of(fixed)[name], one) for name, one in model_of(masked).items())
    assert max(float((model_of(fixed)[name] - one).abs().max()) for name, one in model_of(plain).items()) < 1e-6
    assert len({run.journal()[-1].method_metrics["epsilon"] for run in (plain, fixed, masked)}) == 1


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"model": "cnn-bn"}, "BatchNorm mixes with others: set model=cnn-bn:norm=group"),
        ({"method": "ditto"}, "and ditto is not one: choose .*fedavg"),
        ({"method": "local-only"}, "local-only is not one"),
        ({"method": {"name": "feddf", "proxy": "digits"}}, "feddf is not one"),
        ({"training": {"class_weights": "balanced"}}, "class_weights=balanced takes"),
        ({"training": {"precision": "bf16"}}, "training.precision=fp32"),
        ({"method": {"name": "fedavg", "buffers": "recalibrate"}}, "set method.buffers=average"),
        ({"privacy": {"name": "record-level", "delta": 0.1}}, "it must be below"),
        ({"privacy": {"name": "record-level", "where": "server"}}, "where"),
        ({"norm_limit": 3.0}, "norm_limit"),
    ],
)
def test_what_does_not_go_with_it_is_refused_before_any_work(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        plan_of(**settings)


def test_a_real_site_samples_and_draws_from_the_operating_system(tmp_path: Path) -> None:
    assert RecordLevel().on_site() == RecordLevel(randomness="system")
    system = {"name": "record-level", "delta": 1e-3, "randomness": "system"}
    first, second = (model_of(ran(tmp_path / str(one), privacy=system, rounds=1)) for one in (1, 2))
    assert any(not torch.equal(first[name], second[name]) for name in first)
