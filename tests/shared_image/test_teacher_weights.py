"""How much each client counts in the consensus: by samples, by confidence, by class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fedstill
from fedstill.core.client import answer
from fedstill.core.message import Message
from fedstill.core.protocols import Profile, Reply, RoundContext
from fedstill.methods.base import LOGITS
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.egress_manifest import egress_manifest
from fedstill.runtime.plan import make_plan
from fedstill.shared_image.teacher_weights import CLASS_COUNTS, consensus

TINY: dict[str, Any] = {
    "data": "digits[:30%]",
    "model": "mlp",
    "clients": 3,
    "rounds": 1,
    "partition": {"name": "dirichlet", "alpha": 0.3},
    "training": {"epochs": 1, "batch": 32},
}
SHORT: dict[str, Any] = {"name": "feddf", "proxy": "digits", "samples": 60, "steps": 4, "batch": 32}


def replied(client: int, samples: int, probabilities: list[list[float]], counts: list[int]) -> Reply:
    logits = torch.tensor(probabilities, dtype=torch.float64).log().float()
    return Reply(Profile(client, samples, "mlp"), Message({LOGITS: logits, CLASS_COUNTS: torch.tensor(counts)}), {})


# Two clients, two proxy samples, three classes; nobody has the third class.
SURE, UNSURE = [0.8, 0.1, 0.1], [0.4, 0.3, 0.3]
REPLIES = [replied(0, 1, [SURE, UNSURE], [1, 0, 0]), replied(1, 3, [UNSURE, SURE], [1, 2, 0])]


def mixed(parts: list[tuple[float, float]]) -> float:
    return sum(weight * torch.tensor(value, dtype=torch.float64).log().item() for weight, value in parts)


def test_by_confidence() -> None:
    """Of the first sample 1 x 0.8 against 3 x 0.4, of the second 1 x 0.4 against 3 x 0.8."""
    found = consensus(REPLIES, "confidence")
    assert found[0, 0].item() == pytest.approx(mixed([(0.4, 0.8), (0.6, 0.4)]), abs=1e-6)
    assert found[1, 1].item() == pytest.approx(mixed([(1 / 7, 0.3), (6 / 7, 0.1)]), abs=1e-6)


def test_by_class() -> None:
    """The first class evenly, the second by client 1 alone, the third, which nobody has, by samples 1 to 3."""
    found = consensus(REPLIES, "class-counts")
    assert found[0].tolist() == pytest.approx(
        [mixed([(0.5, 0.8), (0.5, 0.4)]), mixed([(1, 0.3)]), mixed([(0.25, 0.1), (0.75, 0.3)])], abs=1e-6
    )


def test_a_negative_count_is_none() -> None:
    lying = [REPLIES[0], replied(1, 3, [UNSURE, SURE], [1, 2, -5])]
    assert torch.equal(consensus(lying, "class-counts"), consensus(REPLIES, "class-counts"))


def test_counts_are_sent_only_where_they_are_used_and_declared_as_labels() -> None:
    for weights, sent in (("samples", False), ("confidence", False), ("class-counts", True)):
        plan = make_plan(make_experiment({**TINY, "method": {**SHORT, "weights": weights}}))
        context = RoundContext.of(plan.streams, 0, 1, 3, "train")
        server = plan.method.prepare(plan.method.start(plan.streams), context)
        request = plan.method.request(server, plan.profiles[0], context)
        assert request is not None
        reply = answer(plan.clients, plan.method, plan.profiles[0], request, {}, context)
        assert isinstance(reply, Reply)
        assert (CLASS_COUNTS in reply.message) == sent
        kinds = {line["name"]: line["kind"] for line in egress_manifest(plan)["leaves"]}
        assert kinds.get(CLASS_COUNTS) == ("labels" if sent else None)
        if sent:
            labels = plan.clients.data.labels()[plan.clients.shards.rows(0)]
            assert reply.message[CLASS_COUNTS].tolist() == [int((labels == one).sum()) for one in range(10)]


def test_the_four_weightings_give_four_models(tmp_path: Path) -> None:
    every = ("samples", "uniform", "confidence", "class-counts")
    runs = [fedstill.run({**TINY, "method": {**SHORT, "weights": weights}}, out=tmp_path) for weights in every]
    assert len({run.sha256 for run in runs}) == 4
