"""The outcomes of clients' queries: the recall of every class, by client, before and after.

They are stored with a finished run whose experiment has queries, whatever its method: the final model of a client,
personal or shared, is evaluated on the queried classes. The recall before is known if a client trained alone first;
otherwise it comes from a local-only run beside this one (`answered`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fedstill.core.errors import InputError
from fedstill.core.message import part
from fedstill.core.protocols import Method, Profile
from fedstill.core.streams import Streams
from fedstill.core.task import Tensors
from fedstill.queries.guard import choice_in
from fedstill.queries.peers import BEFORE, QUERY, PeerMethod
from fedstill.queries.probe_rule import UNMATCHED, ProbeSettings, from_table, no_teacher
from fedstill.queries.query import Answered, Queries, recalls
from fedstill.runtime.client_store import ClientStore
from fedstill.runtime.evaluation import CentralEvaluator

Answers = dict[str, dict[str, Any]]  # by client: counts and recall of each class, the queried classes


def answers(
    evaluator: CentralEvaluator,
    method: Method,
    server: Tensors,
    profiles: Sequence[Profile],
    store: ClientStore,
    queries: Queries,
    streams: Streams,
) -> Answers:
    """The outcome for every client that has a model, its personal one if the method provides it."""
    found: Answers = {}
    shared = {
        name: _recalls(evaluator, evaluator.task.build(name, state)) for name, state in method.models(server).items()
    }
    for who in profiles:
        state = store.load(who.id) if method.personal else {}
        own = method.personalise(server, state) if method.personal else None
        if own is None and who.architecture not in shared:
            continue
        counts = evaluator.class_counts(who.id)
        asked = torch.nonzero(state[QUERY]).flatten().tolist() if QUERY in state else None
        after = shared[who.architecture] if own is None else _recalls(evaluator, method.assemble(who.architecture, own))
        before = part(state, BEFORE)
        found[str(who.id)] = {
            "counts": counts.tolist(),
            "query": list(queries.of(who.id, counts, streams)) if asked is None else asked,
            "recalls": after,
            "before": _recalls(evaluator, evaluator.task.build(who.architecture, before)) if before else None,
            **_selection(method, state),
        }
    return found


def answered(found: Answers, local: Answers | None = None) -> list[Answered]:
    """The outcome of each client; the recall before is its own record or, without one, that of a local-only run."""
    fates = []
    for client, one in found.items():
        before = one["before"] or (local or {}).get(client, {}).get("recalls")
        if before is None:
            raise InputError("what clients could do before is not known: add a run of local-only to compare with")
        fates.append(
            Answered(
                torch.tensor(before, dtype=torch.float64),
                torch.tensor(one["recalls"], dtype=torch.float64),
                torch.tensor(one["counts"]),
                tuple(one["query"]),
            )
        )
    return fates


def _recalls(evaluator: CentralEvaluator, model: torch.nn.Module) -> list[float]:
    scores: Mapping[str, torch.Tensor] = evaluator.task.score([model], evaluator.test)
    return recalls(scores["confusion"]).tolist()


def _selection(method: Method, state: Tensors) -> dict[str, Any]:
    """How a client selected teachers and epochs, where its method does: queried classes without a teacher, a choice."""
    found: dict[str, Any] = {}
    if UNMATCHED in state and isinstance(method.settings, ProbeSettings):
        assert isinstance(method, PeerMethod)
        rule, missing, classes = method.settings.rule, from_table(state[UNMATCHED]), method.task.classes
        found["no_teacher"] = [no_teacher(rule, classes[number], nearest) for number, nearest in missing.items()]
    choice = choice_in(state)
    return found if choice is None else {**found, "choice": choice}
