"""What becomes of BatchNorm: FedBN by hand, and the three kinds of state under a server with momentum."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedstill.core.dataset import Batch
from fedstill.core.errors import InputError
from fedstill.core.kinds import BUFFERS, COUNTERS, PARAMETERS, only, running
from fedstill.core.message import digest, part
from fedstill.core.streams import Streams
from fedstill.core.task import Output, Tensors
from fedstill.engines import InProcess
from fedstill.runtime.checkpoint import candidates
from fedstill.runtime.run import execute

from .sites import Quadratic, Site, build, points, returned, weight


class Normed(nn.Module):
    """One weight, and a BatchNorm layer whose output has the mean of its bias, whatever comes in."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))
        self.norm = nn.BatchNorm1d(1)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        return self.w - inputs, self.norm(inputs)


@dataclass(frozen=True)
class Shifted(Quadratic):
    """mean of (w - a)^2 / 2, plus the mean of BatchNorm's output: the gradient of its bias is 1, of its factor 0."""

    def make(self) -> nn.Module:
        return Normed()

    def forward(self, model: nn.Module, batch: Batch) -> Output:
        away, normal = model(batch["inputs"])
        return Output(away, away, {"half-square": 0.5 * away.square().mean() + normal.mean()})


A, B, C = points(2, 2, 2, 2, 2, 2), points(10, 10), points(4, 4)
NORM = {
    "parameters/norm.weight",
    "parameters/norm.bias",
    "buffers/norm.running_mean",
    "buffers/norm.running_var",
    "counters/norm.num_batches_tracked",
}


def fedbn(proxy: str) -> Site:
    return Site(build("fedbn", Shifted(), {"batch": 2}, proxy=proxy), Shifted(), [A, B, C], rounds=2)


@pytest.mark.parametrize("proxy", ["none", "average"])
def test_fedbn(proxy: str) -> None:
    """Rate 1/2, batches of two: A takes three steps, B one. BatchNorm's bias falls by 1/2 a step, its running mean is
    a (1 - 0.9^steps), its running variance 0.9^steps (data without spread).

    Round 1 with A and B: w = (6 * 1.75 + 2 * 5) / 8 = 2.5625; biases -1.5 and -0.5.
    Round 2 with the same, from 2.5625: A to 2 + 0.5625/8 = 2.0703125, B to 10 - 7.4375/2 = 6.28125;
    w = (12.421875 + 12.5625) / 8 = 3.123046875. Biases go on from a client's own: -3 and -1, never from a mean.
    """
    site = fedbn(proxy)
    assert weight(site.play_round(0, [0, 1])) == 2.5625
    assert weight(site.play_round(1, [0, 1])) == 3.123046875
    own = [site.method.personalise(site.server, state) for state in site.states]
    assert own[2] is None
    for model, value, steps in ((own[0], 2, 6), (own[1], 10, 2)):
        assert weight(model, "parameters/w") == 3.123046875
        assert weight(model, "parameters/norm.bias") == -steps / 2
        assert weight(model, "parameters/norm.weight") == 1
        assert weight(model, "buffers/norm.running_mean") == pytest.approx(value * (1 - 0.9**steps), rel=1e-6)
        assert weight(model, "buffers/norm.running_var") == pytest.approx(0.9**steps, rel=1e-6)
        assert weight(model, "counters/norm.num_batches_tracked") == steps


def test_fedbn_without_a_proxy_sends_no_batchnorm_layer_and_shares_no_model() -> None:
    site = fedbn("none")
    before = {name: site.server["model/" + name].clone() for name in NORM}
    reply = site.ask(0)
    assert set(reply.message.part("model/")) == {"parameters/w"}
    site.play_round(0)
    assert all(torch.equal(site.server["model/" + name], tensor) for name, tensor in before.items())
    assert site.method.models(site.server) == {}
    assert set(site.method.request(site.server, site.profile(0), site.context(1))) == {"model/parameters/w"}


def test_fedbns_proxy_is_the_average_of_all_layers() -> None:
    """By samples: bias (6 * -1.5 + 2 * -0.5) / 8 = -1.25; running mean (6 * 2 (1 - 0.729) + 2 * 10 * 0.1) / 8 = 0.6565;
    the counter's maximum is 3."""
    site = fedbn("average")
    site.play_round(0, [0, 1])
    proxy = site.method.models(site.server)["point"]
    assert weight(proxy, "parameters/norm.bias") == -1.25
    assert weight(proxy, "buffers/norm.running_mean") == pytest.approx(0.6565, rel=1e-6)
    assert weight(proxy, "counters/norm.num_batches_tracked") == 3
    assert set(site.method.request(site.server, site.profile(0), site.context(1))) == {"model/parameters/w"}


@pytest.mark.parametrize("proxy", ["none", "average"])
def test_fedbn_with_a_client_that_comes_late(proxy: str) -> None:
    """C first takes part in round 2: it gets all layers as the federation began with them, bias 0, and steps once.

    From 2.5625: C to 4 - 1.4375/2 = 3.28125; bias -0.5. A proxy is something that clients ignore: with or without one
    everybody's model is the same. A client whose first upload was lost is asked as if for the first time.
    """
    site = fedbn(proxy)
    site.play_round(0, [0, 1, 2], lost=[2])
    assert site.states[2] == {}
    request = site.method.request(site.server, site.profile(2), site.context(1))
    assert set(request.part("model/")) == NORM | {"parameters/w"}
    site.play_round(1, [2])
    assert weight(site.server) == 3.28125
    assert site.states[2]["local/parameters/norm.bias"].item() == -0.5


