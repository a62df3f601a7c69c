"""Clients' hidden layers matched into one: over the mean of their extractors, or over inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedstill.core.errors import InputError
from fedstill.core.kinds import state_of
from fedstill.core.message import digest, part
from fedstill.core.streams import Streams
from fedstill.models.classifier import Classifier
from fedstill.queries.perceptron import Perceptron, neurons_of, state_from
from fedstill.queries.pfnm import PFNM, PFNMSettings
from fedstill.runtime.egress_manifest import egress_manifest

from .asked import Table, planned, played

SMALL = {"hidden": 12, "sweeps": 1}
INPUTS = {**SMALL, "over": "inputs"}


def pfnm(**settings: Any) -> PFNM:
    method = planned("pfnm", {**SMALL, **settings}).method
    assert isinstance(method, PFNM)
    return method


def perceptron(seed: int, width: int = 20, neurons: int = 12, classes: int = 10) -> dict[str, torch.Tensor]:
    with Streams(seed).ambient("perceptron"):
        return state_of(Perceptron(width, neurons, classes))


def permuted(state: dict[str, torch.Tensor], order: torch.Tensor) -> dict[str, torch.Tensor]:
    """The same function with its hidden neurons in another order."""
    return {
        "parameters/hidden.weight": state["parameters/hidden.weight"][order],
        "parameters/hidden.bias": state["parameters/hidden.bias"][order],
        "parameters/output.weight": state["parameters/output.weight"][:, order],
        "parameters/output.bias": state["parameters/output.bias"],
    }


def test_a_perceptron_is_its_neurons_and_a_bias() -> None:
    """Width 20, ten classes: rows of 20 + 1 + 10."""
    state = perceptron(1)
    neurons = neurons_of(state)
    assert neurons.shape == (12, 31)
    assert digest(state_from(neurons, state["parameters/output.bias"])) == digest(state)
    row = torch.cat(
        [
            state["parameters/hidden.weight"][3],
            state["parameters/hidden.bias"][3:4],
            state["parameters/output.weight"][:, 3],
        ]
    )
    assert torch.equal(neurons[3].float(), row)


@pytest.mark.parametrize("counted", [False, True], ids=["alike", "by class counts"])
def test_permuted_copies_of_one_network_match_back_to_it(counted: bool) -> None:
    """With a prior that says nothing nobody is shrunk: what comes out says what each of them says."""
    method = pfnm(prior_variance=1e12, class_counts=counted, variance=0.001)
    state = perceptron(1)
    orders = [torch.from_numpy(np.random.default_rng(seed).permutation(12)) for seed in range(3)]
    counts = [torch.randint(1, 30, (10,), generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    heads = [permuted(state, order) for order in orders]
    found = method.matched(heads, counts if counted else None, Streams(0))
    assert found["parameters/hidden.bias"].shape == (12,)
    inputs = torch.randn(7, 20, generator=torch.Generator().manual_seed(9))
    with torch.no_grad():
        said, expected = Perceptron.of(found)(inputs)[0], Perceptron.of(state)(inputs)[0]
        mean = Perceptron.of({name: sum(head[name] for head in heads) / 3 for name in state})(inputs)[0]
    torch.testing.assert_close(said, expected, rtol=1e-4, atol=1e-5)
    assert (mean - expected).abs().max() > 0.05  # which a plain mean does not


def test_two_networks_with_nothing_in_common_are_put_side_by_side() -> None:
    """Their neurons and their biases' mean: it says the mean of biases plus what both add to theirs."""
    method = pfnm(prior_variance=1e12, variance=1e-4, class_counts=False)
    heads = [perceptron(seed) for seed in (1, 2)]
    found = method.matched(heads, None, Streams(0))
    assert found["parameters/hidden.weight"].shape == (24, 20)
    inputs = torch.randn(7, 20, generator=torch.Generator().manual_seed(9))
    with torch.no_grad():
        hidden = [Perceptron.of(head).hidden(inputs).relu() for head in heads]
        each = [F.linear(read, head["parameters/output.weight"]) for read, head in zip(hidden, heads, strict=True)]
        bias = (heads[0]["parameters/output.bias"] + heads[1]["parameters/output.bias"]) / 2
        torch.testing.assert_close(Perceptron.of(found)(inputs)[0], F.log_softmax(sum(each) + bias, dim=1))


