"""The check of BatchNorm statistics at the end of a run, against torch's own estimate of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fedstill
from fedstill.core.dataset import ArrayDataset
from fedstill.core.errors import InputError
from fedstill.core.kinds import norm_layers, state_of
from fedstill.core.records import BatchNormCheck
from fedstill.core.streams import Streams
from fedstill.core.task import Tensors
from fedstill.methods.fedavg import FedAvgSettings
from fedstill.methods.recalibration import recalibrate
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.batchnorm_check import check_centrally, check_sentence, check_warning
from fedstill.runtime.evaluation import CentralEvaluator
from fedstill.runtime.plan import Simulation, make_plan
from fedstill.tasks.classification import Classification

SMALL: dict[str, Any] = {
    "data": "digits",
    "model": "cnn-bn",
    "clients": 3,
    "rounds": 1,
    "partition": {"name": "dirichlet", "alpha": 0.1},
    "training": {"epochs": 2, "batch": 64},
}


class Warned:
    def __init__(self) -> None:
        self.texts: list[str] = []

    def on_warning(self, text: str) -> None:
        self.texts.append(text)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fedstill.Run:
    return fedstill.run({**SMALL, "method": "fedavg"}, out=tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def plan() -> Simulation:
    return make_plan(make_experiment({**SMALL, "method": "fedavg"}))


def checked(plan: Simulation, models: dict[str, Tensors], batch: int = 64) -> BatchNormCheck | None:
    assert isinstance(plan.evaluator, CentralEvaluator)
    accuracy = plan.evaluator.test_metrics(models)["accuracy"]
    return check_centrally(models, accuracy, plan.evaluator, plan.clients, plan.streams, batch)


def test_the_figure_is_torchs_own_estimate(run: fedstill.Run, plan: Simulation) -> None:
    """One batch of all samples: torch with momentum 1 takes exactly its statistics."""
    everything = plan.clients.shards.order
    assert len(everything) < 2000
    model = run.built()
    found = checked(replace(plan, clients=replace(plan.clients)), {"cnn-bn": state_of(model)}, batch=2000)
    assert found is not None
    assert found.samples == 1024
    rows = everything[
        torch.from_numpy(plan.streams.at("statistics check").draw("sample").permutation(len(everything))[:1024])
    ]
    model.eval()
    for layer in norm_layers(model).values():
        layer.train()
        layer.momentum = 1.0
    with torch.no_grad():
        plan.task.forward(model, plan.clients.data.batch(rows))
    assert isinstance(plan.evaluator, CentralEvaluator)
    expected = plan.task.summarise(plan.task.score([model.eval()], plan.evaluator.test))["accuracy"]
    assert found.recalibrated == pytest.approx(expected, abs=1.5 / len(plan.evaluator.test))
    assert found.gain == pytest.approx(expected - run.accuracy, abs=1.5 / len(plan.evaluator.test))


def test_it_stands_in_result_journal_and_json(run: fedstill.Run) -> None:
    found = run.result.batchnorm
    assert found is not None
    assert found.accuracy == run.accuracy
    assert run.journal[-1].evaluation is not None
    assert run.journal[-1].evaluation.batchnorm == found
    assert run.to_dict()["batchnorm"]["recalibrated"] == found.recalibrated


def test_ruined_statistics_are_noticed_and_weights_without_fault_are_not(run: fedstill.Run, plan: Simulation) -> None:
    state = dict(state_of(run.built()))
    ruined = {name: tensor + 3 if "running_mean" in name else tensor for name, tensor in state.items()}
    found, sound = checked(plan, {"cnn-bn": ruined}), checked(plan, {"cnn-bn": state})
    assert found is not None
    assert sound is not None
    assert found.recalibrated == sound.recalibrated, "whatever statistics were there before does not matter"
    assert found.gain is not None
    assert found.gain > 0.1
    text = check_warning(found, FedAvgSettings())
    assert text is not None
    assert "do not fit" in text
    assert "method.buffers=recalibrate" in text
    again = checked(plan, {"cnn-bn": state})
    assert again == sound


def test_only_the_last_round_is_checked_and_only_models_with_batchnorm(tmp_path: Path) -> None:
    run = fedstill.run({**SMALL, "method": "fedavg", "rounds": 2}, out=tmp_path)
    assert [record.evaluation and record.evaluation.batchnorm is not None for record in run.journal] == [False, True]
    plain = fedstill.run({**SMALL, "method": "fedavg", "model": "cnn"}, out=tmp_path)
    assert plain.result.batchnorm is None
    assert "batchnorm" not in json.loads((plain.path / "result.json").read_text())
    own = fedstill.run({**SMALL, "method": "local-only"}, out=tmp_path)
    assert own.result.batchnorm is None, "no model is shared"


@pytest.mark.parametrize(("gain", "warns"), [(0.0501, True), (0.05, False), (-0.3, False)])
def test_the_warning_begins_above_five_points(gain: float, warns: bool) -> None:
    found = BatchNormCheck(accuracy=0.5, recalibrated=0.5 + gain, samples=10)
    if gain == 0.05:
        found = BatchNormCheck(accuracy=0.0, recalibrated=0.05, samples=10)
    assert (check_warning(found, FedAvgSettings()) is not None) == warns
    assert "method.buffers" not in (check_warning(found, FedAvgSettings(buffers="recalibrate")) or "")


def test_sentences() -> None:
    better = BatchNormCheck(accuracy=0.5, recalibrated=0.75, samples=1024)
    assert check_sentence(better).replace("\u00a0", " ").endswith("would give 75.00 %, 25.0 points more")
    same = BatchNormCheck(accuracy=0.5, recalibrated=0.501, samples=1024)
    assert check_sentence(same).startswith("BatchNorm statistics fit the weights")
    unknown = BatchNormCheck(accuracy=0.5, samples=0, not_measured="no site replied")
    assert check_sentence(unknown).endswith("not checked: no site replied")
    assert check_warning(unknown, FedAvgSettings()) is None


def test_a_found_run_warns_again(tmp_path: Path) -> None:
    experiment = {**SMALL, "method": {"name": "fedavg"}}
    first, second = Warned(), Warned()
    run = fedstill.run(experiment, out=tmp_path, callbacks=first)
    path = run.path / "result.json"
    result = json.loads(path.read_text())
    result["batchnorm"] |= {"accuracy": 0.1, "recalibrated": 0.9}
    path.write_text(json.dumps(result))
    (run.path / "digests.json").unlink()
    fedstill.run(experiment, out=tmp_path, callbacks=second)
    assert ["do not fit" in text for text in second.texts] == [True]


def test_sites_find_what_a_recalibrating_run_has(tmp_path: Path) -> None:
    """The check re-estimates as `buffers: recalibrate` does in its exchange, so its figure is that run's accuracy."""
    on_site = {**SMALL, "evaluation": "on-site"}
    averaged = fedstill.run({**on_site, "method": "fedavg", "check_statistics": True}, out=tmp_path)
    recalibrated = fedstill.run({**on_site, "method": {"name": "fedavg", "buffers": "recalibrate"}}, out=tmp_path)
    unasked = fedstill.run({**on_site, "method": "fedavg"}, out=tmp_path)
    found = averaged.result.batchnorm
    assert found is not None
    assert found.accuracy == averaged.accuracy == unasked.accuracy
    assert found.recalibrated == recalibrated.accuracy != averaged.accuracy
    assert found.samples == sum(make_plan(averaged.experiment).clients.shards.sizes().tolist())
    assert found.traffic is not None
    assert found.traffic.up > 0
    checked_again = recalibrated.result.batchnorm
    assert checked_again is not None
    assert checked_again.gain == 0, "what was just recalibrated by everybody has nothing to gain"
    left_out = unasked.result.batchnorm
    assert left_out is not None
    assert left_out.recalibrated is None
    assert "check_statistics=true" in str(left_out.not_measured)


