"""The thirteen methods on problems that can be worked out by hand: every number is derived in a docstring.

Client A holds six points at 2, B two at 10, C two at 4; a client's loss is the mean of (w - a)^2 / 2. With rate 1/2 a
step goes halfway to the client's mean. What only servers do is in `test_server_rules.py`, FedBN in `test_fedbn.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log, sqrt

import pytest
import torch
from torch import Tensor, nn

from fedstill.core.dataset import ArrayDataset, Batch
from fedstill.core.errors import InputError
from fedstill.core.protocols import Reply
from fedstill.core.task import Output
from fedstill.methods.moon import contrastive

from .sites import Point, Quadratic, Site, build, points, returned, weight

A, B, C = points(2, 2, 2, 2, 2, 2), points(10, 10), points(4, 4)
TWO_EPOCHS = {"epochs": 2}
THREE_STEPS_AND_ONE = {"batch": 2}  # A then takes three steps an epoch, B and C one


def uploaded(site: Site, client: int, round: int = 0) -> float:
    return weight(site.ask(client, round).message)


def test_fedavg() -> None:
    """Unequal steps change nothing in the rule: A goes 0, 1, 1.5, 1.75; B to 5; (6 * 1.75 + 2 * 5) / 8 = 2.5625."""
    site = Site(build("fedavg", training=THREE_STEPS_AND_ONE), Quadratic(), [A, B])
    assert weight(site.play_round()) == 2.5625


def test_fedprox_pulls_towards_the_model_of_the_round() -> None:
    """mu = 1/2, two steps a round, by samples.

    Round 1 from 0. A: gradient -2, w = 1; then (1 - 2) + (1 - 0)/2 = -1/2, w = 1.25. B: 5, then -5 + 5/2 = -2.5,
    w = 6.25. Mean (6 * 1.25 + 2 * 6.25) / 8 = 2.5.
    Round 2 from 2.5. A: 0.5, w = 2.25; then 0.25 - 0.125 = 0.125, w = 2.1875. B: -7.5, w = 6.25; then -3.75 + 1.875 =
    -1.875, w = 7.1875. Mean (13.125 + 14.375) / 8 = 3.4375.
    """
    site = Site(build("fedprox", training=TWO_EPOCHS, mu=0.5), Quadratic(), [A, B], rounds=2)
    assert [uploaded(site, client) for client in (0, 1)] == [1.25, 6.25]
    assert weight(site.play_round(0)) == 2.5
    assert [uploaded(site, client, 1) for client in (0, 1)] == [2.1875, 7.1875]
    assert weight(site.play_round(1)) == 3.4375


CONTROL = "control/w"


@pytest.mark.parametrize("correction", ["step", "gradient"])
def test_scaffold(correction: str) -> None:
    """Rate 1/2, batches of two: A takes K = 3 steps, B and C one. Three clients, of which two take part: N = 3.

    Round 1 with A and B from x = 0, all controls 0. A: 1, 1.5, y = 1.75; c_A = (0 - 1.75) / (3/2) = -7/6, the mean of
    its gradients -2, -1, -1/2. B: y = 5, c_B = -10. x = (1.75 + 5)/2 = 3.375, whatever the samples;
    c = (-7/6 - 10)/3 = -67/18.
    Round 2 with A and C. A is pushed by c - c_A = -23/9, so that it halves its distance to 2 + 23/9 = 41/9 three times:
    y = 41/9 - (85/72)/8 = 2539/576, and c_A = 23/9 + (27/8 - 2539/576) / (3/2) = 1613/864.
    C: gradient 27/8 - 4 = -5/8, pushed by -67/18: y = 27/8 + 313/144 = 799/144; c_C = -5/8, its own gradient.
    x = (2539/576 + 799/144)/2 = 5735/1152. c = -67/18 + ((1613/864 + 7/6) + (-5/8 - 0))/3 = -7567/2592, which is the
    mean of all three controls, B's included: (1613/864 - 10 - 5/8)/3.
    """
    site = Site(build("scaffold", training=THREE_STEPS_AND_ONE, correction=correction), Quadratic(), [A, B, C], 2)
    site.play_round(0, [0, 1])
    assert weight(site.server) == 3.375
    assert weight(site.server, CONTROL) == pytest.approx(-67 / 18, rel=1e-6)
    assert [state[CONTROL].item() for state in site.states[:2]] == pytest.approx([-7 / 6, -10], rel=1e-6)
    site.play_round(1, [0, 2])
    assert weight(site.server) == pytest.approx(5735 / 1152, rel=1e-6)
    assert weight(site.server, CONTROL) == pytest.approx(-7567 / 2592, rel=1e-6)
    controls = [state[CONTROL].item() for state in site.states]
    assert controls == pytest.approx([1613 / 864, -10, -5 / 8], rel=1e-6)


def test_scaffold_without_an_upload_is_as_if_nobody_had_been_asked() -> None:
    """B's upload is lost: c = c_A / 3, B's control stays at nothing, and in the next round B is pushed by c - 0.

    Round 1: x = 1.75, c_A = -7/6, c = -7/18. Round 2, B alone from 1.75: gradient 1.75 - 10 - 7/18, so that
    y = 1.75 + (8.25 + 7/18)/2; its new control is its own gradient, -8.25.
    """
    site = Site(build("scaffold", training=THREE_STEPS_AND_ONE), Quadratic(), [A, B, C], 2)
    site.play_round(0, [0, 1], lost=[1])
    assert site.states[1] == {}
    assert weight(site.server, CONTROL) == pytest.approx(-7 / 18, rel=1e-6)
    site.play_round(1, [1])
    assert weight(site.server) == pytest.approx(1.75 + (8.25 + 7 / 18) / 2, rel=1e-6)
    assert site.states[1][CONTROL].item() == pytest.approx(-8.25, rel=1e-6)


def test_scaffold_divides_by_the_rate_of_the_round() -> None:
    """Rate 1/2, then 1/4. One client at 2: its control is always its mean gradient, -2 and then (1 - 2) = -1.

    Round 2 from 1: c - c_i = 0, y = 1 + 1/4; c_i = -2 + 2 + (1 - 1.25) / (1/4) = -1.
    """
    training = {"schedule": "step", "step_every": 1, "step_factor": 0.5}
    site = Site(build("scaffold", training=training), Quadratic(), [A], rounds=2)
    assert weight(site.play()) == 1.25
    assert weight(site.server, CONTROL) == -1


def test_scaffold_corrects_gradients_of_momentum_too_and_steps_of_nothing_but_plain_sgd() -> None:
    """Momentum 1/2, rate 1/2, two steps of A from 0: gradients -2 and -1 (at w = 1), so that c_A = -1.5.

    v = -2, then -1 - 1 = -2: w = 2. Taking (x - y)/(K eta) = -2 for the control would count the momentum twice.
    """
    training = {"momentum": 0.5, "epochs": 2}
    with pytest.raises(InputError, match="plain SGD"):
        build("scaffold", training=training)
    site = Site(build("scaffold", training=training, correction="gradient"), Quadratic(), [A])
    assert weight(site.play_round()) == 2
    assert site.states[0][CONTROL].item() == -1.5


def test_scaffold_corrects_gradients_at_two_rates_and_steps_at_one_only() -> None:
    """Rate 1/2, and half of that for the weight: one step of A from 0 goes to 1/2. Its gradient is -2, so c_A = -2.

    Taking (x - y)/(K eta) for the control would find -1.
    """

    class Slow(Point):
        def slow_parameters(self) -> list[nn.Parameter]:
            return [self.w]

    class SlowQuadratic(Quadratic):
        def make(self) -> nn.Module:
            return Slow(self.start)

    training = {"encoder_rate": 0.5}
    with pytest.raises(InputError, match=r"set training.clip=null and training.encoder_rate=1, or method.correction"):
        build("scaffold", SlowQuadratic(), training)
    site = Site(build("scaffold", SlowQuadratic(), training, correction="gradient"), SlowQuadratic(), [A])
    assert weight(site.play_round()) == 0.5
    assert site.states[0][CONTROL].item() == -2


def test_scaffold_refuses_clipped_steps() -> None:
    with pytest.raises(InputError, match=r"clipping cuts short: set training.clip=null and training.encoder_rate"):
        build("scaffold", training={"clip": 1.0})
    build("scaffold", training={"clip": 1.0}, correction="gradient")


def test_fednova_without_momentum() -> None:
    """A takes 3 steps to 1.75, B one to 5; shares 3/4 and 1/4. a = 3 and 1, tau_eff = 9/4 + 1/4 = 2.5.

    w = 0 + 2.5 (3/4 * 1.75/3 + 1/4 * 5/1) = 2.5 * 1.6875 = 4.21875.
    """
    site = Site(build("fednova", training=THREE_STEPS_AND_ONE), Quadratic(), [A, B])
    assert weight(site.play_round()) == 4.21875


def test_fednova_with_momentum() -> None:
    """rho = 0.9. A: v = -2, w = 1; v = -1.8 - 1 = -2.8, w = 2.4; v = -2.52 + 0.4 = -2.12, w = 3.46. B: w = 5.

    a_A = 1 + 1.9 + 2.71 = 5.61 = (3 - 0.9 * 0.271/0.1)/0.1, a_B = 1; tau_eff = 0.75 * 5.61 + 0.25 = 4.4575.
    w = 4.4575 (0.75 * 3.46/5.61 + 0.25 * 5) = 7.6337667.
    """
    site = Site(build("fednova", training={**THREE_STEPS_AND_ONE, "momentum": 0.9}), Quadratic(), [A, B])
    assert uploaded(site, 0) == pytest.approx(3.46, rel=1e-6)
    assert weight(site.play_round()) == pytest.approx(7.6337667, rel=1e-6)


def test_fednova_with_adam_counts_steps() -> None:
    """Four points at 2 in two batches, two at 10 in one; shares 2/3 and 1/3; momentum is set, and is not Adam's.

    Adam's first step is the rate, 1/2. Then g = -1.5: m = -0.18 - 0.15 = -0.33, over 0.19: -1.7368421; v = 0.003996 +
    0.00225 = 0.006246, over 0.001999: 3.1245623; w = 0.5 + 0.5 * 1.7368421/1.7676432 = 0.9912875.
    a = 2 and 1, tau_eff = 5/3: w = 5/3 (2/3 * 0.9912875/2 + 1/3 * 0.5) = 0.8284931.
    """
    training = {**THREE_STEPS_AND_ONE, "optimiser": "adam", "momentum": 0.9}
    site = Site(build("fednova", training=training), Quadratic(), [points(2, 2, 2, 2), B])
    assert uploaded(site, 0) == pytest.approx(0.9912875, rel=1e-6)
    assert weight(site.play_round()) == pytest.approx(0.8284931, rel=1e-6)


def test_feddyn() -> None:
    """alpha = 1/2, two steps a round; three clients, of which two take part: N = 3. Samples do not count.

    Round 1 with A and B from 0, as FedProx with mu = 1/2: 1.25 and 6.25. h_A = -0.625, h_B = -3.125;
    h = -(0.5/3) * 7.5 = -1.25. Plain mean 3.75, corrected 3.75 + 1.25/0.5 = 6.25.
    Round 2 with A and C from 6.25. A: 4.25 + 0.625 = 4.875, w = 3.8125; then 1.8125 + 0.625 + 0.5 (3.8125 - 6.25) =
    1.21875, w = 3.203125. C: 2.25, w = 5.125; then 1.125 - 0.5625 = 0.5625, w = 4.84375.
    h_A = -0.625 + 0.5 * 3.046875 = 0.8984375, h_C = 0.5 * 1.40625 = 0.703125. h = -1.25 + (0.5/3) * 4.453125 =
    -0.5078125, which is the mean of all three h_i. Plain mean 4.0234375, corrected 4.0234375 + 1.015625 = 5.0390625.
    """
    site = Site(build("feddyn", training=TWO_EPOCHS, alpha=0.5), Quadratic(), [A, B, C], rounds=2)
    drift = "drift/model/parameters/w"
    for round, cohort, plain, corrected, held in (
        (0, [0, 1], 3.75, 6.25, -1.25),
        (1, [0, 2], 4.0234375, 5.0390625, -0.5078125),
    ):
        site.play_round(round, cohort)
        (also,) = site.method.extra_models(site.server).values()
        assert weight(also, "parameters/w") == plain
        assert weight(site.server) == pytest.approx(corrected, rel=1e-6)
        assert weight(site.server, drift) == pytest.approx(held, rel=1e-6)
        assert weight(site.method.models(site.server)["point"], "parameters/w") == weight(site.server)
    assert [state["drift/w"].item() for state in site.states] == [0.8984375, -3.125, 0.703125]


class Arrow(nn.Module):
    """Two weights, which are also the features of every sample."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0, 0.0]))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.w.expand(len(inputs), 2)


