"""The input of peer methods: the clients' queries."""

from __future__ import annotations

from fedstill.queries.query import INPUT, Queries, queries_of
from fedstill.runtime.method_inputs import PlanContext, method_inputs


@method_inputs.register(INPUT)
def queries(context: PlanContext) -> Queries:
    """The experiment's queries; without any, each client queries one class of which it has few samples."""
    return queries_of(context.experiment) or Queries()
