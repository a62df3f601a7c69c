"""Ensemble distillation, with and without one shared image, and distillation at the clients."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fedstill
from fedstill.core.client import answer
from fedstill.core.dataset import ArrayDataset, Proxy, Told
from fedstill.core.errors import InputError
from fedstill.core.message import Message
from fedstill.core.protocols import Failure, Meter, Profile, Reply, RoundContext
from fedstill.core.streams import Streams
from fedstill.methods.base import LOGITS
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.egress_manifest import egress_manifest
from fedstill.runtime.plan import Simulation, make_plan
from fedstill.runtime.simulated_clients import SimulatedClients
from fedstill.shared_image.ensemble_settings import EnsembleSettings, steps_in
from fedstill.shared_image.feddf import INITIALISE, LESSON, FedDF
from fedstill.shared_image.shared_samples import SELECTED, StepSettings, logits_on, on_logits, towards
from fedstill.shared_image.teacher_weights import consensus

TINY: dict[str, Any] = {
    "data": "digits",
    "model": "cnn",
    "clients": 4,
    "rounds": 2,
    "training": {"epochs": 1, "batch": 64},
}
SHORT: dict[str, Any] = {"proxy": "digits", "samples": 60, "steps": 4, "batch": 32}
MIXED = {"cnn": 2, "mlp": 2}


def planned(name: str = "feddf", **changes: Any) -> Simulation:
    settings = changes.pop("settings", SHORT)
    return make_plan(make_experiment({**TINY, "method": {"name": name, **settings}, **changes}))


def feddf(plan: Simulation) -> FedDF:
    assert isinstance(plan.method, FedDF)
    return plan.method


def turn_of(plan: Simulation, round: int = 0) -> RoundContext:
    streams = plan.streams.at("round", round, plan.method.name)
    return RoundContext(round, plan.rounds, len(plan.profiles), plan.method.name, streams)


def teacher_outputs(client: int, samples: int, logits: list[list[float]]) -> Reply:
    return Reply(Profile(client, samples, "cnn"), Message({LOGITS: torch.tensor(logits, dtype=torch.float16)}), {})


def test_the_consensus_is_the_mean_of_logits_weighted_by_samples() -> None:
    """(1 x [0, 2] + 3 x [4, -2]) / 4 = [3, -1]; of equals, [2, 0]."""
    replies = [teacher_outputs(0, 1, [[0.0, 2.0]]), teacher_outputs(1, 3, [[4.0, -2.0]])]
    assert consensus(replies, "samples").tolist() == [[3.0, -1.0]]
    assert consensus(replies, "uniform").tolist() == [[2.0, 0.0]]


@pytest.mark.parametrize(("rate", "rounds"), [(1.0, [0, 1, 2, 3, 4, 5]), (0.5, [0, 2, 4]), (0.2, [0, 5])])
def test_initialisation_rounds(rate: float, rounds: list[int]) -> None:
    method = feddf(planned(settings={**SHORT, "initialise": rate}))
    assert [round for round in range(6) if method.initialises(round)] == rounds


def test_the_growing_schedule_takes_three_quarters_of_the_steps() -> None:
    """From 250 to 500 over 30 rounds: 30 x 375 = 11,250, where the uniform schedule takes 15,000."""
    settings = feddf(planned(settings={**SHORT, "steps": 500, "schedule": "growing"})).settings
    steps = [steps_in(settings, round, 30) for round in range(30)]
    assert (steps[0], steps[-1]) == (250, 500)
    assert sum(steps) == pytest.approx(11_250, abs=15)


def test_the_released_code_averages_in_rounds_one_five_and_ten() -> None:
    method = feddf(planned(settings={**SHORT, "initialise": 0.2, "averaging": "multiples"}))
    assert [round + 1 for round in range(12) if method.initialises(round)] == [1, 5, 10]


def test_the_cosine_schedule_takes_11281_steps() -> None:
    """Down from 500 to 250 in five rounds, truncated: 500, 463, 375, 286, 250 from round 5 on, 25 rounds of them, less
    the 500 of a round 30 that begins a sixth period; before, round 1 with 500 and rounds 2 to 4 with 375, 286, 250."""
    settings = feddf(planned(settings={**SHORT, "steps": 500, "schedule": "cosine"})).settings
    steps = [steps_in(settings, round, 30) for round in range(30)]
    period = [500, 463, 375, 286, 250]
    assert steps == [500, *period[2:], *(5 * period), 500]
    assert sum(steps) == 11_281


def test_without_a_step_it_is_fedavg_to_the_bit(tmp_path: Path) -> None:
    """Adam at a rate far below the precision of weights moves nothing, and the model has no running statistics."""
    still = fedstill.run({**TINY, "method": {"name": "feddf", **SHORT, "rate": 1e-30}}, out=tmp_path)
    plain = fedstill.run({**TINY, "method": "fedavg"}, out=tmp_path)
    assert still.sha256 == plain.sha256


def test_fedprox_clients_are_fedprox(tmp_path: Path) -> None:
    still = fedstill.run({**TINY, "method": {"name": "feddf", **SHORT, "rate": 1e-30, "mu": 0.3}}, out=tmp_path)
    prox = fedstill.run({**TINY, "method": {"name": "fedprox", "mu": 0.3}}, out=tmp_path)
    assert still.sha256 == prox.sha256


def test_the_steps_are_those_of_plain_torch() -> None:
    """Adam on the mean KL divergence from softmax(said) to what the student says, batch by batch in the same order."""
    plan = planned(model="mlp")
    torch.manual_seed(0)
    inputs, said = torch.randn(24, 1, 8, 8), 3 * torch.randn(24, 10)
    settings, streams = StepSettings(rate=0.01, batch=8), Streams(3)
    model = plan.task.build("mlp", streams=Streams(1))
    other = plan.task.build("mlp", streams=Streams(1))
    proxy = Told(ArrayDataset(inputs=inputs), said)
    towards(model, plan.task, proxy, on_logits("vanilla", 1.0), settings, 5, streams, Meter())
    optimiser = torch.optim.Adam(other.parameters(), lr=0.01)
    other.train()
    order = [
        rows for epoch in range(2) for rows in torch.from_numpy(streams.draw("order", epoch).permutation(24)).split(8)
    ]
    for rows in order[:5]:
        optimiser.zero_grad()
        output_of = plan.task.forward(other, {"inputs": inputs[rows], "sample_id": rows}).log_probabilities.log_softmax(
            dim=1
        )
        F.kl_div(output_of, said[rows].log_softmax(dim=1), reduction="batchmean", log_target=True).backward()
        optimiser.step()
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def test_weights_leave_a_client_only_in_initialisation_rounds(tmp_path: Path) -> None:
    settings = {**SHORT, "initialise": 0.5, "samples": 100}
    run = fedstill.run({**TINY, "rounds": 4, "method": {"name": "feddf", **settings}}, out=tmp_path)
    up = [record.bytes.up for record in run.journal]
    logits = 4 * 100 * 10 * 2
    assert up[1] == up[3]
    assert logits < up[1] < logits + 4 * 1000
    assert up[0] == up[2] > up[1] + 4 * 40_000


PRECISE = {**SHORT, "precision": "full", "initialise": 0.25}


@pytest.mark.parametrize("models", [{}, MIXED], ids=["one architecture", "two"])
def test_a_client_makes_the_servers_model_of_what_was_said(tmp_path: Path, models: dict[str, int]) -> None:
    """The same run to the bit, whichever goes down, though clients miss rounds; only the bytes are fewer."""
    setting = {**TINY, "model": None, "rounds": 7, "participation": {"name": "random", "fraction": 0.5}, "seed": 3}
    setting |= {"models": models} if models else {"model": "cnn"}
    runs = {
        downlink: fedstill.run(
            {**setting, "method": {"name": "feddf", **PRECISE, "schedule": "growing", "downlink": downlink}},
            out=tmp_path,
        )
        for downlink in ("model", "logits")
    }
    assert runs["model"].sha256 == runs["logits"].sha256
    down = {downlink: sum(record.bytes.down for record in run.journal) for downlink, run in runs.items()}
    up = {downlink: sum(record.bytes.up for record in run.journal) for downlink, run in runs.items()}
    assert up["model"] == up["logits"]
    assert down["logits"] < 0.9 * down["model"]


def test_the_model_goes_down_when_a_client_cannot_make_it(tmp_path: Path) -> None:
    """With everybody there: at first contact (round 0), after an average (1, 5), and when weights are wanted (4)."""
    settings = {**SHORT, "initialise": 0.25, "downlink": "logits"}
    run = fedstill.run({**TINY, "rounds": 8, "method": {"name": "feddf", **settings}}, out=tmp_path)
    down = [record.bytes.down for record in run.journal]
    assert [number for number, size in enumerate(down) if size > 100_000] == [0, 1, 4, 5]
    server = {**planned(settings=settings).method.start(Streams(0)), f"{LESSON}000003/{LOGITS}": torch.zeros(60, 10)}
    plan = planned(settings=settings)
    assert feddf(plan).lessons(server, Profile(0, 5, "cnn", last_round=3), turn_of(plan, 4)) is None


def test_a_client_without_the_model_it_is_taken_to_hold_fails() -> None:
    plan = planned(settings={**SHORT, "initialise": 0.1, "downlink": "logits"})
    method = feddf(plan)
    server = method.remembered(
        dict(method.prepare(method.start(plan.streams), turn_of(plan, 1))), torch.zeros(60, 10), turn_of(plan, 1)
    )
    who = replace(plan.profiles[0], last_round=1)
    request = method.request(server, who, turn_of(plan, 2))
    assert request is not None
    assert not request.part("model/")
    result = answer(plan.clients, method, who, request, {}, turn_of(plan, 2))
    assert isinstance(result, Failure)
    assert "there is none" in result.detail


def test_indices_go_down_and_logits_in_half_precision_come_up() -> None:
    plan = planned(settings={**SHORT, "initialise": 0.2})
    server = plan.method.prepare(plan.method.start(plan.streams), turn_of(plan, 1))
    request = plan.method.request(server, plan.profiles[0], turn_of(plan, 1))
    assert request is not None
    assert (request[SELECTED].dtype, request[SELECTED].shape) == (torch.int32, (60,))
    assert not bool(request[INITIALISE])
    reply = answer(plan.clients, plan.method, plan.profiles[0], request, {}, turn_of(plan, 1))
    assert isinstance(reply, Reply)
    assert (reply.message[LOGITS].dtype, reply.message[LOGITS].shape) == (torch.float16, (60, 10))
    assert sorted(reply.message) == [LOGITS, "loss/cross-entropy", "steps"]
    lines = {line["kind"] for line in egress_manifest(plan)["leaves"]}
    assert "logits" in lines


def test_what_a_client_says_is_its_trained_model_in_evaluation_mode() -> None:
    plan = planned(model="cnn-bn")
    server = plan.method.prepare(plan.method.start(plan.streams), turn_of(plan))
    request = plan.method.request(server, plan.profiles[1], turn_of(plan))
    assert request is not None
    reply = answer(plan.clients, plan.method, plan.profiles[1], request, {}, turn_of(plan))
    assert isinstance(reply, Reply)
    model = plan.task.build("cnn-bn", reply.message.part("model/"))
    rows = request[SELECTED].long()
    expected = logits_on(plan.task, model, ArrayDataset(inputs=plan.bundle.train.batch(rows)["inputs"]))
    assert torch.equal(reply.message[LOGITS], expected.half())


def test_each_architecture_averages_its_own_and_learns_from_all(tmp_path: Path) -> None:
    """With steps that move nothing: the mean of the two clients of that architecture, whatever the others are."""
    still = {**SHORT, "rate": 1e-30}
    plan = planned(settings=still, model=None, models=MIXED, rounds=1)
    run = fedstill.run(
        {**TINY, "model": None, "models": MIXED, "rounds": 1, "method": {"name": "feddf", **still}}, out=tmp_path
    )
    server, context = plan.method.prepare(plan.method.start(plan.streams), turn_of(plan)), turn_of(plan)
    for architecture, clients in {"cnn": (0, 1), "mlp": (2, 3)}.items():
        replies = []
        for client in clients:
            request = plan.method.request(server, plan.profiles[client], context)
            assert request is not None
            replies.append(answer(plan.clients, plan.method, plan.profiles[client], request, {}, context))
        counts = [plan.profiles[client].samples for client in clients]
        states = [reply.message.part("model/parameters/") for reply in replies if isinstance(reply, Reply)]
        for name, tensor in run.model(architecture=architecture).named_parameters():
            mean = sum(c * s[name].double() for c, s in zip(counts, states, strict=True)) / sum(counts)
            torch.testing.assert_close(tensor.detach().double(), mean, rtol=0, atol=1e-6)
    assert run.journal[0].metrics["accuracy"] == pytest.approx(
        sum(one["accuracy"] for one in run.journal[0].evaluation.extra_models.values()) / 2
    )
    assert set(run.journal[0].evaluation.extra_models) == {"cnn", "mlp"}


def test_averaging_methods_refuse_clients_of_different_shapes() -> None:
    with pytest.raises(InputError, match="fedavg averages weights, and clients with cnn and mlp have none in common"):
        make_plan(make_experiment({**TINY, "model": None, "models": MIXED, "method": "fedavg"}))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"models": {"cnn": 3, "mlp": 2}, "clients": 4}, "models are for 5 clients, and there are 4"),
        ({"models": {"cnn": 4}, "model": "mlp", "clients": 4}, "leave model out"),
        ({"models": {"cnn": 4, "nonsense": 1}}, "nonsense"),
    ],
)
def test_models_that_do_not_fit_the_clients_are_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        make_plan(make_experiment({"data": "digits", "method": {"name": "feddf", **SHORT}, **given}))


def test_another_proxy_than_the_servers_is_refused_by_its_hash() -> None:
    plan = planned(
        "single-image",
        settings={
            "image": "noise:64x64",
            "patches": {"count": 80},
            "samples": 40,
            "steps": 2,
            "selection": {"kmeans": 4, "prune": 0.2},
        },
    )
    server = plan.method.prepare(plan.method.start(plan.streams), turn_of(plan))
    request = plan.method.request(server, plan.profiles[0], turn_of(plan))
    assert request is not None
    pool = plan.clients.proxy
    assert pool is not None
    for proxy in (None, Proxy(pool.data, "00" * 32)):
        clients = SimulatedClients(plan.task, plan.clients.data, plan.clients.shards, proxy=proxy)
        lost = answer(clients, plan.method, plan.profiles[0], request, {}, turn_of(plan))
        assert isinstance(lost, Failure)
        assert "the proxy data here is not the server's" in lost.detail
    far = Message({**request, SELECTED: torch.tensor([0, 80], dtype=torch.int32)})
    lost = answer(plan.clients, plan.method, plan.profiles[0], far, {}, turn_of(plan))
    assert isinstance(lost, Failure)
    assert "there are 80 proxy samples" in lost.detail


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({}, "set method.proxy"),
        ({"proxy": "heads"}, "holds clouds"),
        ({**SHORT, "objective": "feature"}, "clients send logits, and the objective feature wants more"),
        ({**SHORT, "objective": "crd"}, "not assessable without labels"),
        ({"proxy": "patches:nowhere.png"}, "nowhere"),
    ],
)
def test_what_cannot_be_distilled_is_refused_before_any_work(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        planned(settings=settings)


def test_more_samples_or_clusters_than_patches_are_refused() -> None:
    base = {"image": "noise:64x64", "patches": {"count": 50}}
    with pytest.raises(InputError, match="50"):
        planned("single-image", settings={**base, "samples": 60, "selection": {"kmeans": 5}})
    with pytest.raises(InputError, match="cannot be put into 500 clusters"):
        planned("single-image", settings={**base, "samples": 20, "selection": {"kmeans": 500}})


def test_selection_follows_the_model(tmp_path: Path) -> None:
    """Other indices in the next round, as many as asked for, each a patch of the pool; the same in another run."""
    settings = {
        "image": "china",
        "patches": {"count": 200},
        "samples": 30,
        "steps": 3,
        "selection": {"kmeans": 10, "prune": 0.5},
    }
    plan = planned("single-image", settings=settings)
    method = feddf(plan)
    server = method.start(plan.streams)
    first = method.prepare(server, turn_of(plan, 0))[SELECTED]
    other = {
        name: tensor + 0.05 * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(1))
        if tensor.is_floating_point()
        else tensor
        for name, tensor in server.items()
    }
    second = method.prepare(other, turn_of(plan, 0))[SELECTED]
    assert len(set(first.tolist())) == len(set(second.tolist())) == 30
    assert 0 <= int(first.min()) <= int(first.max()) < 200
    assert not torch.equal(first, second)
    assert torch.equal(
        first, feddf(planned("single-image", settings=settings)).prepare(server, turn_of(plan, 0))[SELECTED]
    )


def test_fedmd_clients_learn_from_each_other_and_keep_their_models(tmp_path: Path) -> None:
    """Nothing but logits crosses, both ways; from the second round on a consensus is sent."""
    given = {**TINY, "model": None, "models": MIXED, "rounds": 3, "method": {"name": "fedmd", **SHORT}}
    run = fedstill.run(given, out=tmp_path)
    logits = 60 * 10 * 2
    assert all(4 * logits < record.bytes.up < 4 * (logits + 700) for record in run.journal)
    down = [record.bytes.down for record in run.journal]
    assert down[1] - down[0] == pytest.approx(4 * logits, abs=4 * 100)
    assert run.result.personal.clients == 4
    sizes = [sum(weight.numel() for weight in run.model(client=client).parameters()) for client in range(4)]
    assert sizes[0] == sizes[1] != sizes[2] == sizes[3]
    alone = fedstill.run({**given, "method": {"name": "fedmd", **SHORT, "rate": 1e-30}}, out=tmp_path)
    assert alone.sha256 != run.sha256


def test_settings_are_described() -> None:
    assert all(field.description for field in EnsembleSettings.model_fields.values())


def test_a_model_that_says_no_numbers_does_not_end_the_run() -> None:
    settings = {"image": "noise:64x64", "patches": {"count": 80}, "samples": 20, "selection": {"kmeans": 4}}
    plan = planned("single-image", settings=settings)
    server = {
        name: tensor * float("nan") if tensor.is_floating_point() else tensor
        for name, tensor in plan.method.start(plan.streams).items()
    }
    chosen = plan.method.prepare(server, turn_of(plan))[SELECTED]
    assert len(set(chosen.tolist())) == 20
