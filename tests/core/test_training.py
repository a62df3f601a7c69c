from __future__ import annotations

import math

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from fedstill.core.optimisers import Optimiser
from fedstill.core.training import Training


def test_a_constant_rate() -> None:
    assert [Training().factor(turn, 10) for turn in (0, 5, 9)] == [1, 1, 1]


def test_a_stepped_rate_by_hand() -> None:
    """Half every three turns: 1, 1, 1, 1/2, 1/2, 1/2, 1/4."""
    training = Training(schedule="step", step_every=3, step_factor=0.5)
    assert [training.factor(turn, 7) for turn in range(7)] == [1, 1, 1, 0.5, 0.5, 0.5, 0.25]


def test_a_cosine_rate_by_hand() -> None:
    """(1 + cos(pi t / 4)) / 2 at t = 0..3: 1, (1 + sqrt(1/2)) / 2, 1/2, (1 - sqrt(1/2)) / 2; never quite zero."""
    training = Training(schedule="cosine")
    expected = [1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2]
    assert [training.factor(turn, 4) for turn in range(4)] == pytest.approx(expected, abs=1e-15)


def test_the_seeds_schedule() -> None:
    """x 0.7 every 20 of 200 epochs: 0.7^9 in the last twenty."""
    assert Training(schedule="step").factor(199, 200) == pytest.approx(0.7**9, rel=1e-12)
    assert Training(schedule="step").factor(19, 200) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"batch": 0},
        {"rate": 0},
        {"rate": -1},
        {"rate": math.nan},
        {"rate": math.inf},
        {"momentum": 1},
        {"momentum": -0.1},
        {"weight_decay": -1},
        {"clip": 0},
        {"step_factor": 0},
        {"step_factor": 1.1},
        {"step_every": 0},
        {"optimiser": "lion"},
        {"schedule": "linear"},
        {"lr": 0},
        {"learning_rates": 0.1},
    ],
)
def test_settings_out_of_range_are_refused(wrong: dict) -> None:
    with pytest.raises(ValidationError):
        Training(**wrong)


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        Training().rate = 1.0


GRADIENTS = [
    torch.tensor([1.0, -2.0, 0.5, 0.0]),
    torch.tensor([0.3, 0.1, -4.0, 2.0]),
    torch.tensor([0.0, 1.0, 1.0, -1]),
]


def stepped(training: Training, start: Tensor) -> Tensor:
    weight = nn.Parameter(start.clone())
    optimiser = training.make_optimiser([weight])
    for gradient in GRADIENTS:
        weight.grad = gradient.clone()
        optimiser.step()
    return weight.detach()


