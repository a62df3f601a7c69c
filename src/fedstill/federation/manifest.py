"""What leaves a client in an experiment: the declared lines, with sizes measured on the real model.

Sizes are those that the server would accept; or, in a rehearsal, those of replies that a client made of its own data
and that went nowhere.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from math import prod
from typing import Any

from fedstill.core.client import answer
from fedstill.core.errors import RunError
from fedstill.core.message import Message
from fedstill.core.protocols import Exchange, Lost, Profile, Turn
from fedstill.core.task import Tensors
from fedstill.federation.on_site import OnSiteEvaluator
from fedstill.federation.plan import Plan


def egress_manifest(plan: Plan, rehearse: bool = False) -> dict[str, Any]:
    """Every line of every exchange of a round, for the first client, which is contacted for the first time."""
    method, who = plan.method, plan.profiles[0]
    server = method.start(plan.streams)
    leaves: list[dict[str, Any]] = []
    arrives = 0
    surveys, evaluator = plan.participants.exchanges(method.models(server)), plan.evaluator
    exchanges = [*surveys, *method.exchanges(server, 0)]
    if on_site := isinstance(evaluator, OnSiteEvaluator):
        exchanges.append(evaluator.exchange(method))
    for exchange in exchanges:
        turn = Turn(0, plan.rounds, plan.experiment.clients, exchange.name, plan.streams.at("round", 0, exchange.name))
        server = exchange.prepare(server, turn)
        request = exchange.request(server, who, turn)
        if request is None:
            continue
        arrives += request.nbytes
        sent = _rehearsed(plan, exchange, who, request, turn) if rehearse else _expected(exchange, server, who, request)
        for line in exchange.egress:
            sizes = [size for name, size in sent.items() if fnmatchcase(name, line.name)]
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
        "participation": f"decided by the server, which asks for {' and '.join(one.name for one in surveys)} as listed"
        if surveys
        else "decided by the server from client ids alone; nothing leaves for it",
        "evaluation": "at the sites, which send the sums listed under `evaluate`"
        if on_site
        else "on the server's own test data; nothing leaves for it",
    }


def _expected(exchange: Exchange, server: Tensors, who: Profile, request: Message) -> dict[str, int]:
    """Bytes by tensor; a free side counts as one."""
    return {
        name: prod(max(side, 1) for side in shape) * dtype.itemsize
        for name, (shape, dtype) in exchange.expect(server, who, request).items()
    }


def _rehearsed(plan: Plan, exchange: Exchange, who: Profile, request: Message, turn: Turn) -> dict[str, int]:
    """Bytes by tensor of a reply that is made here and now, and kept by nobody."""
    outcome = answer(plan.clients, exchange, who, request, {}, turn)
    if isinstance(outcome, Lost):
        if outcome.reason == "abstained":
            return {}
        raise RunError(f"a rehearsal of {exchange.name} on the data here failed: {outcome.detail}")
    return {name: tensor.nbytes for name, tensor in outcome.message.items()}
