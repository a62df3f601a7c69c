"""What the server does with a distillation: which step it keeps, whether it keeps any, and who selects samples."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fedstill
from fedstill.core.errors import InputError
from fedstill.core.kinds import state_of
from fedstill.core.message import Message, part
from fedstill.core.protocols import Reply, RoundContext
from fedstill.methods.base import LOGITS
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.plan import Simulation, make_plan
from fedstill.shared_image.feddf import TAKEN, FedDF
from fedstill.shared_image.server_recalibration import lesson, model_place, steps_of
from fedstill.shared_image.server_validation import BestStep

TINY: dict[str, Any] = {
    "data": "digits[:30%]",
    "model": "cnn-bn",
    "clients": 4,
    "rounds": 1,
    "validation": 0.1,
    "training": {"epochs": 1, "batch": 32},
}
SHORT: dict[str, Any] = {"proxy": "digits", "samples": 60, "steps": 6, "batch": 32, "validate_every": 2}


def given(settings: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**TINY, "method": {"name": "feddf", **SHORT, **settings}, **changes}


def planned(settings: dict[str, Any], **changes: Any) -> Simulation:
    return make_plan(make_experiment(given(settings, **changes)))


def feddf(plan: Simulation) -> FedDF:
    assert isinstance(plan.method, FedDF)
    return plan.method


def context_of(plan: Simulation, round: int = 0) -> RoundContext:
    return RoundContext.of(plan.streams, round, plan.rounds, len(plan.profiles), "train")


def aggregated(plan: Simulation, monkeypatch: pytest.MonkeyPatch, scores: list[float], round: int = 1) -> Any:
    """The server's state after random logits of all clients, with these validation accuracies in turn."""
    method = feddf(plan)
    found = iter(scores)
    monkeypatch.setattr(FedDF, "validated", lambda self, model: next(found))
    state = method.prepare(method.start(plan.streams), context_of(plan, round))
    torch.manual_seed(0)
    replies = [Reply(who, Message({LOGITS: torch.randn(60, 10).half()}), {}) for who in plan.profiles]
    after = method.aggregate(state, replies, context_of(plan, round))
    assert next(found, None) is None
    return state, after


def test_the_best_step_is_the_latest_of_equals() -> None:
    """Looked at after steps 1, 2, 4, 6 and 7 of 7, and no others; 0.5 is reached after steps 2 and 6."""
    model, scores, seen = nn.Linear(1, 1), iter([0.1, 0.5, 0.3, 0.5, 0.2]), []

    def accuracy(model: nn.Module) -> float:
        seen.append(float(model.weight.detach()))
        return next(scores)

    best = BestStep(model, accuracy, steps=7, every=2)
    for step in range(1, 8):
        nn.init.constant_(model.weight, step)
        best(step)
    assert seen == [1, 2, 4, 6, 7]
    assert (best.step, best.best, float(best.state["parameters/weight"])) == (6, 0.5, 6.0)


def test_keeping_a_step_is_stopping_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking at the model changes nothing of its training, in either mode: four steps of six are four steps."""
    for way in ("frozen", "batch"):
        settings = {"statistics": way, "initialise": 0.1}
        plan = planned({**settings, "keep": "best-step"}, rounds=2)
        _, after = aggregated(plan, monkeypatch, [0.1, 0.2, 0.9, 0.3])
        _, short = aggregated(planned({**settings, "steps": 4}, rounds=2), monkeypatch, [])
        assert int(after[TAKEN + "cnn-bn"]) == 4
        for name, tensor in part(short, model_place("cnn-bn")).items():
            assert torch.equal(after[model_place("cnn-bn") + name], tensor), name


@pytest.mark.parametrize(("scores", "taken"), [([0.5, 0.49], 0), ([0.5, 0.5], 6), ([0.4, 0.6], 6)])
def test_a_worse_model_is_discarded(monkeypatch: pytest.MonkeyPatch, scores: list[float], taken: int) -> None:
    plan = planned({"replace": "if-not-worse", "initialise": 0.1}, rounds=2)
    before, after = aggregated(plan, monkeypatch, scores)
    place = model_place("cnn-bn")
    same = all(torch.equal(after[place + name], tensor) for name, tensor in part(before, place).items())
    assert (int(after[TAKEN + "cnn-bn"]), same) == (taken, taken == 0)
    assert plan.method.metrics(after) == {"distillation steps cnn-bn": float(taken)}


def test_what_is_kept_is_in_the_journal_and_not_worse(tmp_path: Path) -> None:
    """A rate that destroys the model: the averaged one is kept, which is FedAvg's."""
    harmful = {"rate": 5.0, "replace": "if-not-worse", "statistics": "batch"}
    run = fedstill.run(given(harmful, rounds=2), out=tmp_path)
    assert [record.method_metrics for record in run.journal] == [{"distillation steps cnn-bn": 0.0}] * 2
    assert run.sha256 == fedstill.run({**TINY, "rounds": 2, "method": "fedavg"}, out=tmp_path).sha256