def test_sgd_against_its_equations() -> None:
    """g += decay w; v = momentum v + g (v = g in the first step); w -= rate v."""
    start = torch.tensor([1.0, 2.0, -3.0, 0.25])
    w, v = start.double(), torch.zeros(4, dtype=torch.float64)
    for g in GRADIENTS:
        v = 0.9 * v + g.double() + 0.01 * w
        w = w - 0.1 * v
    got = stepped(Training(rate=0.1, momentum=0.9, weight_decay=0.01), start)
    torch.testing.assert_close(got.double(), w, atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_adam_against_its_equations(kind: str) -> None:
    """m = 0.9 m + 0.1 g; v = 0.999 v + 0.001 g^2; w -= rate (m / (1 - 0.9^t)) / (sqrt(v / (1 - 0.999^t)) + 1e-8).

    Weight decay is added to the gradient by adam, and shrinks the weight by rate * decay beforehand in adamw.
    """
    start = torch.tensor([1.0, 2.0, -3.0, 0.25])
    w = start.double()
    m, v = torch.zeros(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    for t, gradient in enumerate(GRADIENTS, start=1):
        g = gradient.double()
        if kind == "adam":
            g = g + 0.01 * w
        else:
            w = w * (1 - 0.05 * 0.01)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        w = w - 0.05 * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
    got = stepped(Training(optimiser=kind, rate=0.05, weight_decay=0.01), start)
    torch.testing.assert_close(got.double(), w, atol=1e-6, rtol=0)


def test_frozen_parameters_are_left_out() -> None:
    model = nn.Linear(2, 1)
    model.bias.requires_grad_(False)
    optimiser = Training().make_optimiser(model.parameters())
    assert [parameter.shape for parameter in optimiser.parameters] == [(1, 2)]


def test_the_rate_can_be_set() -> None:
    """One step of plain SGD with rate 0.25 instead of 0.05: 1 - 0.25 * 2 = 0.5."""
    weight = nn.Parameter(torch.tensor([1.0]))
    optimiser = Training(momentum=0).make_optimiser([weight])
    optimiser.rate = 0.25
    weight.grad = torch.tensor([2.0])
    optimiser.step()
    assert weight.item() == 0.5


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw"])
def test_moments_put_back_continue_to_the_bit(kind: str) -> None:
    training = Training(optimiser=kind, weight_decay=0.01)
    start = [torch.rand(3, 2), torch.rand(5)]
    gradients = [[torch.randn(3, 2), torch.randn(5)] for _ in range(6)]

    def walk(weights: list[nn.Parameter], optimiser: Optimiser, steps: range) -> None:
        for step in steps:
            for weight, gradient in zip(weights, gradients[step], strict=True):
                weight.grad = gradient.clone()
            optimiser.step()

    straight = [nn.Parameter(w.clone()) for w in start]
    walk(straight, training.make_optimiser(straight), range(6))

    halfway = [nn.Parameter(w.clone()) for w in start]
    optimiser = training.make_optimiser(halfway)
    walk(halfway, optimiser, range(3))
    moments = optimiser.moments()
    resumed = [nn.Parameter(w.detach().clone()) for w in halfway]
    fresh = training.make_optimiser(resumed)
    fresh.load(moments)
    again = fresh.moments()
    assert again.keys() == moments.keys()
    assert all(torch.equal(again[name], moments[name]) for name in moments)
    walk(halfway, optimiser, range(3, 6))  # must not reach into what was taken
    assert all(torch.equal(again[name], moments[name]) for name in moments)
    walk(resumed, fresh, range(3, 6))
    assert all(torch.equal(a, b) for a, b in zip(straight, resumed, strict=True))
    assert all(torch.equal(again[name], moments[name]) for name in moments)


def test_the_names_of_moments() -> None:
    weight = nn.Parameter(torch.ones(2))
    for kind, expected in (("sgd", {"0/momentum"}), ("adam", {"0/first", "0/second", "0/steps"})):
        optimiser = Training(optimiser=kind).make_optimiser([weight])
        assert optimiser.moments() == {}
        weight.grad = torch.ones(2)
        optimiser.step()
        assert set(optimiser.moments()) == expected


def test_no_moments_leave_an_optimiser_fresh_and_keep_its_rate() -> None:
    weight = nn.Parameter(torch.ones(2))
    optimiser = Training(rate=0.3).make_optimiser([weight])
    optimiser.load({})
    assert optimiser.moments() == {}
    assert optimiser.rate == 0.3


class Slow(torch.nn.Module):
    """Two weights, of which one is called slow."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = torch.nn.Parameter(torch.ones(2))
        self.head = torch.nn.Parameter(torch.ones(2))

    def slow_parameters(self) -> list[torch.nn.Parameter]:
        return [self.encoder]


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw"])
def test_an_encoder_learns_at_its_own_rate_as_if_it_were_alone(kind: str) -> None:
    """Twice the rate of a model in which both are slow, once that of one in which neither is; over several steps."""
    ways = {}
    for name, factor, rate in (("both", 0.5, 0.1), ("fast", 1.0, 0.1), ("slow", 1.0, 0.05)):
        model = Slow()
        optimiser = Training(optimiser=kind, rate=rate, weight_decay=0.01, encoder_rate=factor).optimiser_of(model)
        for step in range(3):
            for number, weight in enumerate(model.parameters()):
                weight.grad = torch.tensor([1.0, -0.5]) * (step + 1 + number)
            optimiser.step()
        ways[name] = model
    assert torch.equal(ways["both"].encoder, ways["slow"].encoder)
    assert torch.equal(ways["both"].head, ways["fast"].head)
    assert not torch.equal(ways["both"].encoder, ways["fast"].encoder)


def test_the_rate_rises_before_it_follows_the_schedule() -> None:
    """Two rounds of warm-up: a third, two thirds, then all of a cosine over ten rounds."""
    training = Training(schedule="cosine", warmup=2)
    plain = Training(schedule="cosine")
    shares = [training.factor(turn, 10) / plain.factor(turn, 10) for turn in range(4)]
    assert shares == pytest.approx([1 / 3, 2 / 3, 1, 1])
