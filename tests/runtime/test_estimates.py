"""Estimates: measured once, kept by what matters, and without a trace in any result."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import fedstill
from fedstill.runtime import estimates
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.estimates import cached_cost, core_time, estimate_text, measured_cost
from fedstill.runtime.plan import Simulation, make_plan
from fedstill.runtime.run_load import StepCost
from fedstill.studies import Study
from fedstill.studies.study_estimate import estimate_of

SMALL: dict[str, Any] = {"method": "fedavg", "data": "digits", "model": "mlp", "clients": 4, "rounds": 3}


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("FEDSTILL_CACHE", str(folder))
    monkeypatch.setenv(estimates.VARIABLE, "measure")
    return folder


def plan_of(**changes: Any) -> Simulation:
    plan = make_plan(make_experiment({**SMALL, **changes}))
    assert isinstance(plan, Simulation)
    return plan


def test_a_step_is_measured_once_and_kept_by_what_matters(monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    plan = plan_of()
    assert cached_cost(plan.experiment, plan.bundle) is None
    cost = measured_cost(plan.experiment, plan.bundle)
    assert cost is not None
    assert cost.step > 0
    assert cost.memory > 50e6
    monkeypatch.setattr(estimates, "measure_cost", lambda *_: pytest.fail("it is known"))
    for same in ({"rounds": 9}, {"seed": 5}, {"clients": 7}, {"partition": "label-skew"}):
        other = plan_of(**same)
        assert measured_cost(other.experiment, other.bundle) == cost
    for differs in ({"model": "cnn"}, {"training": {"batch": 99}}, {"method": "fedprox"}):
        other = plan_of(**differs)
        assert cached_cost(other.experiment, other.bundle) is None
    (file,) = (own_cache / "estimates").iterdir()
    file.write_text("{}")  # damaged: as if it were not there
    assert cached_cost(plan.experiment, plan.bundle) is None


def test_measuring_changes_no_result(tmp_path: Path) -> None:
    settings = {key: value for key, value in SMALL.items() if key != "method"}
    before = fedstill.run("fedavg", out=tmp_path / "a", **settings)
    plan = plan_of(seed=0)
    assert measured_cost(plan.experiment, plan.bundle) is not None
    after = fedstill.run("fedavg", out=tmp_path / "b", **settings)
    assert (before.path.name, before.sha256) == (after.path.name, after.sha256)
    assert (before.path / "journal.jsonl").read_bytes() == (after.path / "journal.jsonl").read_bytes()


def test_the_rest_of_a_run_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates, "cached_cost", lambda *_: StepCost(100.0, 0.0, 0.0, 0.0, 2**30))
    plan = plan_of()
    whole, rest = estimate_text(plan, 0, False), estimate_text(plan, 2, False)
    assert whole is not None
    assert rest is not None
    assert re.search(r"core-hours, up to 1.0\sGiB of memory", whole)
    assert float(whole.split()[1]) == pytest.approx(3 * float(rest.split()[1]), rel=0.1)
    assert core_time(10).endswith("of one core")


def test_students_of_untrained_teachers_are_estimated() -> None:
    experiment = {key: value for key, value in SMALL.items() if key != "method"} | {"model": "cnn"}
    recipe = {
        "experiment": experiment,
        "grid": {"method": ["fedavg"]},
        "students": {"experiment": {"model": "mlp", "rounds": 2}, "grid": {"objective": ["labels-only", "vanilla"]}},
    }
    plan = Study(recipe).study_plan
    told: list[tuple[int, int, str]] = []
    found = estimate_of(plan, measure=True, tell=lambda *so_far: told.append(so_far))
    assert [(done, kinds) for done, kinds, _ in told] == [(0, 3), (1, 3), (2, 3)]
    assert told[0][2] == "fedavg cnn digits"
    assert sorted(found.seconds, key=id) == sorted(plan.jobs, key=id)
    assert found.unknown == 0
    assert found.text(plan.jobs).startswith("estimate: ")
    again = estimate_of(plan, measure=True, tell=lambda *_: pytest.fail("it is known"))
    assert again == found


def test_what_is_learned_from_peers_in_one_round_is_measured() -> None:
    queries = {"data": "digits", "model": "mlp", "clients": 5, "rounds": 1, "partition": "pathological"}
    training = {"epochs": 2, "batch": 16}
    options = {"patience": 1, "transfer_epochs": 3}
    experiment = make_experiment({**queries, "training": training, "method": {"name": "naive-kd", **options}})
    plan = make_plan(experiment)
    cost = measured_cost(plan.experiment, plan.bundle)
    assert cost is not None
    assert cost.step > 0
    assert cost.batch > cost.step, "three epochs with the peers' models on each batch"
    other = make_plan(experiment.model_copy(update={"seed": 9}))
    assert cached_cost(other.experiment, other.bundle) == cost


def test_off_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of()
    monkeypatch.setenv(estimates.VARIABLE, "off")
    assert estimate_text(plan, 0, measure=True) is None