def test_who_has_no_samples_of_a_class_does_not_count_for_it() -> None:
    """Two clients with the same neurons but for their last class, which only the first has samples of."""
    method = pfnm(prior_variance=1e12, variance=0.001)
    mine, theirs = perceptron(1), perceptron(1)
    theirs["parameters/output.weight"][9] += 5.0
    theirs["parameters/output.bias"][9] += 5.0
    counts = [torch.ones(10, dtype=torch.int64), torch.tensor([1] * 9 + [0])]
    found = method.matched([mine, theirs], counts, Streams(0))
    assert len(found["parameters/hidden.bias"]) == 12
    torch.testing.assert_close(sorted_rows(found), sorted_rows(mine), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found["parameters/output.bias"], mine["parameters/output.bias"], rtol=1e-4, atol=1e-6)
    nobody = method.matched([mine, theirs], [torch.tensor([1] * 9 + [0])] * 2, Streams(0))
    assert float(nobody["parameters/output.bias"][9]) == 0.0  # the prior's mean


def sorted_rows(state: dict[str, torch.Tensor]) -> torch.Tensor:
    rows = neurons_of(state)
    return rows[rows[:, 0].argsort()]


# As a run


def test_everybody_uses_the_same_model(tmp_path: Path) -> None:
    ended = played(tmp_path, "pfnm", SMALL)
    assert {name.split("/")[0] for name in ended.server} == {"start", "start-head", "model"}
    assert {name.split("/")[1] for name in ended.server if name.startswith("model/")} == {"common", "head"}
    models = [ended.run.model(client=client) for client in range(4)]
    assert len({digest(state_of(model)) for model in models}) == 1
    personal = ended.run.result.personal
    assert (personal["clients"], personal["std"]) == (4, 0.0)
    neurons = ended.server["model/head/parameters/hidden.bias"]
    assert ended.run.journal[-1].method_metrics == {"neurons": len(neurons)}
    assert isinstance(models[0], Classifier)
    assert models[0].feature_size == len(neurons)


def by_hand(client: int, data: Any, epochs: int, start: Any) -> Perceptron:
    """A client's head in plain torch, on the features of the mean extractor."""
    head = Perceptron.of(start)
    optimiser = torch.optim.Adam(head.parameters(), lr=1e-3)
    streams = Streams(7).at("round", 0, "heads", "client", client)
    for epoch in range(epochs):
        for rows in torch.from_numpy(streams.draw("order", epoch).permutation(len(data[1]))).split(64):
            if len(rows) > 1:
                optimiser.zero_grad()
                F.nll_loss(head(data[0][rows])[0], data[1][rows]).backward()
                optimiser.step()
    return head


def test_heads_are_trained_on_features_of_the_mean_extractor(tmp_path: Path) -> None:
    """The extractor is the mean by samples of those trained alone, in evaluation; a head is plain torch's, on that."""
    settings = {**SMALL, "head_epochs": 3}
    alone, ended = played(tmp_path, "local-only"), played(tmp_path, "pfnm", settings)
    assert ended.models("before/") == ended.models() == alone.models()
    table = Table(planned("pfnm", settings))
    plan = table.plan
    train, heads = plan.method.exchanges(table.server, 0)
    table.dispatch(train)
    counts = [who.samples for who in plan.profiles]
    for name, tensor in part(table.server, "common/parameters/").items():
        mean = sum(
            n * part(state, "model/parameters/")[name].double() for n, state in zip(counts, alone.states, strict=True)
        ) / sum(counts)
        torch.testing.assert_close(tensor.double(), mean, rtol=0, atol=1e-7)
    common = plan.task.build("mlp", part(table.server, "common/")).eval()
    start = part(table.server, "start-head/")
    replies = table.dispatch(heads)
    shard = plan.clients(plan.profiles[2], {}, table.context(heads)).data
    batch = shard.batch(torch.arange(len(shard)))
    with torch.no_grad():
        features = common.extractor(batch["inputs"])
    expected = by_hand(2, (features, batch["labels"]), 3, start)
    for name, tensor in state_of(expected).items():
        torch.testing.assert_close(replies[2].message[f"head/{name}"], tensor, rtol=1e-3, atol=1e-5)
    assert torch.equal(replies[2].message["class_counts"], torch.bincount(batch["labels"], minlength=10))
    for name in part(table.server, "model/common/"):
        assert torch.equal(table.server[f"model/common/{name}"], ended.server[f"model/common/{name}"])


