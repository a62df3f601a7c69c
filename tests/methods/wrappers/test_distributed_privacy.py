"""Noise in sums that hold against the server: its size however many are lost, what is spent, and what is refused."""

from __future__ import annotations

from math import exp, log, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from fedstill.core.dataset import Subset
from fedstill.core.errors import InputError
from fedstill.core.message import part
from fedstill.core.protocols import Client, Profile, RoundContext
from fedstill.core.streams import Streams
from fedstill.core.sums import added
from fedstill.engines import InProcess
from fedstill.methods.secure.summed_exchange import SUM, vector_of
from fedstill.methods.wrappers.distributed_privacy import Distributed
from fedstill.methods.wrappers.privacy_accounting import replies_epsilon
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.egress_manifest import egress_manifest
from fedstill.runtime.plan import make_plan
from fedstill.runtime.run import execute
from fedstill.runtime.run_folder import RunFolder

SMALL: dict[str, Any] = {
    "method": {"name": "fedavg", "weights": "uniform"},
    "secure": "fixed-point",
    "data": "digits[:8%]",
    "clients": 5,
    "rounds": 2,
    "model": "mlp",
    "seed": 3,
    "evaluate_every": 2,
    "training": {"epochs": 1, "batch": 32},
}
NOISY: dict[str, Any] = {"name": "distributed", "clip": 0.5, "noise": 2.0}


def plan_of(**settings: Any) -> Any:
    return make_plan(make_experiment({**SMALL, "privacy": NOISY, **settings}))


def ran(folder: Path, **settings: Any) -> RunFolder:
    return execute(plan_of(**settings), InProcess(), folder)


def model_of(run: RunFolder) -> dict[str, torch.Tensor]:
    (model,) = run.load_models("last").values()
    return {name: tensor for name, tensor in model.items() if tensor.is_floating_point()}


def noise_of(plan: Any, clients: list[int]) -> np.ndarray:
    """What the sum of these clients' vectors contains beside updates of zero: clients without samples cannot train."""
    (exchange,) = plan.method.exchanges({}, 0)
    server = plan.method.start(plan.streams)
    context = RoundContext.of(Streams(1), 0, 1, 5, exchange.name)
    vectors = []
    for number in clients:
        who = Profile(number, 0, "mlp")
        request = exchange.request(server, who, context)
        client = plan.clients(plan.profiles[number], {}, context)
        starved = Client(who, client.task, Subset(client.data, torch.tensor([], dtype=torch.int64)), client.streams)
        vectors.append(vector_of(exchange.reply(starved, request, context)[SUM]))
    total = added(vectors).view(np.int64)
    assert total[0] == len(clients)
    assert total[1] == 0
    return np.asarray(total[2:] / 2.0**32)


@pytest.mark.parametrize(
    ("given", "clients", "deviation"),
    [
        # The threshold of five is three: each of them adds 2 * 0.5 / sqrt(3).
        ({}, [0, 1, 2], 1.0),
        ({}, [0, 1, 2, 3, 4], sqrt(5 / 3)),
        ({}, [4], sqrt(1 / 3)),
        # Two thirds of five are four: less noise of each, and the same in the smallest sum.
        ({"secure": {"name": "fixed-point", "threshold": "two-thirds"}}, [0, 1, 2, 3], 1.0),
        ({"secure": {"name": "fixed-point", "least": 5}}, [0, 1, 2, 3, 4], 1.0),
        # One of three gives its share away: the other two have z C between them.
        ({"privacy": {**NOISY, "colluding": 1}}, [0, 2], 1.0),
        ({"privacy": {**NOISY, "colluding": 1}}, [0, 1, 2], sqrt(3 / 2)),
    ],
)
def test_the_fewest_honest_clients_of_a_sum_add_z_times_c(
    given: dict[str, Any], clients: list[int], deviation: float
) -> None:
    noise = noise_of(plan_of(**given), clients)
    assert noise.std() == pytest.approx(deviation, rel=4 / sqrt(2 * len(noise)))
    assert stats.kstest(noise / deviation, "norm").pvalue > 1e-3


def gaussian_delta(epsilon: float, sensitivity: float, deviation: float) -> float:
    """The exact delta of a Gaussian mechanism (Balle and Wang, 2018, theorem 8)."""
    mu = sensitivity / deviation
    normal = stats.norm.cdf
    return float(normal(mu / 2 - epsilon / mu) - exp(epsilon) * normal(-mu / 2 - epsilon / mu))