@dataclass(frozen=True)
class Slope(Quadratic):
    """The loss is <a, w>: its gradient is the mean of the data a."""

    def make(self) -> nn.Module:
        return Arrow()

    def forward(self, model: nn.Module, batch: Batch) -> Output:
        features = model(batch["inputs"])
        return Output(features, features, {"half-square": (features * batch["inputs"]).sum(dim=1).mean()})


def test_moon() -> None:
    """Rate 1, tau 1/2, mu 2, features z = w. Slopes (1, -1) and (-1, -1), from w = (1, 0).

    Round 1, no contrast: A = (0, 1), B = (2, 1), shared (1, 1).
    Round 2, A: z = z_g = (1, 1), z_p = (0, 1): similarities 1 and 1/sqrt 2. With u = (1/sqrt 2 - 1)/tau the term is
    log(1 + e^u) = 0.4425476, and its gradient sigma(u)/tau (grad sim_p - grad sim_g); sim_g is at its maximum, and
    grad sim_p = (0, 1)/sqrt 2 - (1, 1)/(2 sqrt 2) = (-1, 1)/(2 sqrt 2). With mu = 2:
    4 * 0.3576022 * 0.3535534 = 0.5057260 in directions (-1, 1). w = (1, 1) - (1, -1) + (0.5057, -0.5057).
    """
    slopes = [ArrayDataset(inputs=torch.tensor([[x, -1.0]] * 2)) for x in (1.0, -1.0)]
    site = Site(build("moon", Slope(), {"rate": 1.0}, mu=2.0), Slope(), slopes, rounds=2)
    first = [site.ask(client).message for client in (0, 1)]
    assert [message["model/parameters/w"].tolist() for message in first] == [[0, 1], [2, 1]]
    assert [message["loss/contrastive"].item() for message in first] == [0, 0]
    assert site.play_round(0)["model/parameters/w"].tolist() == [1, 1]
    second = site.ask(0, 1).message
    u = sqrt(2) - 2
    push = 4 / (1 + exp(-u)) / (2 * sqrt(2))
    assert push == pytest.approx(0.5057260, rel=1e-6)
    assert second["model/parameters/w"].tolist() == pytest.approx([push, 2 - push], rel=1e-5)
    assert second["loss/contrastive"].item() == pytest.approx(2 * log(1 + exp(u)), rel=1e-5)


