"""An ensemble says the mean of what its members say, and learns nothing."""

from __future__ import annotations

from math import log
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedstill.core.message import digest, part
from fedstill.core.streams import Streams
from fedstill.core.task import Tensors
from fedstill.queries.ensemble import Ensemble
from fedstill.queries.transfer_loss import probe
from fedstill.queries.vote import ConfidentVote, Vote
from fedstill.runtime.egress_manifest import egress_manifest
from fedstill.tasks.classification import Classification

from .asked import MIXED, Ended, Table, planned, played


class Says(nn.Module):
    """Always the same, with a feature of its own."""

    def __init__(self, probabilities: list[float], feature: float) -> None:
        super().__init__()
        self.words, self.feature = torch.tensor(probabilities).log(), feature

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        return self.words.expand(len(inputs), -1), torch.full((len(inputs), 1), self.feature)


def test_a_vote_is_the_mean_of_probabilities_and_the_first_ones_features() -> None:
    """(0.9, 0.1) and (0.3, 0.7): (0.6, 0.4). Weighted 1 to 3: (0.225 + 0.225, ...) = (0.45, 0.55)."""
    members = [Says([0.9, 0.1], 1.0), Says([0.3, 0.7], 2.0)]
    said, features = Vote(members)(torch.zeros(3, 5))
    torch.testing.assert_close(said.exp(), torch.tensor([[0.6, 0.4]]).expand(3, -1))
    assert features.tolist() == [[1.0]] * 3
    weighted, _ = Vote(members, torch.tensor([0.5, 1.5]))(torch.zeros(1, 5))
    torch.testing.assert_close(weighted.exp(), torch.tensor([[0.45, 0.55]]))
    alone, _ = Vote(members, torch.tensor([2.0, 0.0]))(torch.zeros(1, 5))
    torch.testing.assert_close(alone.exp(), torch.tensor([[0.9, 0.1]]))


def own(task: Classification, architecture: str, state: Tensors) -> nn.Module:
    return task.build(architecture, part(state, "model/")).eval()


