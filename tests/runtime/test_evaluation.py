from __future__ import annotations

from pathlib import Path
from typing import Any

from fedstill.core.kinds import state_of
from fedstill.core.message import under
from fedstill.core.protocols import Engine
from fedstill.core.streams import Streams
from fedstill.runtime.client_store import ClientStore
from fedstill.runtime.run import execute


def test_personal_models_that_are_not_finite_are_said_to_be(
    tiny_plan: Any, engines: dict[str, Engine], tmp_path: Path
) -> None:
    """A pull of 1000 at rate 0.05 throws weights fifty times as far at each step: personal models end as NaN."""
    plan = tiny_plan(method={"name": "ditto", "pull": 1000.0}, clients=2, rounds=1)
    (record,) = execute(plan, engines["in-process"], tmp_path).journal()
    assert record.evaluation.personal.non_finite == 2
    assert record.evaluation.finite  # the shared model is FedAvg's, and sound


def test_where_only_personal_models_are_scored_they_decide(tiny_plan: Any, tmp_path: Path) -> None:
    plan = tiny_plan(method="local-only", clients=2)
    store = ClientStore(tmp_path / "clients", 2)
    sound = state_of(plan.task.build("cnn", streams=Streams(0)))
    broken = {name: tensor * float("nan") for name, tensor in sound.items()}
    for client, state in enumerate((sound, broken)):
        store.stage(client, 0, under("model/", state))
    evaluation = plan.evaluator(plan.method, {}, plan.profiles, store)
    assert evaluation.personal.non_finite == 1
    assert not evaluation.finite
