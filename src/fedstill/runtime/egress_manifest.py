"""What leaves a client in an experiment: the declared lines, with sizes measured on the real model.

Sizes are those that the server would accept; or, in a rehearsal, those of replies that a client made of its own data
and that went nowhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch

from fedstill.core.client import answer
from fedstill.core.egress import in_rounds
from fedstill.core.errors import RunError
from fedstill.core.message import Message
from fedstill.core.protocols import Exchange, Failure, Profile, RoundContext
from fedstill.core.task import Tensors
from fedstill.runtime.on_site_evaluation import OnSiteEvaluator
from fedstill.runtime.plan import Plan


@dataclass(frozen=True)
class Step:
    """An exchange of the first round as far as the request to one client."""

    exchange: Exchange
    server: Tensors
    who: Profile
    request: Message
    context: RoundContext

    def expected(self) -> Message:
        """A reply of the size that the server would accept; a free side counts as one."""
        shapes = self.exchange.expect(self.server, self.who, self.request)
        return Message(
            {
                name: torch.empty([max(side, 1) for side in shape], dtype=dtype)
                for name, (shape, dtype) in shapes.items()
            }
        )


def first_round(plan: Plan, exchanges: Iterable[Exchange], server: Tensors, who: Profile) -> Iterator[Step]:
    """What a client that is contacted for the first time would be asked, where it would be; nobody replies."""
    for exchange in (one.rehearsal() for one in exchanges):
        context = RoundContext.of(plan.streams, 0, plan.rounds, len(plan.profiles), exchange.name)
        server = exchange.prepare(server, context)
        request = exchange.request(server, who, context)
        if request is not None:
            yield Step(exchange, server, who, request, context)


def egress_manifest(plan: Plan, rehearse: bool = False) -> dict[str, Any]:
    """Every line of every exchange of a round, for the first client, which is contacted for the first time."""
    method = plan.method
    server = method.start(plan.streams)
    leaves: list[dict[str, Any]] = []
    arrives, requests = 0, dict[str, int]()
    surveys, evaluator = plan.participants.exchanges(method.models(server)), plan.evaluator
    exchanges = [*surveys, *method.exchanges(server, 0)]
    evaluation = evaluator.exchanges(method) if isinstance(evaluator, OnSiteEvaluator) else []
    exchanges += evaluation
    for step in first_round(plan, exchanges, server, plan.profiles[0]):
        arrives += step.request.nbytes
        requests[step.exchange.name] = step.request.nbytes
        reply = _rehearsed(plan, step) if rehearse and not step.exchange.auxiliary else step.expected()
        declared = next(one for one in exchanges if one.name == step.exchange.name)
        evaluates = declared is exchanges[-1] if plan.experiment.secure is None else declared in evaluation
        for line in declared.egress:
            sizes = [tensor.nbytes for name, tensor in reply.items() if fnmatchcase(name, line.name)]
            leaves.append(
                {
                    "exchange": step.exchange.name,
                    "name": line.name,
                    "kind": line.kind,
                    "to": line.to,
                    "tensors": len(sizes),
                    "bytes": sum(sizes),
                    "when": _evaluated(plan) if evaluates and evaluation else step.exchange.when(line, plan.rounds),
                    "why": line.why,
                    **({"by_class": True} if line.by_class else {}),
                    **({"optional": True} if line.optional else {}),
                    **({"masked": True} if line.masked else {}),
                }
            )
    return {
        "method": plan.experiment.method.name,
        "data": plan.experiment.data,
        "model": plan.experiment.model,
        "leaves": leaves,
        "arrives_bytes": arrives,
        "requests": requests,
        "participation": f"decided by the server, which asks for {' and '.join(one.name for one in surveys)} as listed"
        if surveys
        else "decided by the server from client ids alone; nothing leaves for it",
        "evaluation": "at the sites, which send the sums listed under `evaluate`"
        if evaluation
        else "on the server's own test data; nothing leaves for it",
    }


def _evaluated(plan: Plan) -> str:
    """In which rounds models are evaluated: every so many, and in the last."""
    every, last = plan.experiment.evaluate_every, plan.rounds - 1
    return in_rounds([round for round in range(plan.rounds) if (round + 1) % every == 0 or round == last], plan.rounds)


def _rehearsed(plan: Plan, step: Step) -> Message:
    """A reply that is made here and now, and kept by nobody."""
    outcome = answer(plan.clients, step.exchange, step.who, step.request, {}, step.context)
    if isinstance(outcome, Failure):
        if outcome.reason == "abstained":
            return Message({})
        raise RunError(f"a rehearsal of {step.exchange.name} on the data here failed: {outcome.detail}")
    return outcome.message
