"""The predicted first round: the egress manifest and the fleet's costs agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedstill.core.client import answer
from fedstill.core.protocols import Failure, Reply, RoundContext
from fedstill.devices.fleet_facts import job_of
from fedstill.engines import InProcess
from fedstill.runtime.egress_manifest import egress_manifest, first_round
from fedstill.runtime.run import execute


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_the_manifest_counts_the_tensors_of_the_messages_that_a_fleet_sends(tiny_plan: Any, method: str) -> None:
    plan = tiny_plan(method=method, fleet={})
    server = plan.method.start(plan.streams)
    steps = list(first_round(plan, plan.method.exchanges(server, 0), server, plan.profiles[0]))
    manifest, job = egress_manifest(plan), job_of(plan)
    assert sum(line["bytes"] for line in manifest["leaves"]) == sum(
        tensor.nbytes for step in steps for tensor in step.expected().values()
    )
    assert (manifest["arrives_bytes"], job.down) == (sum(step.request.nbytes for step in steps),) * 2
    assert job.up == sum(step.expected().nbytes for step in steps)  # with the names of the tensors


def whens(plan: Any, exchange: str = "train") -> dict[str, str]:
    return {line["name"]: line["when"] for line in egress_manifest(plan)["leaves"] if line["exchange"] == exchange}


FEDDF = {"name": "feddf", "proxy": "digits", "samples": 20, "steps": 1}


@pytest.mark.parametrize(
    ("initialise", "said"),
    [
        (0.2, "in round 1 and every 5th after it (6 of 30)"),
        (0.5, "in round 1 and every 2nd after it (15 of 30)"),
        (0.4, "in rounds 1, 4, 6 and 9 more up to 29 (12 of 30)"),
        (1.0, "every round"),
    ],
)
def test_the_manifest_says_in_which_rounds_weights_leave(tiny_plan: Any, initialise: float, said: str) -> None:
    found = whens(tiny_plan(method={**FEDDF, "initialise": initialise}, rounds=30))
    assert {name: when for name, when in found.items() if name.startswith("model/")} == {
        f"model/{kind}/*": said for kind in ("parameters", "buffers", "counters")
    }
    assert {when for name, when in found.items() if not name.startswith("model/")} == {"every round"}


def test_weights_leave_in_the_rounds_that_the_manifest_names(tiny_plan: Any, tmp_path: Path) -> None:
    """By the bytes of a run: with weights in them, replies are several times as large."""
    plan = tiny_plan(method={**FEDDF, "initialise": 0.4}, rounds=6)
    assert whens(plan)["model/parameters/*"] == "in rounds 1, 4 and 6 (3 of 6)"
    with InProcess() as engine:
        journal = execute(plan, engine, tmp_path).journal()
    large = min(record.bytes.up for record in journal) * 3
    assert [record.round for record in journal if record.bytes.up > large] == [1, 4, 6]


def test_a_client_sends_no_weights_in_another_round_than_the_manifest_says(tiny_plan: Any) -> None:
    """Whoever asks: in round 2 a request with the mark of round 1 is refused where the data is."""
    plan = tiny_plan(method={**FEDDF, "initialise": 0.2}, rounds=6)
    server, who = plan.method.start(plan.streams), plan.profiles[0]
    asked = [RoundContext.of(plan.streams, round, 6, len(plan.profiles), "train") for round in (0, 1)]
    request = plan.method.request(server, who, asked[0])
    first, second = (answer(plan.clients, plan.method, who, request, {}, context) for context in asked)
    assert isinstance(first, Reply)
    assert any(name.startswith("model/") for name in first.message)
    assert isinstance(second, Failure)
    assert "weights were requested in round 2, in which none are to leave" in second.detail


def test_wrappers_surveys_and_evaluation_say_when(tiny_plan: Any) -> None:
    """Through an attack around the method; surveys once or now and then, evaluation now and then."""
    attacked = tiny_plan(method={**FEDDF, "initialise": 0.5}, rounds=4, attack="noise")
    assert whens(attacked)["model/parameters/*"] == "in round 1 and every 2nd after it (2 of 4)"
    tuned = whens(tiny_plan(method="fine-tuned", rounds=4))
    assert (tuned["model/parameters/*"], tuned["steps"]) == ("in rounds 1 to 4 (4 of 5)", "every round")
    participation = {"name": "clustered", "number": 2}
    for every, said in ((None, "once"), (3, "in round 1 and every 3rd after it (4 of 10)")):
        plan = tiny_plan(clusters={"number": 2, "every": every}, participation=participation, rounds=10)
        assert whens(plan, "statistics") == {"statistics": said}
    plan = tiny_plan(evaluation="on-site", evaluate_every=4, rounds=10)
    assert whens(plan, "evaluate") == {"scores/*": "in rounds 4, 8 and 10 (3 of 10)"}


def test_a_rehearsed_reply_has_the_size_that_is_expected(tiny_plan: Any) -> None:
    plan = tiny_plan(clients=20)
    assert egress_manifest(plan, rehearse=True) == egress_manifest(plan)