def test_epsilon_against_each_reader(tmp_path: Path) -> None:
    """Two rounds of five clients, z = 2, threshold three, one of them colluding, so that each adds sqrt(2) C.

    k rounds of noise s are one with s / sqrt(k), and replacing a client moves a sum by up to 2 C. The public does not
    know five shares, another client (or the one that colludes) four, the server with that one two of the least sum.
    """
    (_, record) = ran(tmp_path, privacy={**NOISY, "colluding": 1, "delta": 1e-4}).journal()
    told = record.method_metrics
    for name, secret in (("epsilon", 5), ("epsilon_sites", 4), ("epsilon_server", 2)):
        deviation = sqrt(2) * sqrt(secret) / sqrt(2)
        assert gaussian_delta(told[name], 2.0, deviation) <= 1e-4
        assert gaussian_delta(0.85 * told[name], 2.0, deviation) > 1e-4
        rho = 2**2 / (2 * deviation**2)
        assert told[name] <= rho + 2 * sqrt(rho * log(1e4))
    assert told["epsilon"] < told["epsilon_sites"] < told["epsilon_server"]
    assert told["delta"] == 1e-4
    assert not record.loss
    assert "sum: steps" not in told


def test_a_skipped_round_counts_against_the_server_only(tmp_path: Path) -> None:
    dropout = {"name": "independent", "rate": 0.45}
    records = ran(tmp_path, dropout=dropout, rounds=4, seed=1, evaluate_every=4).journal()
    told = [one.method_metrics for one in records]
    published = [one.skipped is None for one in records]
    assert 0 < sum(published) < 4, "the seed was to give both"
    for before, after, counted in zip(told, told[1:], published[1:], strict=False):
        assert after["epsilon_server"] > before["epsilon_server"]
        assert (after["epsilon"] > before["epsilon"]) == counted
    assert told[-1]["epsilon_server"] == replies_epsilon([2.0] * 4, 1e-5)


def test_masks_change_no_bit_of_the_noise(tmp_path: Path) -> None:
    given: dict[str, Any] = {"model": "cnn-bn", "method": {"name": "fedadam", "weights": "uniform"}}
    fixed, masked = (model_of(ran(tmp_path, secure=way, **given)) for way in ("fixed-point", True))
    assert all(torch.equal(fixed[name], masked[name]) for name in fixed)
    assert all((tensor >= 0).all() for name, tensor in fixed.items() if name.endswith("running_var"))
    plain = model_of(ran(tmp_path, privacy="none", **given))
    assert any(not torch.equal(plain[name], fixed[name]) for name in fixed)


def test_without_noise_and_limit_it_is_the_method_itself(tmp_path: Path) -> None:
    run = ran(tmp_path, privacy={"name": "distributed", "clip": 60.0, "noise": 0})
    one, other = model_of(run), model_of(ran(tmp_path, privacy="none"))
    assert max(float((one[name] - other[name]).abs().max()) for name in one) < 1e-6
    assert "epsilon" not in run.journal()[-1].method_metrics


def test_a_small_clip_bounds_what_the_clients_move(tmp_path: Path) -> None:
    """The mean of updates of norm 0.01 or less moves the model by at most 0.01 a round."""
    plan = plan_of(privacy={"name": "distributed", "clip": 0.01, "noise": 0}, rounds=1)
    start = part(plan.method.start(plan.streams), "model/")
    after = model_of(execute(plan, InProcess(), tmp_path))
    moved = sqrt(sum(float((after[name].double() - start[name].double()).square().sum()) for name in after))
    assert 0.003 < moved <= 0.01 + 1e-6


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"secure": None}, "set secure=true, or choose privacy=client-level"),
        ({"secure": False}, "set secure=true"),
        ({"privacy": "client-level", "secure": True}, "choose privacy=distributed, or leave secure out"),
        ({"method": "fedavg"}, "set method.weights=uniform"),
        ({"method": "scaffold"}, "scaffold is not one"),
        ({"method": {"name": "fedavg", "weights": "uniform", "buffers": "recalibrate"}}, "buffers=average"),
        ({"secure": {"name": "masked", "norm": 3.0}}, "leave secure.norm out"),
        ({"privacy": {**NOISY, "colluding": 3}}, "nobody would be left whose noise is secret"),
        ({"privacy": {**NOISY, "delta": 0.3}}, "it must be below 0.2"),
        ({"privacy": {**NOISY, "clip": 100.0}}, "set secure.clip as large"),
        ({"privacy": {**NOISY, "where": "client"}}, "where"),
        ({"secure": {"name": "masked", "bits": 8}}, "set secure.bits higher"),
        ({"secure": {"name": "masked", "least": 6}}, "every round would be skipped: set it to 5 or less"),
    ],
)
def test_what_does_not_go_with_it_is_refused_before_any_work(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        plan_of(**settings)


def test_a_real_site_takes_its_noise_from_the_operating_system(tmp_path: Path) -> None:
    """Such a run cannot be repeated."""
    assert Distributed().on_site() == Distributed(randomness="system")
    system = {**NOISY, "randomness": "system"}
    first, second = (model_of(ran(tmp_path / str(one), privacy=system, rounds=1)) for one in (1, 2))
    assert any(not torch.equal(first[name], second[name]) for name in first)


def test_the_manifest_says_what_is_noised() -> None:
    lines = egress_manifest(plan_of(secure=True), False)["leaves"]
    (line,) = (one for one in lines if one.get("masked"))
    assert "cut to norm 0.5, with discrete noise of deviation 0.5774" in line["why"]