def test_sites_with_different_models_measure_their_own(tmp_path: Path) -> None:
    """Each client's samples are one batch; statistics pooled over those clients by hand give the same accuracy."""
    method = {"name": "feddf", "proxy": "patches:noise:64x64", "samples": 40, "steps": 2}
    mixed = {**SMALL, "method": method, "evaluation": "on-site", "check_statistics": True}
    mixed |= {"model": None, "models": {"cnn-bn": 2, "cnn": 1}, "training": {"epochs": 1, "batch": 2000}}
    run = fedstill.run(mixed, out=tmp_path)
    found = run.result.batchnorm
    assert found is not None
    plan = make_plan(run.experiment)
    shards = [plan.clients.shards.rows(client) for client in (0, 1)]
    assert found.samples == sum(map(len, shards)), "the third has no BatchNorm"
    model = run.built(architecture="cnn-bn")
    pool_by_hand(model, [plan.clients.data.batch(rows)["inputs"] for rows in shards], plan.task)
    assert plan.clients.test is not None
    scores = [plan.task.score([one], plan.clients.test[0]) for one in (model, run.built(architecture="cnn"))]
    expected = sum(plan.task.summarise(one)["accuracy"] for one in scores) / 2
    assert found.recalibrated == pytest.approx(expected, abs=1.5 / 359)
    assert found.recalibrated != found.accuracy


