"""BatchNorm statistics of distilled models: frozen, those of proxy batches, or measured on the clients' data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedstill
from fedstill.core.dataset import ArrayDataset, Subset, Told
from fedstill.core.errors import InputError
from fedstill.core.kinds import norm_layers, state_of
from fedstill.core.message import part
from fedstill.core.protocols import Meter, RoundContext
from fedstill.core.streams import Streams
from fedstill.core.task import Tensors
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.egress_manifest import egress_manifest
from fedstill.runtime.plan import Simulation, make_plan
from fedstill.shared_image.shared_samples import StepSettings, on_logits, towards

WAYS = ("frozen", "batch", "recalibrate")
TINY: dict[str, Any] = {
    "data": "digits[:30%]",
    "model": "cnn-bn",
    "clients": 4,
    "rounds": 1,
    "training": {"epochs": 1, "batch": 32},
}
SHORT: dict[str, Any] = {"proxy": "digits", "samples": 60, "steps": 4, "batch": 32}
MIXED = {"model": None, "models": {"cnn-bn": 2, "mlp": 2}}


def given(way: str, method: str = "feddf", **changes: Any) -> dict[str, Any]:
    settings = changes.pop("settings", {})
    return {**TINY, "method": {"name": method, **SHORT, "statistics": way, **settings}, **changes}


def planned(way: str, method: str = "feddf", **changes: Any) -> Simulation:
    return make_plan(make_experiment(given(way, method, **changes)))


def statistics(state: Tensors) -> dict[str, Tensor]:
    return part(state, "buffers/")


def server_model(run: Any, architecture: str = "cnn-bn") -> dict[str, Tensor]:
    return state_of(run.model(architecture=architecture))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One round of two architectures, in each of the three ways."""
    out = tmp_path_factory.mktemp("statistics")
    return {way: fedstill.run(given(way, **MIXED), out=out) for way in WAYS}


def plain_steps(model: nn.Module, inputs: Tensor, outputs: Tensor, batches: list[Tensor], frozen: bool) -> None:
    """Adam on the KL divergence in plain torch, with BatchNorm layers in one mode or the other."""
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    model.train()
    for layer in norm_layers(model).values():
        layer.train(not frozen)
    for rows in batches:
        optimiser.zero_grad()
        student = model(inputs[rows])[0].log_softmax(dim=1)
        F.kl_div(student, outputs[rows].log_softmax(dim=1), reduction="batchmean", log_target=True).backward()
        optimiser.step()


@pytest.mark.parametrize("way", ["frozen", "batch"])
def test_the_steps_are_those_of_plain_torch(way: Any) -> None:
    """A model whose statistics are far from those of the proxy, so that the modes cannot be confused."""
    task = planned(way, model="resnet8").task
    torch.manual_seed(0)
    inputs, outputs = 2 + torch.randn(24, 1, 8, 8), 3 * torch.randn(24, 10)
    settings, streams = StepSettings(rate=0.01, batch=8, statistics=way), Streams(3)
    model, other = (task.build("resnet8", streams=Streams(1)) for _ in range(2))
    start = statistics(state_of(model))
    proxy = Told(ArrayDataset(inputs=inputs), outputs)
    towards(model, task, proxy, on_logits("vanilla", 1.0), settings, 5, streams, Meter())
    order = [
        rows for epoch in range(2) for rows in torch.from_numpy(streams.draw("order", epoch).permutation(24)).split(8)
    ]
    plain_steps(other, inputs, outputs, order[:5], frozen=way == "frozen")
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-5)
    same = all(torch.equal(tensor, start[name]) for name, tensor in statistics(state_of(model)).items())
    assert same == (way == "frozen")


def test_a_model_without_batchnorm_is_the_same_in_all_three_ways(tmp_path: Path) -> None:
    runs = [fedstill.run(given(way, model="cnn", rounds=2), out=tmp_path) for way in WAYS]
    assert len({run.sha256 for run in runs}) == 1
    assert len({record.bytes.down for run in runs for record in run.journal[1:]}) == 1
    assert not runs[-1].journal[0].method_metrics


def test_recalibration_leaves_the_weights_of_the_frozen_way(runs: dict[str, Any]) -> None:
    """In the first round; in the next one the student starts from other statistics."""
    models = {way: server_model(run) for way, run in runs.items()}
    for name, tensor in models["frozen"].items():
        assert torch.equal(tensor, models["recalibrate"][name]) == (not name.startswith("buffers/")), name
    weights = [models[way]["parameters/extractor.1.weight"] for way in ("frozen", "batch")]
    assert not torch.equal(*weights)
    for way in WAYS[1:]:
        assert all(torch.equal(server_model(runs[way], "mlp")[name], tensor) for name, tensor in mlp(runs).items())


