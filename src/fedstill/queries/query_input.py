"""The input of methods between peers: who asks for what."""

from __future__ import annotations

from fedstill.queries.query import INPUT, Queries, queries_of
from fedstill.runtime.method_inputs import PlanContext, method_inputs


@method_inputs.register(INPUT)
def queries(context: PlanContext) -> Queries:
    """Those of the experiment; without any, each client asks for one class of which it has few samples."""
    return queries_of(context.experiment) or Queries()