def test_moon_remembers_the_clients_last_accepted_model_however_long_ago() -> None:
    """A takes part in rounds 0 and 2 and is lost in round 1: in round 2 its previous model is that of round 0."""
    slopes = [ArrayDataset(inputs=torch.tensor([[x, -1.0]] * 2)) for x in (1.0, -1.0)]
    site = Site(build("moon", Slope(), {"rate": 1.0}), Slope(), slopes, rounds=3)
    site.play_round(0)
    site.play_round(1, lost=[0])
    assert site.states[0]["previous/parameters/w"].tolist() == [0, 1]
    site.play_round(2, [0])
    assert site.states[0]["previous/parameters/w"].tolist() == site.server["model/parameters/w"].tolist()


def test_the_contrastive_term_by_hand() -> None:
    """Two samples, tau 1/2. (3, 4) against (4, 3) and (0, 1): 24/25 and 4/5; -log softmax: log(1 + e^(2 (0.8 - 0.96))).
    (0, 2) against (1, 0) and (0, -3): 0 and -1; log(1 + e^-2). Their mean; lengths do not matter.
    """
    ours, shared, previous = (
        torch.tensor(rows) for rows in ([[3.0, 4], [0, 2]], [[4.0, 3], [1, 0]], [[0.0, 1], [0, -3]])
    )
    expected = (log(1 + exp(-0.32)) + log(1 + exp(-2))) / 2
    assert contrastive(ours, shared, previous, 0.5).item() == pytest.approx(expected, rel=1e-6)