def mlp(runs: dict[str, Any]) -> dict[str, Tensor]:
    return server_model(runs["frozen"], "mlp")


def test_the_statistics_are_those_of_the_architectures_own_clients(runs: dict[str, Any]) -> None:
    """What the first BatchNorm layer sees is the convolution of the two clients' samples, whatever the batches."""
    plan = planned("recalibrate", **MIXED)
    model = runs["recalibrate"].model(architecture="cnn-bn").eval()
    rows = torch.cat([plan.clients.shards.rows(client) for client in (0, 1)])
    data = Subset(plan.clients.data, rows)
    with torch.no_grad():
        seen = model.extractor[:2](data.batch(torch.arange(len(data)))["inputs"]).double()
    layer = norm_layers(model)["extractor.2"]
    torch.testing.assert_close(layer.running_mean.double(), seen.mean(dim=(0, 2, 3)), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        layer.running_var.double(), seen.transpose(0, 1).flatten(1).var(dim=1), rtol=1e-3, atol=0
    )


def test_the_journal_tells_how_many_clients_measured(runs: dict[str, Any], tmp_path: Path) -> None:
    assert runs["recalibrate"].journal[0].method_metrics == {"recalibrated cnn-bn": 2.0}
    alone = {"participation": {"name": "random", "number": 1}, "rounds": 3, "seed": 2}
    several = fedstill.run(given("recalibrate", **MIXED, **alone, settings={"initialise": 0.1}), out=tmp_path)
    counts = {(record.accepted[0] < 2, record.method_metrics["recalibrated cnn-bn"]) for record in several.journal}
    assert counts == {(True, 1.0), (False, 0.0)}
    assert all(record.skipped is None for record in several.journal)


def test_a_model_that_nobody_can_measure_keeps_its_statistics() -> None:
    plan = planned("recalibrate", **MIXED)
    server = plan.method.start(plan.streams)
    (_, exchange) = plan.method.exchanges(server, 0)
    assert exchange.request(server, plan.profiles[2], None) is None  # an mlp
    after = exchange.aggregate(server, [], make_context(plan))
    assert {name for name in after if name not in server} == {"recalibrated/cnn-bn"}
    assert all(torch.equal(after[name], tensor) for name, tensor in server.items())


def make_context(plan: Simulation) -> RoundContext:
    return RoundContext.of(plan.streams, 0, plan.rounds, len(plan.profiles), "recalibrate")


@pytest.mark.parametrize("way", WAYS)
def test_a_client_that_catches_up_has_the_servers_model(tmp_path: Path, way: str) -> None:
    """The same run bit for bit whether models or logits go down, though clients miss rounds."""
    setting = {"rounds": 6, "participation": {"name": "random", "fraction": 0.5}, "seed": 3, **MIXED}
    settings = {"precision": "full", "initialise": 0.2, "steps": 2}
    runs = {
        downlink: fedstill.run(given(way, **setting, settings={**settings, "downlink": downlink}), out=tmp_path)
        for downlink in ("model", "logits")
    }
    assert runs["model"].sha256 == runs["logits"].sha256
    down = {downlink: sum(record.bytes.down for record in run.journal) for downlink, run in runs.items()}
    assert down["logits"] < 0.97 * down["model"]


def test_what_leaves_a_client_for_it_is_declared() -> None:
    for way, leaves in (("frozen", False), ("batch", False), ("recalibrate", True)):
        lines = {line["name"]: line["kind"] for line in egress_manifest(planned(way))["leaves"]}
        assert (lines.get("norm/*") == "statistics") == leaves
    assert "norm/*" not in {line["name"] for line in egress_manifest(planned("recalibrate", "fedmd"))["leaves"]}


def test_the_digest_of_fedmd_keeps_replaces_or_measures(tmp_path: Path) -> None:
    """With a local rate that moves nothing, what is left differs by the digest alone; the mlp has nothing to freeze."""
    still = {"rounds": 2, "training": {"epochs": 1, "batch": 32, "optimiser": "adam", "rate": 1e-30}, **MIXED}
    runs = {way: fedstill.run(given(way, "fedmd", **still), out=tmp_path) for way in WAYS}
    models = {way: [state_of(run.model(client=client)) for client in (0, 2)] for way, run in runs.items()}
    assert all(torch.equal(models["batch"][1][name], models["frozen"][1][name]) for name in models["batch"][1])
    found = {way: models[way][0]["buffers/extractor.2.running_mean"] for way in WAYS}
    assert not torch.equal(found["frozen"], found["batch"])
    weights = [models[way][0]["parameters/extractor.1.weight"] for way in ("frozen", "recalibrate")]
    assert torch.equal(*weights)


def test_an_unknown_way_is_refused() -> None:
    with pytest.raises(InputError, match=r"statistics: unknown choice 'patches'.* Known: batch, frozen, recalibrate"):
        planned("patches")
