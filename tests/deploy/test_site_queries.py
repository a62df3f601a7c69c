"""Queries that sites ask themselves, over TLS on loopback: who answers stays at the asking site."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from fedstill.core.message import part
from fedstill.data.lookup import load
from fedstill.deploy.deployment_folder import open_site
from fedstill.deploy.site_service import SiteService
from fedstill.runtime.result import Run

from .test_site_service import GREETING, offer

QKT: dict[str, Any] = {"name": "qkt", "transfer_epochs": 1, "head_epochs": 1, "threshold": 0.0, "report_recall": True}


def recall_by_hand(weights: Path, archive: Path) -> dict[int, float]:
    """Recall of a perceptron with two hidden layers on an archive's test rows, by class, from its tensors alone."""
    bundle = load(f"npz:{archive}", part=True)
    data = bundle.test.batch(torch.arange(len(bundle.test)))
    tensors = part(load_file(weights), "parameters/")
    hidden = data["inputs"].flatten(1)
    for layer in ("extractor.1", "extractor.3"):
        hidden = (hidden @ tensors[f"{layer}.weight"].T + tensors[f"{layer}.bias"]).relu()
    said = (hidden @ tensors["head.weight"].T + tensors["head.bias"]).argmax(dim=1)
    labels = data["labels"]
    return {int(one): float((said == labels)[labels == one].double().mean()) for one in labels.unique()}


def test_a_site_asks_for_a_class_and_later_again_without_the_server(stage: Any) -> None:
    made = stage(2)
    first, second = (made.folder / f"site-{site}" for site in range(2))
    (first / "policy.yaml").write_text("allow: [parameters, statistics, metrics]\npeers: [parameters, metrics]\n")
    (second / "policy.yaml").write_text("allow: [parameters, statistics, metrics]\npeers: [parameters]\n")
    made.start_site(0, "--once", "--query", "7")
    made.start_site(1, "--once")
    deployed = made.serve({"patience": 60.0}, method=QKT, model="mlp", rounds=1)
    for site in range(2):
        made.company.wait(f"site-{site}")

    # The asker's record: its own class, the peer that taught, and no recall, which the peer's policy withholds.
    (record,) = (first / "queries").glob("*.json")
    told = json.loads(record.read_text())
    assert told["classes"] == [7]
    assert [(one["peer"], one["model"], one["teaches"]) for one in told["peers"]] == [(1, "mlp", True)]
    assert told["peers"][0]["recall"] == {}
    assert "this site asks for 7" in made.log(0)

    # The other site is told the recall of the asker's model on the asker's held-out samples.
    ours, theirs = (folder / "offers" / record.stem for folder in (first, second))
    facts = yaml.safe_load((theirs / "peers" / "peers.yaml").read_text())
    wanted = recall_by_hand(ours / "own.safetensors", made.shard(0))
    assert facts["peer-0"]["model"] == "mlp"
    assert {int(name): value for name, value in facts["peer-0"]["recall"].items()} == pytest.approx(wanted)

    # What was offered is what the peer had trained, and the transfer is that of a simulation with the same queries.
    offered, own = load_file(ours / "peers" / "peer-1.safetensors"), load_file(theirs / "own.safetensors")
    assert offered.keys() == own.keys()
    assert all(torch.equal(tensor, own[name]) for name, tensor in offered.items())
    drawn = json.loads((second / "queries" / record.name).read_text())["classes"]
    alone = Run(made.alone(method=QKT, model="mlp", rounds=1, queries={"by_hand": {0: [7], 1: drawn}}).path)
    for site in range(2):
        received = Run(made.folder / f"site-{site}" / "received" / deployed.path.name).model(client=site).state_dict()
        same = alone.model(client=site).state_dict()
        assert all(torch.equal(received[name], tensor) for name, tensor in same.items())

    # The server has no query: neither in the experiment nor as the digest of the site's data.
    assert Run(deployed.path).experiment.section("queries") is None
    (roster,) = (made.folder / "server" / "rosters").glob("*.json")
    plain = load(f"npz:{made.shard(0)}", part=True).fingerprint()
    assert plain not in roster.read_text()

    # The peer's model is asked again, with no server.
    known = max(range(10), key=lambda number: told["peers"][0]["probed"][number])
    where = ["--site", "0", "--data", f"npz:{made.shard(0)}", "--query", str(known), "--earlier", "--quiet"]
    made.company.start("later", ["site", str(made.folder), *where])
    made.company.wait("later")
    (kept,) = (first / "queries").glob("query-*")
    later = Run(kept).result.query  # type: ignore[attr-defined]
    assert (later.classes, [one.name for one in later.offered]) == ((known,), ["peer-1"])


@pytest.fixture
def asking(stage: Any) -> SiteService:
    made = stage(1)
    return SiteService(open_site(made.folder, 0), load(f"npz:{made.shard(0)}"), made.notes, query=("7",))


def test_the_query_is_in_what_the_server_recognises_the_data_by_but_cannot_be_found(asking: SiteService) -> None:
    other = SiteService(asking.folder, asking.bundle, asking.watcher, query=("8",))
    without = SiteService(asking.folder, asking.bundle, asking.watcher)
    again = SiteService(asking.folder, asking.bundle, asking.watcher, query=("7",))
    assert asking.fingerprint == again.fingerprint
    assert len({asking.fingerprint, other.fingerprint, without.fingerprint}) == 3
    assert without.fingerprint == asking.bundle.fingerprint()
    assert "7" not in {str(value) for value in asking.enrol(GREETING).values()}


def accepted(service: SiteService, **changes: Any) -> dict[str, Any]:
    asked = offer(service, **{"method": {**QKT, "report_recall": False}, "rounds": 1, **changes})
    return service.accept({**asked, "fingerprint": service.fingerprint})


def test_a_model_is_given_to_peers_only_where_the_policy_says_so(asking: SiteService) -> None:
    policy = asking.folder.path / "policy.yaml"
    policy.write_text("allow: [parameters, statistics, metrics]\npeers: [metrics]\n")
    said = accepted(asking)
    assert said["status"] == "refused"
    assert "qkt passes parameters" in str(said["detail"])
    assert str(said["detail"]).endswith(
        "on to other sites, and its policy allows metrics only; `parameters: [server, peers]` under `allow` would"
        " change that"
    )
    assert accepted(asking, method="fedavg")["status"] == "ready"  # nothing of it goes to peers
    assert "fedavg asks no peer for classes: --query is not used" in asking.watcher.text  # type: ignore[attr-defined]
    policy.write_text("allow: [parameters, statistics, metrics]\npeers: [parameters]\n")
    assert accepted(asking)["status"] == "ready"


def test_a_site_runs_no_program_of_others(asking: SiteService) -> None:
    """Not even one that a server offers against its own rules, as the settings are compared here again."""
    asked = offer(asking, method={**QKT, "report_recall": False}, rounds=1)
    assert '"teachers": "weights"' in asked["agreement"]
    asked["agreement"] = asked["agreement"].replace('"teachers": "weights"', '"teachers": "program"')
    said = asking.accept({**asked, "fingerprint": asking.fingerprint})
    assert said["status"] == "refused"
    assert "a site runs no program of others" in str(said["detail"])