def test_moon_contrasts_every_point_where_points_have_features() -> None:
    """Models that label points give (batch, points, channels): each point is then a sample of its own."""
    ours, shared, previous = (torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(i)) for i in range(3))
    expected = contrastive(ours.flatten(0, 1), shared.flatten(0, 1), previous.flatten(0, 1), 0.5)
    assert contrastive(ours, shared, previous, 0.5).item() == pytest.approx(expected.item(), rel=1e-6)


def test_ditto() -> None:
    """lambda = 1/2, two steps a round. The shared model is FedAvg's: 3, then 3.75 (see `test_fedavg.py`).

    Personal models of round 1, from 0 and held to 0: A 1, 1.25; B 5, 6.25.
    Round 2, from their own and held to 3, where the round started (not to 3.75). A from 1.25: -0.75 - 0.875 = -1.625,
    v = 2.0625; 0.0625 - 0.46875 = -0.40625, v = 2.265625. B from 6.25: -3.75 + 1.625 = -2.125, v = 7.3125;
    -2.6875 + 2.15625 = -0.53125, v = 7.578125.
    """
    site = Site(build("ditto", training=TWO_EPOCHS, pull=0.5), Quadratic(), [A, B], rounds=2)
    for round, shared, personal in ((0, 3.0, [1.25, 6.25]), (1, 3.75, [2.265625, 7.578125])):
        assert weight(site.play_round(round)) == shared
        own = [site.method.personalise(site.server, state) for state in site.states]
        assert [weight(state, "parameters/w") for state in own] == personal
    assert site.method.personalise(site.server, {}) is None
    assert "personal" not in " ".join(site.ask(0, 1).message)


def test_fednova_survives_a_client_that_claims_no_steps() -> None:
    """`steps` comes from the client and is checked for type and shape alone: zero gives a_i = 0."""
    site = Site(build("fednova"), Quadratic(), [A, B])
    replies = returned(site.server, {"parameters/w": torch.ones(1)}, {"parameters/w": torch.ones(1)})
    liar = Reply(replies[1].profile, type(replies[1].message)({**replies[1].message, "steps": torch.tensor(0)}), {})
    merged = site.method.aggregate(site.server, [replies[0], liar], site.context(0))
    assert merged["model/parameters/w"].isfinite().all()