def check_means(ended: Ended, architectures: list[str]) -> None:
    """Each client's model says the mean of what the models that all trained alone say, in plain torch."""
    run = ended.run
    inputs = torch.randn(9, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    members = [own(run.task, name, state) for name, state in zip(architectures, ended.states, strict=True)]
    with torch.no_grad():
        mean = torch.stack([member(inputs)[0].exp() for member in members]).mean(dim=0)
        for client, member in enumerate(members):
            said, features = run.model(client=client).eval()(inputs)
            torch.testing.assert_close(said.exp(), mean, rtol=1e-5, atol=1e-7)
            torch.testing.assert_close(features, member(inputs)[1])


@pytest.mark.parametrize(
    ("changes", "architectures"),
    [({}, ["mlp"] * 4), (MIXED, ["cnn", "cnn", "mlp", "mlp"])],
    ids=["one architecture", "two"],
)
def test_clients_say_the_mean_of_all_models(tmp_path: Path, changes: dict[str, Any], architectures: list[str]) -> None:
    ended = played(tmp_path, "ensemble", **changes)
    check_means(ended, architectures)
    accuracies = ended.run.result.personal
    assert accuracies["clients"] == 4
    assert accuracies["std"] == pytest.approx(0.0, abs=0.01)  # all say the same, up to the order of a sum


def test_members_are_models_trained_alone(tmp_path: Path) -> None:
    alone, ended = played(tmp_path, "local-only"), played(tmp_path, "ensemble")
    assert ended.models() == ended.models("before/") == alone.models()
    assert {name.split("/")[0] for name in ended.server} == {"start"}
    for client, state in enumerate(ended.states):
        members = part(state, "member/")
        assert sorted({int(name.split("/")[0]) for name in members}) == [other for other in range(4) if other != client]
        for other in {0, 1, 2, 3} - {client}:
            theirs = {name: t for name, t in part(members, f"{other}/").items() if name.startswith("parameters/")}
            assert digest(theirs) == alone.models()[other]


def test_a_later_round_brings_other_members() -> None:
    """Of three clients in a second round each keeps the two others; the fourth is no member any more."""
    table = Table(planned("ensemble"))
    offer, gathering = table.plan.method.exchanges(table.server, 0)
    table.dispatch(offer)
    table.dispatch(gathering)
    replies = table.dispatch(offer)
    table.server = offer.aggregate(table.plan.method.start(table.plan.streams), replies[:3], table.context(offer, 1))
    table.dispatch(gathering)
    members = [sorted({name.split("/")[1] for name in state if name.startswith("member/")}) for state in table.states]
    assert members == [["1", "2"], ["0", "2"], ["0", "1"], ["0", "1", "2"]]


def test_nothing_is_learnt_and_no_step_taken() -> None:
    table = Table(planned("ensemble"))
    offer, gathering = table.plan.method.exchanges(table.server, 0)
    table.dispatch(offer)
    for reply in table.dispatch(gathering):
        assert dict(reply.message) == {"steps": torch.tensor(0)}
        assert reply.work == 0


def test_a_client_that_was_given_nothing_asks_its_own_model() -> None:
    plan = planned("ensemble")
    table, method = Table(plan), plan.method
    assert isinstance(method, Ensemble)
    assert method.personalise(table.server, {}) is None
    table.dispatch(method)
    personal = method.personalise(table.server, table.states[2])
    assert personal is not None
    inputs = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        said, _ = method.assemble("mlp", personal).eval()(inputs)
        torch.testing.assert_close(said, own(plan.task, "mlp", table.states[2])(inputs)[0], rtol=1e-5, atol=1e-6)


def test_what_leaves_goes_to_peers() -> None:
    leaves = egress_manifest(planned("ensemble"))["leaves"]
    assert {line["to"] for line in leaves if line["kind"] == "parameters"} == {"peers"}
    assert {line["kind"] for line in leaves if line["exchange"] == "transfer"} == {"metrics"}


# For the client's query


def weighted(rows: list[list[float]], relevant: list[bool]) -> list[float]:
    """Members' probabilities of one sample, weighted by 1 - H / log C, over relevant classes: in plain Python."""
    classes = len(relevant)
    confidence = [1 + sum(p * log(p) for p in row if p > 0) / log(classes) for row in rows]
    mixed = [
        sum(weight * row[number] for weight, row in zip(confidence, rows, strict=True)) if relevant[number] else 0.0
        for number in range(classes)
    ]
    return [one / sum(mixed) for one in mixed]


def test_a_confident_vote_by_hand() -> None:
    rows = [[0.9, 0.05, 0.05], [0.4, 0.3, 0.3], [0.1, 0.1, 0.8]]
    members = [Says(row, number) for number, row in enumerate(rows)]
    for relevant in ([True] * 3, [True, True, False]):
        said, features = ConfidentVote(members, torch.tensor(relevant))(torch.zeros(2, 5))
        assert said.exp()[1].tolist() == pytest.approx(weighted(rows, relevant), abs=1e-6)
        assert features.tolist() == [[0.0]] * 2
        assert bool(said.isfinite().all())


@pytest.mark.parametrize("threshold", [0.0, 0.14, 1.0])
def test_members_for_the_query_are_those_that_pass_the_probe(tmp_path: Path, threshold: float) -> None:
    """Members, relevant classes and predictions, put together again from what the clients trained alone."""
    ended = played(tmp_path, "ensemble", {"members": "query", "threshold": threshold}, queries={"under": 10})
    run, task = ended.run, ended.run.task
    inputs = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    models = [own(task, "mlp", state) for state in ended.states]
    for client, state in enumerate(ended.states):
        (asked,) = ended.queries()[client]
        others = [number for number in range(4) if number != client]
        said = {number: probe(task, models[number], Streams(7).at("peer", number)) for number in others}
        able = [number for number in others if float(said[number].probabilities[asked]) >= threshold]
        assert {int(name.split("/")[1]) for name in state if name.startswith("member/")} == set(able)
        relevant = [number == asked or count > 0 for number, count in enumerate(run.answers()[str(client)]["counts"])]
        assert state["relevant"].tolist() == relevant
        with torch.no_grad():
            found = run.model(client=client).eval()(inputs)[0].exp()
            each = [models[number](inputs)[0].exp() for number in [client, *able]]
        for row in range(5):
            expected = weighted([one[row].tolist() for one in each], relevant) if able else each[0][row].tolist()
            assert found[row].tolist() == pytest.approx(expected, abs=1e-5)
        assert bool(run.answers()[str(client)].get("no_teacher")) == (not able)
        assert threshold == 0.14 or len(able) == (3 if threshold == 0 else 0)


def test_of_earlier_releases_an_ensemble_has_the_same_identity() -> None:
    assert set(Ensemble.Options().hashed()) == {"patience", "hold_out", "teachers"}
