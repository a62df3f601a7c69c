"""An optimiser of torch.optim in the place of a built-in one: the same steps, scheduled by rounds, kept and resumed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, StepLR

import fedstill
from fedstill.core.errors import InputError
from fedstill.core.own_optimiser import OwnOptimiser
from fedstill.core.own_training import optimisers
from fedstill.core.training import Training

Function = Callable[[list[nn.Parameter]], Any]
_NAME = "of-this-test"


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    optimisers.forget(_NAME)


def own(function: Function, parameters: list[nn.Parameter], unit: str = "round") -> OwnOptimiser:
    optimisers.register(_NAME)(function)
    return OwnOptimiser(_NAME, parameters, unit)


def parameters() -> list[nn.Parameter]:
    torch.manual_seed(3)
    return [nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(3))]


def gradients(number: int) -> list[Tensor]:
    made = torch.Generator().manual_seed(number)
    return [torch.randn(4, 3, generator=made), torch.randn(3, generator=made)]


def stepped(optimiser: Any, some: list[nn.Parameter], numbers: range) -> list[Tensor]:
    for number in numbers:
        for parameter, gradient in zip(some, gradients(number), strict=True):
            parameter.grad = gradient
        optimiser.step()
    return [parameter.detach().clone() for parameter in some]


@pytest.mark.parametrize(
    ("settings", "function"),
    [
        ({"optimiser": "sgd", "momentum": 0.9}, lambda given: torch.optim.SGD(given, 0.05, 0.9, fused=True)),
        (
            {"optimiser": "adamw", "weight_decay": 0.1},
            lambda p: torch.optim.AdamW(p, 0.05, weight_decay=0.1, fused=True),
        ),
    ],
)
def test_it_takes_the_steps_of_the_built_in_one(settings: dict[str, Any], function: Function) -> None:
    """Also with the schedule of rounds, and with a slow part."""
    training = Training(rate=0.05, schedule="cosine", **settings)
    ends = []
    for make in (training.make_optimiser, lambda some: own(function, some)):
        some = parameters()
        optimiser = make(some)
        training.begin(optimiser, 2, 8, 100)
        optimiser.slow_down(some[1:], 0.5)
        ends.append(stepped(optimiser, some, range(5)))
    assert torch.equal(ends[0][0], ends[1][0])
    torch.testing.assert_close(ends[0][1], ends[1][1], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "make",
    [torch.optim.Adam, torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.NAdam, torch.optim.Rprop],
)
def test_moments_continue_as_if_nothing_had_happened(make: Any) -> None:
    whole, first = parameters(), parameters()
    straight = stepped(own(make, whole), whole, range(6))
    before = own(make, first)
    stepped(before, first, range(3))
    kept = before.moments()
    assert all(isinstance(tensor, Tensor) for tensor in kept.values())
    after = own(make, first)
    after.load(kept)
    assert all(map(torch.equal, straight, stepped(after, first, range(3, 6))))


def test_plain_numbers_are_kept_and_other_state_is_refused() -> None:
    class Counting(torch.optim.SGD):
        held: Any = 0

        def step(self, closure: Any = None) -> Any:
            for parameter in self.param_groups[0]["params"]:
                self.state[parameter]["count"] = self.state[parameter].get("count", 0) + 1
                self.state[parameter].update(nothing=None, half=0.5, held=self.held)
            return super().step(closure)

    def counting(given: list[nn.Parameter]) -> Counting:
        return Counting(given, lr=0.1)

    some = parameters()
    before = own(counting, some)
    stepped(before, some, range(3))
    after = own(counting, some)
    after.load(before.moments())
    assert after.inner.state[some[0]] == {"count": 3, "nothing": None, "half": 0.5, "held": 0}
    Counting.held = [1, 2]
    stepped(after, some, range(1))
    with pytest.raises(InputError, match=r"keeps a list .held. between steps, which cannot be kept between rounds"):
        after.moments()


def test_a_scheduler_counts_rounds_epochs_or_steps() -> None:
    def halving(given: list[nn.Parameter]) -> Any:
        inner = torch.optim.SGD(given, lr=1.0)
        return inner, StepLR(inner, step_size=1, gamma=0.5)

    def rate_after(unit: str, turn: int) -> float:
        some = parameters()
        training = Training(epochs=2, batch=16, optimiser="sgd", scheduler_step=unit)
        optimiser = own(halving, some, unit)
        training.begin(optimiser, turn, 9, samples=40)  # three batches an epoch
        for _ in range(2):
            stepped(optimiser, some, range(3))
            optimiser.end_epoch()
        return float(optimiser.inner.param_groups[0]["lr"])

    assert [rate_after("round", turn) for turn in range(3)] == [1, 0.5, 0.25]
    assert [rate_after("epoch", turn) for turn in range(3)] == [0.5**2, 0.5**4, 0.5**6]
    assert [rate_after("step", turn) for turn in range(3)] == [0.5**6, 0.5**12, 0.5**18]


def test_cosine_annealing_over_rounds_by_hand() -> None:
    def annealed(given: list[nn.Parameter]) -> Any:
        inner = torch.optim.SGD(given, lr=0.2)
        return inner, CosineAnnealingLR(inner, T_max=10)

    for turn in (0, 3, 9):
        some = parameters()
        start = copy.deepcopy(some)
        optimiser = own(annealed, some)
        Training().begin(optimiser, turn, 10, 32)
        (moved, _) = stepped(optimiser, some, range(1))
        rate = 0.2 * 0.5 * (1 + torch.cos(torch.tensor(torch.pi * turn / 10)))
        torch.testing.assert_close(moved, start[0] - rate * gradients(0)[0], rtol=1e-5, atol=1e-6)


def scheduled(given: list[nn.Parameter]) -> Any:
    inner = torch.optim.Adam(given, lr=0.01)
    return inner, StepLR(inner, step_size=2, gamma=0.3)


@pytest.mark.parametrize("unit", ["round", "epoch", "step"])
def test_a_run_has_the_same_bits_in_workers_and_after_resuming(unit: str, tmp_path: Path) -> None:
    training = {"epochs": 2, "batch": 64, "keep_optimiser": True, "scheduler_step": unit}
    given: dict[str, Any] = {"data": "digits[:30%]", "model": "mlp", "clients": 2, "rounds": 2, "training": training}
    runs = [
        fedstill.run("fedavg", **given, optimizer=scheduled, engine=engine, out=tmp_path / engine)
        for engine in ("in-process", "wire", *(["processes"] if unit == "epoch" else []))
    ]
    longer = fedstill.run("fedavg", **{**given, "rounds": 3}, optimizer=scheduled, out=tmp_path / "in-process")
    afresh = fedstill.run("fedavg", **{**given, "rounds": 3}, optimizer=scheduled, out=tmp_path / "afresh")
    assert len({run.sha256 for run in runs}) == 1
    assert longer.sha256 == afresh.sha256 != runs[0].sha256
