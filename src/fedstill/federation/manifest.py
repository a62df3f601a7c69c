"""What leaves a client in an experiment: the declared lines, with sizes measured on the real model."""

from __future__ import annotations

from fnmatch import fnmatchcase
from math import prod
from typing import Any

from fedstill.core.protocols import Turn
from fedstill.federation.on_site import OnSiteEvaluator, SiteScores
from fedstill.federation.plan import Plan


def egress_manifest(plan: Plan) -> dict[str, Any]:
    """Every line of every exchange of a round, for the first client, which is contacted for the first time."""
    method, who = plan.method, plan.profiles[0]
    server = method.start(plan.streams)
    leaves: list[dict[str, Any]] = []
    arrives = 0
    on_site = isinstance(plan.evaluator, OnSiteEvaluator)
    for exchange in [*method.exchanges(server, 0), *([SiteScores(method, plan.task)] if on_site else [])]:
        turn = Turn(0, plan.rounds, len(plan.profiles), exchange.name, plan.streams)
        request = exchange.request(server, who, turn)
        if request is None:
            continue
        arrives += request.nbytes
        expected = exchange.expect(server, who, request)
        for line in exchange.egress:
            sizes = [
                prod(max(side, 1) for side in shape) * dtype.itemsize
                for name, (shape, dtype) in expected.items()
                if fnmatchcase(name, line.name)
            ]
            leaves.append(
                {
                    "exchange": exchange.name,
                    "name": line.name,
                    "kind": line.kind,
                    "to": line.to,
                    "tensors": len(sizes),
                    "bytes": sum(sizes),
                    "why": line.why,
                }
            )
    return {
        "method": plan.experiment.method.name,
        "data": plan.experiment.data,
        "model": plan.experiment.model,
        "leaves": leaves,
        "arrives_bytes": arrives,
        "participation": "decided by the server from client ids alone; nothing leaves for it",
        "evaluation": "at the sites, which send the sums listed under `evaluate`"
        if on_site
        else "on the server's own test data; nothing leaves for it",
    }
