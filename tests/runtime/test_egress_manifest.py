"""The predicted first round: the egress manifest and the fleet's costs agree."""

from __future__ import annotations

from typing import Any

import pytest

from fedstill.devices.fleet_facts import job_of
from fedstill.runtime.egress_manifest import egress_manifest, first_round


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


def test_a_rehearsed_reply_has_the_size_that_is_expected(tiny_plan: Any) -> None:
    plan = tiny_plan(clients=20)
    assert egress_manifest(plan, rehearse=True) == egress_manifest(plan)
