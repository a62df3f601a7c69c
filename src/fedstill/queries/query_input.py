"""The input of peer methods: the clients' queries."""

from __future__ import annotations

from fedstill.data.bundle import class_number
from fedstill.queries.query import INPUT, Queries, queries_of
from fedstill.runtime.method_inputs import PlanContext, method_inputs


@method_inputs.register(INPUT)
def queries(context: PlanContext) -> Queries:
    """The experiment's queries; without any, each client queries one class of which it has few samples.

    At a site that asks for classes itself, its own query replaces the experiment's for every client number: a site has
    one client.
    """
    given = queries_of(context.experiment) or Queries()
    if context.own_query is None:
        return given
    wanted = tuple(class_number(name, context.task.classes) for name in context.own_query)
    return given.model_copy(update={"by_hand": dict.fromkeys(range(context.experiment.clients), wanted)})
