"""What a run costs is counted from its settings."""

from __future__ import annotations

from typing import Any

from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.run_load import StepCost, load_of

SMALL: dict[str, Any] = {"method": "fedavg", "data": "digits", "model": "mlp", "clients": 4, "rounds": 3}


def test_what_a_run_costs_is_a_sum() -> None:
    cost = StepCost(step=1.0, client=10.0, sample=0.1, once=5.0, memory=1)
    load = load_of(make_experiment({**SMALL, "training": {"epochs": 2, "batch": 25}}), 100, 20, False)
    assert (load.steps, load.clients, load.samples) == (4 * 3 * 2 * 1, 12, 3 * 20)
    assert load.seconds(cost) == 24 + 120 + 6 + 5 + 3 * 20 * 0.1
    personal = load_of(make_experiment(SMALL), 100, 20, True)
    assert personal.samples == 3 * 20 * 5


def test_what_is_learned_from_peers_counts_batches_whatever_the_epochs() -> None:
    cost = StepCost(step=0.0, client=0.0, sample=0.0, once=0.0, memory=1, batch=2.0)
    load = load_of(make_experiment({**SMALL, "training": {"epochs": 7, "batch": 10}}), 100, 20, True)
    assert load.seconds(cost) == 4 * 3 * 3 * 2


def test_clients_that_drop_out_are_not_counted_unless_they_compute() -> None:
    def replies(**dropout: Any) -> float:
        return load_of(
            make_experiment({**SMALL, "dropout": {"name": "independent", **dropout}}), 100, 20, False
        ).clients

    assert replies(rate=0.5, when="during") == replies(rate=0.5, when="before") == 6
    assert replies(rate=0.5, when="after") == replies(rate=0.5, when="during", replace=True) == 12
    assert replies(rate=0.5, when="after", replace=True) == 18
