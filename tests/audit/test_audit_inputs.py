"""Evidence from a study's results, with its runs beside them and without, and from one student."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedstill
from fedstill.audit import Evidence, judge
from fedstill.audit.audit_inputs import evidence_of
from fedstill.audit.from_results import evidence_from
from fedstill.core.errors import InputError
from fedstill.studies import Results, Study
from fedstill.studies.grid import Taught
from fedstill.studies.results import Pupil, ResultRow

RECIPE: dict[str, Any] = {
    "about": "Two teachers, two objectives.",
    "experiment": {
        "data": "digits",
        "model": "cnn-bn",
        "clients": 2,
        "rounds": 2,
        "training": {"epochs": 1, "batch": 64},
    },
    "grid": {
        "method": ["fedavg", {"label": "wrong", "method": "fedavg", "attack": {"name": "label-flip", "share": 1.0}}],
        "seed": [7],
    },
    "students": {
        "experiment": {"model": "mlp", "rounds": 2, "training": {"batch": 64}},
        "grid": {"objective": ["labels-only", "vanilla", "crd"], "labels": ["use", "no-ce"]},
    },
}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Results]:
    folder = tmp_path_factory.mktemp("audited")
    results = Study(RECIPE).run(folder)
    results.save(folder / "study.json")
    return folder, results


def test_every_figure_finds_its_place(done: tuple[Path, Results]) -> None:
    folder, results = done
    evidence = evidence_of(folder / "study.json")
    students = results.students
    assert students is not None
    assert [teacher.name for teacher in evidence.teachers] == ["fedavg", "wrong"]
    teacher, wrong = evidence.teachers
    assert teacher.score is not None
    row = results.runs["fedavg", "7"]
    assert teacher.score.accuracy == row.figures["accuracy"]
    assert sum(teacher.score.correct) / len(teacher.score.correct) == pytest.approx(teacher.score.accuracy, abs=1e-6)
    assert [facts.round for facts in teacher.rounds] == [1, 2]
    assert teacher.rounds[-1].accuracy == pytest.approx(teacher.score.accuracy, abs=1e-6)
    assert teacher.egress >= {"parameters", "metrics"}
    assert not teacher.egress & {"labels", "inputs", "features"}
    assert teacher.buffers == "average"
    assert teacher.traffic == pytest.approx((row.figures["bytes_up"] or 0) / 2**20)
    assert teacher.recalibrated is not None
    assert set(teacher.ceilings) == {"vanilla"}
    assert wrong.ceilings["vanilla"] < teacher.ceilings["vanilla"]

    found = {(one.teacher, one.objective, one.free): one for one in evidence.students}
    assert len(found) == 8
    student = found["fedavg", "vanilla", False]
    assert student.score is not None
    assert student.score.accuracy == students.runs["fedavg", "7", "vanilla", "use"].figures["accuracy"]
    assert student.hard_label_weight == 0.5
    assert set(student.terms) == {"cross-entropy", "soft-targets"}
    assert len(student.curve) == 2
    assert found["wrong", "crd", True].missing == "not assessable"
    assert found["wrong", "crd", True].score is None
    assert list(evidence.alone) == ["7"]
    assert sum(evidence.class_counts) == len(teacher.score.correct)


def test_without_the_runs_only_their_course_is_lost(done: tuple[Path, Results], tmp_path: Path) -> None:
    """The results file alone says the same, down to the intervals: it holds what each model got right."""
    folder, results = done
    results.save(tmp_path / "study.json")
    whole, alone = evidence_of(folder / "study.json"), evidence_of(tmp_path)
    assert not alone.teachers[0].rounds
    assert judge(alone).pairs == judge(whole).pairs
    assert judge(alone).teachers == judge(whole).teachers


def test_figures_that_are_not_those_of_the_runs(done: tuple[Path, Results]) -> None:
    """A teacher and a student get ten points more in the results; their runs lie beside them."""
    folder, results = done
    students = results.students
    assert students is not None
    assert evidence_from(results, folder).edited == ()
    cell, taught = ("fedavg", "7"), ("fedavg", "7", "vanilla", "use")

    def raised(row: ResultRow) -> ResultRow:
        return replace(row, figures={**row.figures, "accuracy": (row.figures["accuracy"] or 0.0) - 0.1})

    changed = replace(
        results,
        runs={**results.runs, cell: raised(results.runs[cell])},
        students=replace(students, runs={**students.runs, taught: raised(students.runs[taught])}),
    )
    found = judge(evidence_from(changed, folder))
    (finding,) = [one for one in found.findings if one.topic == "edited"]
    assert finding.severity == "serious"
    assert "accuracy of fedavg, 7:" in finding.evidence
    assert "accuracy of fedavg, 7, vanilla, use:" in finding.evidence
    assert found.summary[0].startswith("Figures are not those of the runs")
    assert judge(evidence_from(changed)).findings == judge(evidence_from(changed, folder / "elsewhere")).findings


@pytest.mark.parametrize("taught", [{"labels": "no-ce"}, {"hard_label_weight": 0.0}, {"objective": "self"}])
def test_students_that_are_not_what_their_runs_were_taught(done: tuple[Path, Results], taught: dict[str, Any]) -> None:
    """Such an edit would turn masked students into faithful ones, which nothing in the figures shows."""
    folder, results = done
    assert results.students is not None
    cell = ("fedavg", "7", "vanilla", "use")
    pupil = results.students.pupils[cell]
    other = replace(pupil, taught=replace(pupil.taught, **taught))
    students = replace(results.students, pupils={**results.students.pupils, cell: other})
    edited = evidence_from(replace(results, students=students), folder).edited
    assert any("fedavg, 7, vanilla, use: it says" in one for one in edited), edited


def test_one_student_gets_the_controls_it_needs(done: tuple[Path, Results], tmp_path: Path) -> None:
    folder, results = done
    teacher = next(folder.glob(f"*-{results.runs['wrong', '7'].identity}"))
    student = fedstill.distill(teacher, "mlp", rounds=2, training={"batch": 64}, seed=7, out=tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    evidence = evidence_of(student.path)
    assert len(list(tmp_path.iterdir())) == 3
    verdict = fedstill.audit(student.path)
    (pair,) = verdict.pairs
    assert (pair.teacher, pair.objective, pair.labelled) == (teacher.name, "vanilla", student.accuracy)
    assert pair.masking is not None
    assert pair.interval is not None
    assert pair.interval.how == "samples"
    by_study = {(one.teacher, one.objective): one for one in _judged(folder).pairs}
    assert pair.masking == pytest.approx(by_study["wrong", "vanilla"].masking, abs=1e-5)
    assert evidence.teachers[0].ceilings == pytest.approx(evidence_of(folder / "study.json").teachers[1].ceilings)


def _judged(folder: Path) -> Any:
    return judge(evidence_of(folder / "study.json"))


def test_what_cannot_be_audited(done: tuple[Path, Results], tmp_path: Path) -> None:
    folder, results = done
    teacher = next(folder.glob(f"*-{results.runs['wrong', '7'].identity}"))
    with pytest.raises(InputError, match="had no teacher"):
        evidence_of(teacher)
    with pytest.raises(InputError, match="nor a folder with results in it"):
        evidence_of(tmp_path)
    Study({**RECIPE, "students": None}).results(tmp_path).save(tmp_path / "first.json")
    with pytest.raises(InputError, match="has no students"):
        evidence_of(tmp_path)
    (tmp_path / "second.json").write_text("{}")
    with pytest.raises(InputError, match="name one of"):
        evidence_of(tmp_path)
    assert isinstance(evidence_of(folder), Evidence)


def test_weight_and_mode_are_the_students_own(tmp_path: Path) -> None:
    """Not their labels': `feature` at beta 0.1 has a cross-entropy, and a control may be called anything."""
    grid = {
        "objective": ["feature"],
        "beta": [0.1, 0.5],
        "told": [{"label": "with", "labels": "use"}, {"label": "without", "labels": "withhold"}],
    }
    made = Study({**RECIPE, "students": {**RECIPE["students"], "grid": grid}}, {"method": "fedavg"}).run(tmp_path)
    evidence = evidence_from(made)
    weights = {(one.objective, one.free): one.hard_label_weight for one in evidence.students}
    assert weights == {
        ("feature beta 0.1", False): pytest.approx(0.4),
        ("feature beta 0.1", True): pytest.approx(0.4),
        ("feature beta 0.5", False): 0.0,
        ("feature beta 0.5", True): 0.0,
    }