@pytest.mark.parametrize("settings", [{"keep": "best-step"}, {"replace": "if-not-worse"}], ids=["step", "model"])
def test_a_client_that_catches_up_stops_where_the_server_did(tmp_path: Path, settings: dict[str, Any]) -> None:
    setting = {"rounds": 6, "participation": {"name": "random", "fraction": 0.5}, "seed": 3}
    runs = {
        downlink: fedstill.run(
            given({**settings, "precision": "full", "initialise": 0.1, "rate": 0.02, "downlink": downlink}, **setting),
            out=tmp_path,
        )
        for downlink in ("model", "logits")
    }
    taken = {int(record.method_metrics["distillation steps cnn-bn"]) for record in runs["logits"].journal}
    assert taken - {6}, "every distillation was kept to its end: nothing was tested"
    assert runs["model"].sha256 == runs["logits"].sha256
    down = {downlink: sum(record.bytes.down for record in run.journal) for downlink, run in runs.items()}
    assert down["logits"] < 0.9 * down["model"]


def test_steps_go_down_with_the_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned({"keep": "best-step", "initialise": 0.1, "downlink": "logits"}, rounds=3)
    _, after = aggregated(plan, monkeypatch, [0.9, 0.2, 0.1, 0.3])
    assert int(after[steps_of(1, "cnn-bn")]) == 1
    request = plan.method.request(after, replace(plan.profiles[0], last_round=1), context_of(plan, 2))
    assert request is not None
    assert (lesson(1, LOGITS) in request, int(request[steps_of(1, "cnn-bn")])) == (True, 1)


def test_the_best_model_selects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three models the second is best, and as good as the third; by default the first selects, unseen."""
    mixed = {"model": None, "models": {"cnn-bn": 1, "mlp": 2, "cnn": 1}, "rounds": 1}
    selection = {"selection": {"kmeans": 5, "prune": 0.25}}
    for selector, scores, wanted in (("best", {"cnn-bn": 0.2, "mlp": 0.6, "cnn": 0.6}, "mlp"), ("first", {}, "cnn-bn")):
        method = feddf(planned({**selection, "selector": selector}, **mixed))
        state = method.start(planned({**selection}, **mixed).streams)
        names = {len(state_of(method.task.build(name))): name for name in method.task.architectures}

        def validated(self: FedDF, model: nn.Module, names: Any = names, scores: Any = scores) -> float:
            return float(scores[names[len(state_of(model))]])

        monkeypatch.setattr(FedDF, "validated", validated)
        assert names[len(state_of(method.selecting_model(state)))] == wanted


@pytest.mark.parametrize(
    "settings",
    [{"keep": "best-step"}, {"replace": "if-not-worse"}, {"selector": "best"}],
    ids=lambda one: next(iter(one)),
)
@pytest.mark.parametrize("without", [{"validation": 0.0}, {"evaluation": "on-site"}], ids=["no share", "on site"])
def test_comparisons_need_validation_data_on_the_server(settings: dict[str, Any], without: dict[str, Any]) -> None:
    (name,) = settings
    with pytest.raises(InputError, match=f"method.{name} compares models on samples that clients do not have"):
        planned(settings, **without)


def test_validation_data_does_not_leave_the_server() -> None:
    plan = planned({"keep": "best-step"})
    assert feddf(plan).validation._data is not None
    assert pickle.loads(pickle.dumps(feddf(plan))).validation._data is None
