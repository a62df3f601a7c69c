"""The input of peer methods: the experiment's queries, or a site's own."""

from __future__ import annotations

import pytest
import torch

from fedstill.core.errors import InputError
from fedstill.core.streams import Streams
from fedstill.queries.query_input import queries
from fedstill.runtime.method_inputs import PlanContext

from .asked import planned


def context(own: tuple[str, ...] | None) -> PlanContext:
    plan = planned("qkt", queries={"below": 0.5, "by_hand": {1: [4]}})
    return PlanContext(plan.experiment, plan.task, "image", own_query=own)


def test_a_sites_own_query_replaces_the_experiments_and_nothing_else() -> None:
    counts = torch.zeros(10)
    given, own = queries(context(None)), queries(context(("8", "7")))
    assert [given.of(client, counts, Streams(0)) for client in (0, 1)] == [(), (4,)]
    assert [own.of(client, counts, Streams(0)) for client in (0, 1)] == [(7, 8), (7, 8)]
    assert own.below == given.below == 0.5  # whether samples are held out stays as agreed


def test_a_class_that_there_is_not() -> None:
    with pytest.raises(InputError, match="there is no class 'oak'"):
        queries(context(("oak",)))