def test_what_leaves_may_hang_on_settings(tmp_path: Path) -> None:
    """FedBN declares its egress by its settings: with a proxy model it uploads BatchNorm layers, too."""
    methods = [{"name": "fedbn", "proxy": "average"}, "ditto"]
    made = Study(RECIPE, {"method": methods, "objective": "vanilla", "labels": "use"}).run(tmp_path)
    assert all("parameters" in teacher.egress for teacher in evidence_from(made, tmp_path).teachers)


def test_one_data_set_at_a_time(tmp_path: Path) -> None:
    """Labels-only students and chance levels of two data sets must not be mixed."""
    draw = np.random.default_rng(0)
    np.savez(tmp_path / "mine.npz", x=draw.random((60, 8, 8)), y=np.arange(60) % 3 // 2)
    mine = f"npz:{tmp_path / 'mine.npz'}"
    grid = {"data": ["digits", mine], "method": ["fedavg"], "seed": [7]}
    made = Study({**RECIPE, "grid": grid}, {"objective": ["labels-only", "vanilla"]}).run(tmp_path / "runs")
    with pytest.raises(InputError, match="several data sets: name one of digits"):
        evidence_from(made)
    one, other = (evidence_from(made, data=name) for name in ("digits", mine))
    assert (len(one.class_counts), len(other.class_counts)) == (10, 2)
    assert one.alone["7"] != other.alone["7"]
    assert len(one.students) == len(other.students) == 2
    assert one.students[0].alone == one.alone["7"]


def written(axes: dict[str, list[str]], teachers: dict[tuple[str, ...], float], students: list[Any]) -> Results:
    """Results as a file has them: `students` are labels, mode, data, accuracy, and what the teacher gets there."""
    first = {axis: {label: label for label in labels} for axis, labels in axes.items()}
    width = len(next(iter(teachers)))
    own = dict(list(first.items())[:width])
    taught = {cell: Pupil(Taught("feature", mode, 0.5), data, "mlp") for cell, mode, data, *_ in students}
    runs = {
        cell: ResultRow("s", {"accuracy": accuracy, "teacher.0": there}) for cell, _, _, accuracy, there in students
    }
    second = Results("made up, students", "", {"which": "last"}, first, None, (), runs, pupils=taught)
    rows = {cell: ResultRow("t", {"accuracy": accuracy, "constant": 0.3}) for cell, accuracy in teachers.items()}
    return Results("made up", "", {}, own, None, (), rows, students=second)


def test_a_setting_is_no_label_mode_where_all_students_have_labels() -> None:
    """Two objectives at two weights are four students, and not two."""
    accuracies = {
        ("feature", "seed"): 0.5,
        ("feature", "reference"): 0.6,
        ("rkd", "seed"): 0.7,
        ("rkd", "reference"): 0.8,
    }
    axes = {"method": ["fedavg"], "objective": ["feature", "rkd"], "beta": ["seed", "reference"]}
    students = [(("fedavg", *cell), "use", "digits", accuracy, 0.9) for cell, accuracy in accuracies.items()]
    pairs = judge(evidence_from(written(axes, {("fedavg",): 0.9}, students))).pairs
    assert {pair.objective: pair.labelled for pair in pairs} == {
        "feature beta seed": 0.5,
        "feature beta reference": 0.6,
        "rkd beta seed": 0.7,
        "rkd beta reference": 0.8,
    }


def test_a_mode_on_two_values_makes_them_no_label_modes() -> None:
    """Of `hot`, `cold` and `without` two are taught with labels: they are not one student."""
    axes = {"method": ["fedavg"], "how": ["hot", "cold", "without"]}
    students = [
        (("fedavg", "hot"), "use", "digits", 0.5, 0.9),
        (("fedavg", "cold"), "use", "digits", 0.6, 0.9),
        (("fedavg", "without"), "withhold", "digits", 0.7, 0.9),
    ]
    found = evidence_from(written(axes, {("fedavg",): 0.9}, students)).students
    assert [one.objective for one in found] == ["feature how hot", "feature how cold", "feature how without"]


def test_a_teacher_is_held_against_its_students_on_their_test_data() -> None:
    """It gets everything right on its own, and less than a third where its students are tested."""
    axes = {"method": ["fedavg"], "data": ["easy", "hard"]}
    students = [
        (("fedavg", "easy"), "use", "easy", 1.0, 1.0),
        (("fedavg", "hard"), "use", "hard", 0.4, 0.305),
    ]
    made = written(axes, {("fedavg",): 1.0}, students)
    for data, accuracy, constant in (("easy", 1.0, 0.3), ("hard", 0.305, None)):
        evidence = evidence_from(made, data=data)
        (teacher,), (student,) = evidence.teachers, evidence.students
        assert teacher.score is not None
        assert (teacher.score.accuracy, teacher.constant) == (accuracy, constant)
        assert student.objective == "feature", "what all of them have in common tells nobody apart"


def test_teachers_of_two_data_sets_with_students_on_one_have_two_names() -> None:
    axes = {"data": ["here", "there"], "method": ["fedavg", "fedprox"]}
    teachers = {("here", "fedavg"): 0.9, ("there", "fedavg"): 0.8, ("here", "fedprox"): 0.7}
    students = [(cell, "use", "here", value - 0.5, value) for cell, value in teachers.items()]
    found = {one.teacher: one.score for one in evidence_from(written(axes, teachers, students)).students}
    assert list(found) == ["here fedavg", "there fedavg", "here fedprox"]