def test_fedbn_is_refused_without_batchnorm() -> None:
    with pytest.raises(InputError, match="has none"):
        build("fedbn", Quadratic())


# The rule of three kinds.


def variances(name: str, buffers: str, start: float, returns: float, rounds: int) -> list[float]:
    """The server's running variance, round by round, if two clients always return the same one; nobody trains."""
    method = build(name, Shifted(), buffers=buffers)
    server: Tensors = {**method.start(Streams(0))}
    key = "model/buffers/norm.running_var"
    server[key] = torch.tensor([start])
    turn, seen = Site(method, Shifted(), [A, B]).context(0), []
    for _ in range(rounds):
        replies = returned(server, *[{"buffers/norm.running_var": torch.tensor([returns])}] * 2, samples=[6, 2])
        server = method.aggregate(server, replies, turn)
        seen.append(weight(server, key))
    return seen


def test_momentum_makes_a_damped_oscillator_of_a_variance() -> None:
    """FedAvgM, beta 0.9, eta 1: v' = 0.9 v + (m - b), b' = b + v'. With e = b - m and v = e_t - e_{t-1}:

        e_{t+1} = e_t + 0.9 (e_t - e_{t-1}) - e_t = 0.9 (e_t - e_{t-1}),    and e_1 = 0, since v starts at 0.

    From b_0 = 1, e_0 = 1 - m: e_2 = -0.9 e_0, e_3 = -0.81 e_0, e_4 = 0.9 (-0.81 + 0.9) e_0 = 0.081 e_0, and e_5 =
    0.9 (0.081 + 0.81) e_0 = 0.8019 e_0. So b_1 = m, b_2 = 1.9 m - 0.9, b_3 = 1.81 m - 0.81, b_4 = 0.919 m + 0.081,
    b_5 = 0.1981 m + 0.8019. A first layer was seen to go -0.763, -0.680, 0.147, 0.816: each gives an interval for m,
    and what they have in common is 0.0718 to 0.0721.
    """
    m = 0.072
    seen = variances("fedavgm", "as-parameters", start=1.0, returns=m, rounds=40)
    assert seen[:5] == pytest.approx(
        [m, 1.9 * m - 0.9, 1.81 * m - 0.81, 0.919 * m + 0.081, 0.1981 * m + 0.8019], abs=1e-6
    )
    assert seen[1:5] == pytest.approx([-0.763, -0.680, 0.147, 0.816], abs=5e-4)
    errors = [1 - m, *(value - m for value in seen)]
    for before, now, after in zip(errors, errors[1:], errors[2:], strict=False):
        assert after == pytest.approx(0.9 * (now - before), abs=1e-6)
    assert min(seen) < 0 < max(seen)


@pytest.mark.parametrize(("start", "returns"), [(1.0, 0.0721), (1.0, 0.0), (5.0, 1e-6), (0.0, 3.0)])
def test_an_averaged_variance_is_what_the_clients_say(start: float, returns: float) -> None:
    assert variances("fedavgm", "average", start, returns, 10) == pytest.approx([returns] * 10, rel=1e-6)


def test_a_variance_turns_negative_exactly_where_the_oscillator_says() -> None:
    """b_2 = 1.9 m - 0.9 b_0: from 1 it is negative for m below 9/19 = 0.4737."""
    for m, negative in ((0.47, True), (0.48, False)):
        assert (min(variances("fedavgm", "as-parameters", 1.0, m, 2)) < 0) is negative


def final_server(plan: Any, out: Path) -> Tensors:
    (progress, *_), _ = candidates(execute(plan, InProcess(), out).path)
    return progress.server


@pytest.mark.parametrize("name", ["fedavgm", "fedadam"])
def test_what_is_done_with_statistics_does_not_touch_the_weights(name: str, tiny_plan: Any, tmp_path: Path) -> None:
    """In training BatchNorm normalises by its batch: weights are the same bits under all four, statistics are not."""
    ways = {
        "average": {"buffers": "average"},
        "as-parameters": {"buffers": "as-parameters"},
        "one-pass": {"buffers": "recalibrate"},
        "layer-by-layer": {"buffers": "recalibrate", "recalibration": "layer-by-layer"},
    }
    models, variances = {}, {}
    for way, settings in ways.items():
        plan = tiny_plan(
            method={"name": name, **settings},
            model="cnn-bn",
            rounds=2,
            evaluate_every=2,
            partition={"name": "dirichlet", "alpha": 0.3},
        )
        models[way] = part(final_server(plan, tmp_path / way), "model/")
        layers = running(plan.task.build("cnn-bn"), "running_var").values()
        variances[way] = torch.cat([models[way][layer] for layer in layers])
    for kind in (PARAMETERS, COUNTERS):
        assert len({digest(only(kind, model)) for model in models.values()}) == 1, kind
    assert len({digest(only(BUFFERS, model)) for model in models.values()}) == len(ways)
    assert all(variances[way].min() > 0 for way in ways if way != "as-parameters")
