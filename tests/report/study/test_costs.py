"""What models cost: everybody stands at the cost of its own architecture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import fedstill
from fedstill.audit import judge
from fedstill.audit.verdicts import Audit
from fedstill.report import Cost, Extras
from fedstill.report.figure import Figure
from fedstill.report.static import draw
from fedstill.report.study.costs import against_cost, savings
from fedstill.report.study.gather import gathered
from fedstill.report.study.view import View
from fedstill.runtime.result import Run
from fedstill.studies.grid import Taught
from fedstill.studies.results import Pupil, ResultRow, Results

LARGE, SMALL, WIDE = (
    Cost("pointnet2", 4 * 2**20, 100.0, "one thread"),
    Cost("small-pointnet2", 2**20, 50.0, "one thread"),
    Cost("dgcnn", 8 * 2**20, 200.0, "one thread"),
)


@pytest.fixture
def mixed(small: Audit) -> View:
    """Students by `vanilla` are small, those by `sp` have a model larger than the teacher's."""
    models = {"vanilla": "small-pointnet2", "sp": "dgcnn"}
    students = tuple(replace(one, model=models[one.objective]) for one in small.evidence.students)
    return View(judge(replace(small.evidence, students=students)))


def by_name(figure: Figure) -> dict[str, dict[str, list[float]]]:
    return {trace["name"]: trace for trace in figure.data}


def test_everybody_stands_at_its_own_cost(mixed: View) -> None:
    size, latency = against_cost(mixed, Extras([LARGE, SMALL, WIDE]))
    assert set(by_name(size)["teachers"]["x"]) == {4.0}
    assert by_name(size)["students with labels"]["x"] == [
        {"vanilla": 1.0, "sp": 8.0}[pair.objective] for pair in mixed.audit.pairs if pair.labelled is not None
    ]
    assert set(by_name(latency)["students with labels"]["x"]) == {50.0, 200.0}
    assert "students with labels (dgcnn) at 8" in size.sentence
    assert size.layout["xaxis"]["range"][1] > 8 * 1.02  # those without labels stand a little to the side


def test_who_was_not_measured_is_left_out(mixed: View, small: Audit) -> None:
    size, _ = against_cost(mixed, Extras([LARGE, SMALL]))
    assert set(by_name(size)["students with labels"]["x"]) == {1.0}
    (saved,) = savings(mixed, Extras([LARGE, SMALL]))
    assert "dgcnn" not in saved.sentence
    for costs in ([], [LARGE], [SMALL]):
        assert savings(mixed, Extras(costs)) == against_cost(mixed, Extras(costs)) == []
    unknown = tuple(replace(one, model=None) for one in small.evidence.teachers)
    assert against_cost(View(judge(replace(small.evidence, teachers=unknown))), Extras([LARGE, SMALL])) == []


def test_one_student_is_said_to_be_smaller_and_another_larger(mixed: View) -> None:
    (figure,) = savings(mixed, Extras([LARGE, SMALL, WIDE]))
    assert figure.sentence == (
        "The student small-pointnet2 is 4.0 times smaller and 2.0 times faster than the teacher pointnet2. The"
        " student dgcnn is 2.0 times larger and 2.0 times slower than the teacher pointnet2."
    )
    sizes, times = figure.data
    assert sizes["y"] == [4.0, 1.0, 8.0]
    assert times["y"] == [100.0, 50.0, 200.0]
    assert figure.layout["yaxis"]["range"][1] > 8  # a student larger than its teacher is not cut off
    assert figure.layout["yaxis2"]["range"][1] > 200
    draw(figure)


def test_times_are_left_out_unless_all_were_measured(mixed: View) -> None:
    extras = Extras([LARGE, SMALL, replace(WIDE, milliseconds=None)])
    (figure,) = savings(mixed, extras)
    assert len(figure.data) == 1
    assert [one.id for one in against_cost(mixed, extras)] == ["size"]


def row(run: Run) -> ResultRow:
    return ResultRow(run.config["identity"], {"accuracy": run.accuracy})


def test_each_model_is_measured_once(tmp_path: Path) -> None:
    """A teacher and three students, two of them alike; one on other data would be another story."""
    few = {"rounds": 1, "clients": 1, "out": tmp_path}
    teacher = fedstill.run("centralised", data="digits[:10%]", model="cnn", **few)
    pupils = {
        ("0", name): fedstill.run("centralised", data="digits[:10%]", model=model, seed=seed, **few)
        for seed, (name, model) in enumerate({"a": "mlp", "b": "mlp", "c": "cnn-bn"}.items(), 1)
    }
    told = {
        cell: Pupil(Taught("vanilla", "use", 0.5), "digits", str(run.experiment.model)) for cell, run in pupils.items()
    }
    told["0", "d"] = Pupil(Taught("vanilla", "use", 0.5), "mnist", "resnet8")
    axes = {"seed": {"0": 0}, "objective": {name: name for name in "abcd"}}
    runs = {cell: row(run) for cell, run in pupils.items()}
    students = Results("s", "", {}, axes, None, (), runs, pupils=told)
    results = Results("s", "", {}, {"seed": {"0": 0}}, None, (), {("0",): row(teacher)}, students=students)
    costs = {cost.model: cost for cost in gathered(results, tmp_path, data="digits").costs}
    assert list(costs) == ["cnn", "mlp", "cnn-bn"]
    assert costs["cnn"].bytes == sum(tensor.nbytes for tensor in teacher.model("last").state_dict().values())
    assert all((cost.milliseconds or 0) > 0 for cost in costs.values())
    assert gathered(results, tmp_path, data="mnist").costs == ()  # no student of these is here
    assert gathered(results, tmp_path / "elsewhere").costs == ()
