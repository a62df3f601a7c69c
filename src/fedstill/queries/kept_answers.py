"""The outcomes of a run's queries, kept with the run: answers.json."""

from __future__ import annotations

from typing import Any

from fedstill.queries.query import queries_of
from fedstill.runtime.artefacts import FinishedRun, artefacts


@artefacts.register("answers")
def keep_answers(run: FinishedRun) -> dict[str, Any] | None:
    """The outcomes of the queries of a run whose experiment has queries."""
    plan = run.plan
    queries = queries_of(plan.experiment)
    if queries is None:
        return None
    from fedstill.queries.outcomes import answers  # here: every run comes by, and few have queries

    return answers(run.evaluator, plan.method, run.server, plan.profiles, run.store, queries, plan.streams)
