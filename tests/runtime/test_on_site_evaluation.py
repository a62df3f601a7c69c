"""Evaluation at the sites: their sums are what one place with all test data would find, and nothing else leaves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fedstill
from fedstill.core.errors import InputError
from fedstill.core.message import Message
from fedstill.core.protocols import Client, Engine, RoundContext
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.egress_manifest import egress_manifest
from fedstill.runtime.on_site_evaluation import SiteScores
from fedstill.runtime.plan import make_plan

SMALL: dict[str, Any] = {
    "data": "digits",
    "model": "cnn-bn",
    "clients": 3,
    "rounds": 2,
    "partition": {"name": "dirichlet", "alpha": 0.5},
    "training": {"epochs": 1, "batch": 64},
}


def both(method: str, tmp_path: Path, **settings: Any) -> list[fedstill.Run]:
    return [
        fedstill.run({**SMALL, "method": method, "evaluation": where, **settings}, out=tmp_path)
        for where in ("central", "on-site")
    ]


def test_the_sums_of_all_sites_are_the_whole(tmp_path: Path) -> None:
    """The same models, the same accuracies to the last bit; losses are sums in another order."""
    central, on_site = both("fedavg", tmp_path)
    assert central.path != on_site.path
    assert central.sha256 == on_site.sha256
    for one, other in zip(central.journal, on_site.journal, strict=True):
        for name in ("accuracy", "class_accuracy", "constant", "non_finite"):
            assert one["metrics"][name] == other["metrics"][name]
        assert one["metrics"]["loss"] == pytest.approx(other["metrics"]["loss"], rel=1e-6)
        assert one["bytes"] == other["bytes"], "what evaluation costs is counted apart"
        assert (other["sites"]["asked"], other["sites"]["heard"]) == (3, 3)
        assert 0 < other["sites"]["up"] < other["sites"]["down"]
    assert on_site.predictions() is None
    assert on_site.test_labels is None


@pytest.mark.parametrize("method", ["fedbn", "ditto", "local-only"])
def test_own_models_are_scored_where_they_are(method: str, tmp_path: Path) -> None:
    """On each client's test data: at most as many samples as it has, and never another's model."""
    central, on_site = both(method, tmp_path)
    assert central.sha256 == on_site.sha256
    personal = on_site.journal[-1].evaluation.personal
    assert personal.clients == 3
    assert personal.mean == personal.own_mean
    assert 0 <= personal.min <= personal.mean <= personal.max <= 1


@pytest.mark.parametrize("engine", ["wire", "processes-2"])
def test_engines_agree(engine: str, engines: dict[str, Engine], tmp_path: Path) -> None:
    given = {**SMALL, "method": "fedbn", "evaluation": "on-site"}
    runs = [fedstill.run(given, engine=engines[name], out=tmp_path / name) for name in ("in-process", engine)]
    names = ("journal.jsonl", "result.json")
    assert all((runs[0].path / name).read_bytes() == (runs[1].path / name).read_bytes() for name in names)


def test_a_site_that_lies_about_its_scores_is_not_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reply = SiteScores.reply

    def lying(self: SiteScores, client: Client, request: Message, context: Any) -> Message:
        honest = reply(self, client, request, context)
        if client.profile.id:
            return honest
        return Message({name: tensor.double() for name, tensor in honest.items()})

    monkeypatch.setattr(SiteScores, "reply", lying)
    run = fedstill.run({**SMALL, "method": "fedavg", "evaluation": "on-site"}, out=tmp_path)
    assert [record.evaluation.sites.accepted for record in run.journal] == [2, 2]
    for record in run.journal:
        (lost,) = record.evaluation.sites.failures
        assert (lost.client, lost.reason) == (0, "refused")
        assert lost.detail.startswith("scores/shared/cnn-bn/confusion has type torch.float64, not torch.int64")


def test_the_manifest_tells_what_leaves_for_it() -> None:
    plan = make_plan(make_experiment({**SMALL, "method": "fedavg", "evaluation": "on-site"}))
    manifest = egress_manifest(plan)
    (line,) = [line for line in manifest["leaves"] if line["exchange"] == "evaluate"]
    assert (line["kind"], line["tensors"], line["bytes"]) == ("statistics", 4, 10 * 10 * 8 + 3 * 8)
    assert "at the sites" in manifest["evaluation"]


def test_what_needs_the_servers_data_is_refused() -> None:
    given = {"data": "digits", "method": "distill", "objective": "labels-only", "evaluation": "on-site"}
    with pytest.raises(InputError, match="distillation is evaluated where the proxy data is"):
        make_plan(make_experiment(given))


def test_each_site_keeps_a_share_of_its_own_data_to_select_a_round_by(tmp_path: Path) -> None:
    """Stratified within each shard: nobody trains on what it is judged by, and the sums are over all of it."""
    plan = make_plan(make_experiment({**SMALL, "method": "fedavg", "evaluation": "on-site", "validation": 0.25}))
    context = RoundContext(0, 1, 3, "train", plan.streams)
    kept = 0
    for who, size in zip(plan.profiles, plan.clients.shards.sizes().tolist(), strict=True):
        client = plan.clients(who, {}, context)
        again = plan.clients(who, {}, replace(context, round=1, streams=plan.streams.at("round", 1)))
        assert client.validation is not None
        assert again.validation is not None
        ids = [
            set(part.batch(torch.arange(len(part)))["sample_id"].tolist()) for part in (client.data, client.validation)
        ]
        assert not ids[0] & ids[1]
        assert len(client.data) == who.samples == size - len(client.validation)
        assert len(client.validation) == pytest.approx(0.25 * size, abs=1)
        assert ids[1] == set(again.validation.batch(torch.arange(len(again.validation)))["sample_id"].tolist())
        kept += len(client.validation)
    run = fedstill.run({**SMALL, "method": "fedavg", "evaluation": "on-site", "validation": 0.25}, out=tmp_path)
    accuracies = [record.evaluation.validation["accuracy"] for record in run.journal]
    assert all((accuracy * kept) == pytest.approx(round(accuracy * kept)) for accuracy in accuracies)
    assert run.result.round_of["selected"] == accuracies.index(max(accuracies)) + 1