def pool_by_hand(model: nn.Module, batches: list[torch.Tensor], task: Classification) -> None:
    """Set BatchNorm statistics to those of the inputs of layers, in training mode, over all batches together."""
    inputs: dict[str, list[torch.Tensor]] = {name: [] for name in norm_layers(model)}
    hooks = [
        layer.register_forward_pre_hook(lambda _, given, name=name: inputs[name].append(given[0]))
        for name, layer in norm_layers(model).items()
    ]
    model.eval()
    for layer in norm_layers(model).values():
        layer.train()
    with torch.no_grad():
        for batch in batches:
            task.forward(model, {"inputs": batch})
    for hook in hooks:
        hook.remove()
    for name, layer in norm_layers(model).items():
        rows = torch.cat([one.transpose(0, 1).flatten(1).double() for one in inputs[name]], dim=1)
        assert layer.running_mean is not None
        assert layer.running_var is not None
        layer.running_mean.copy_(rows.mean(dim=1))
        layer.running_var.copy_(rows.var(dim=1))


def test_private_runs_send_no_statistics() -> None:
    experiment = {
        **SMALL,
        "method": {"name": "fedavg", "weights": "uniform"},
        "evaluation": "on-site",
        "privacy": {"name": "client-level", "noise": 1.0},
    }
    with pytest.raises(InputError, match="check_statistics sends statistics"):
        make_plan(make_experiment({**experiment, "check_statistics": True}))


class Unused(nn.Module):
    """A model with a BatchNorm layer that no sample passes, as an auxiliary head may have."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.spare, self.head = nn.BatchNorm1d(4), nn.BatchNorm1d(4), nn.Linear(4, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.norm(inputs))
        return scores


def test_a_layer_that_no_sample_passes_keeps_its_statistics() -> None:
    with Streams(0).ambient("model"):
        model = Unused()
        inputs = torch.randn(10, 4) + 5
    model.spare.running_mean.fill_(7)  # type: ignore[union-attr]
    task = Classification(("a", "b"), (4,), ("unused",))
    data = ArrayDataset(inputs=inputs, labels=torch.zeros(10, dtype=torch.int64))
    assert recalibrate(model, task, data, Streams(1), batch=10)
    assert model.norm.running_mean is not None
    assert model.norm.running_var is not None
    assert torch.allclose(model.norm.running_mean, inputs.mean(dim=0), atol=1e-5)
    assert torch.allclose(model.norm.running_var, inputs.var(dim=0), atol=1e-5)
    assert model.spare.running_mean.tolist() == [7.0] * 4  # type: ignore[union-attr]
