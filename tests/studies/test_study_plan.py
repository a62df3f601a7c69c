"""What a study looks for is what a run is called by, whatever the run reads beside its data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fedstill.core.errors import InputError
from fedstill.core.kinds import state_of
from fedstill.core.message import Message
from fedstill.models import build_model
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.plan import make_plan
from fedstill.studies import Study

Make = Callable[..., dict[str, Any]]
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"method": "fedavg"},
    "on site": {"method": "fedavg", "evaluation": "on-site", "validation": 0.2},
    "pooled": {"method": "centralised"},
    "clouds": {"method": "fedavg", "data": "heads[:5%]", "model": "pointnet-tiny", "points": 64},
    "chance": {"method": "fedavg", "dropout": {"name": "independent", "rate": 0.5}},
    "batteries": {"method": "fedavg", "fleet": {}, "clusters": {"number": 2}},
    "trace": {"method": "fedavg", "dropout": {"name": "trace", "file": "trace.csv"}},
    "shared samples": {"method": {"name": "fedmd", "proxy": "digits[50%:]"}},
    "patches and a trace": {
        "method": {"name": "single-image", "patches": {"count": 30}, "samples": 10, "selection": {"kmeans": 5}},
        "dropout": {"name": "trace", "file": "trace.csv"},
    },
    "a student without a teacher": {
        "method": {"name": "distill", "proxy": "digits[50%:]"},
        "objective": "labels-only",
        "clients": 1,
    },
    "weights to start from": {"method": "fedavg", "initial": {"file": "start.safetensors"}},
    "queries": {"method": "qkt", "queries": {"under": 5}},
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that some experiments read."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trace.csv").write_text("round,client\n1,1\n")
    with torch.random.fork_rng():
        model = build_model("mlp", (1, 8, 8), 10)
    (tmp_path / "start.safetensors").write_bytes(Message(state_of(model)).encode())
    return tmp_path


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("kind", KINDS)
def test_a_job_is_called_as_its_run_is(recipe: Make, kind: str) -> None:
    jobs = Study(recipe({"seed": [7, 42]}, **KINDS[kind])).study_plan.jobs
    assert len(jobs) == 2
    for job in jobs:
        assert job.key == make_plan(job.cell.experiment).identity


def test_a_study_of_a_trace_is_done(recipe: Make, here: Path) -> None:
    study = Study(recipe({"seed": [7]}, **KINDS["trace"]))
    results = study.run(here / "runs")
    assert (len(results.runs), results.failures) == (1, {})
    (here / "trace.csv").write_text("round,client\n1,0\n")
    other = Study(recipe({"seed": [7]}, **KINDS["trace"]))
    assert other.study_plan.jobs[0].key != study.study_plan.jobs[0].key, "other losses, another run"


def test_a_trace_that_is_not_here_is_listed(recipe: Make) -> None:
    content = recipe({"seed": [7]}, method="fedavg", dropout={"name": "trace", "file": "nowhere.csv"})
    study_plan = Study(content).study_plan
    assert study_plan.missing == {"nowhere.csv": "there is no file nowhere.csv that says who is lost"}
    with pytest.raises(InputError, match=r"cannot run here: there is no file nowhere\.csv"):
        study_plan.check_data()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"min_replies": 3}, "min_replies is 3, but there are only 2 clients"),
        ({"participation": {"name": "clustered", "number": 1}}, "participation needs"),
    ],
)
def test_who_cannot_take_part_is_refused_before_anything_runs(
    recipe: Make, given: dict[str, Any], sentence: str
) -> None:
    make_experiment({"method": "fedavg", **given})
    with pytest.raises(InputError, match=sentence):
        _ = Study(recipe({"seed": [7]}, method="fedavg", **given)).study_plan