def test_the_model_reads_what_heads_were_trained_on(tmp_path: Path) -> None:
    for settings in (SMALL, INPUTS):
        ended = played(tmp_path, "pfnm", settings)
        inputs = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(3))
        head = Perceptron.of(part(ended.server, "model/head/"))
        common = part(ended.server, "model/common/")
        with torch.no_grad():
            read = ended.run.task.build("mlp", common).eval().extractor(inputs) if common else inputs.flatten(1)
            said, features = ended.run.model(client=1).eval()(inputs)
            for mine, theirs in zip((said, features), head(read), strict=True):
                torch.testing.assert_close(mine, theirs)
        assert bool(common) == (settings is SMALL)


def test_over_inputs_no_model_is_sent(tmp_path: Path) -> None:
    """A head of 64 x 12 + 12 + 12 x 10 + 10 weights, and ten counts; the model has 55,210."""
    ended = played(tmp_path, "pfnm", INPUTS)
    head = 4 * (64 * 12 + 12 + 12 * 10 + 10) + 10 * 8
    assert 4 * head < ended.run.journal[0].bytes.up < 4 * (head + 1500)
    bare = played(tmp_path, "pfnm", {**INPUTS, "class_counts": False})
    assert bare.run.journal[0].bytes.up < ended.run.journal[0].bytes.up - 4 * 80


def test_before_anything_is_matched_a_client_has_what_it_trained() -> None:
    plan = planned("pfnm", SMALL)
    table, method = Table(plan), plan.method
    assert method.personalise(table.server, {}) is None
    table.dispatch(method)
    personal = method.personalise(table.server, table.states[1])
    assert personal is not None
    own = part(table.states[1], "model/")
    assert digest(state_of(method.assemble("mlp", personal))) == digest(own)
    assert method.metrics(table.server) == {}


def test_what_leaves_is_declared() -> None:
    leaves = egress_manifest(planned("pfnm", SMALL))["leaves"]
    assert {line["to"] for line in leaves} == {"server"}
    counts = [line for line in leaves if line["name"] == "class_counts"]
    assert [(line["kind"], line["exchange"], line["bytes"]) for line in counts] == [("statistics", "heads", 80)]
    bare = egress_manifest(planned("pfnm", {**INPUTS, "class_counts": False}))["leaves"]
    assert all(line["bytes"] for line in bare), "what cannot leave is not listed"
    sent = {(line["exchange"], line["kind"]) for line in bare}
    assert sent == {("train", "metrics"), ("heads", "parameters"), ("heads", "metrics")}


@pytest.mark.parametrize(
    ("settings", "changes", "sentence"),
    [
        ({"hidden": 50, "limit": 40}, {}, "limit is 40, and a client's 50 hidden neurons may all be different"),
        ({"over": "inputs"}, {"data": "heads", "model": "pointnet-tiny"}, "points of a cloud come in no particular"),
        ({}, {"model": None, "models": {"cnn": 2, "mlp": 2}}, "clients with cnn and mlp have none in common"),
        ({"hidden": 0}, {}, "hidden"),
        ({"variance": 0}, {}, "variance"),
        ({"prior_variance": -1}, {}, "prior_variance"),
        ({"gamma": 0}, {}, "gamma"),
        ({"over": "outputs"}, {}, "over"),
    ],
    ids=["limit", "cloud", "architectures", "hidden", "variance", "prior", "gamma", "over"],
)
def test_what_cannot_be_matched_is_refused(settings: dict[str, Any], changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        planned("pfnm", settings, **changes)


def test_settings_are_described() -> None:
    assert all(field.description for field in PFNMSettings.model_fields.values())
