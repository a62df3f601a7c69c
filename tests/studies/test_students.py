"""Studies in two stages: who is taught by whom, what is run once, what cannot be, and the bits of learning together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedstill.core.errors import InputError
from fedstill.distillation.distill import Distillation
from fedstill.runtime import launch as launching
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.run import Attempt
from fedstill.studies import Study, load_results, make_table
from fedstill.studies.status import RunStatus
from fedstill.studies.study_plan import lessons

Make = Callable[..., dict[str, Any]]
DATA = "digits[:30%]"
TAUGHT = {
    "experiment": {"model": "cnn", "rounds": 2, "training": {"batch": 64}},
    "grid": {"objective": ["labels-only", "vanilla", "crd", "self"], "labels": ["use", "no-ce", "withhold"]},
}


@pytest.fixture
def staged(recipe: Make) -> Callable[..., dict[str, Any]]:
    def make(**students: Any) -> dict[str, Any]:
        made = recipe({"method": ["fedavg", "centralised"], "seed": [7]}, data=DATA)
        return {**made, "students": {**TAUGHT, **students}}

    return make


def test_every_run_teaches_by_every_objective(staged: Make) -> None:
    """Two teachers; labels-only in one label mode, the others in three: 2 + 2 x (1 + 9) cells.

    Runs: both controls are one, crd has none without labels, and labels-only needs no teacher, so that both teachers'
    are one run: 2 + 1 + 2 x (2 + 1 + 2).
    """
    study = Study(staged())
    assert len(study.expand()) == 22
    assert len(study.study_plan.jobs) == 13
    refused = {study.expand()[number].labels["objective"] for number in study.study_plan.refused}
    assert refused == {"crd"}
    assert len(study.study_plan.refused) == 4
    student = next(cell for cell in study.students if cell.labels["objective"] == "vanilla")
    assert student.labels == {"method": "fedavg", "seed": "7", "objective": "vanilla", "labels": "use"}
    assert student.experiment.seed == 7
    assert student.teacher is study.teachers[0]


def test_only_some_teach(staged: Make) -> None:
    study = Study(staged(only={"method": "centralised"}))
    assert {cell.labels["method"] for cell in study.students} == {"centralised"}
    with pytest.raises(InputError, match="did you mean 'fedavg'"):
        Study(staged(only={"method": ["centralised", "fedvag"]}))
    with pytest.raises(InputError, match="there is no axis 'teacher'"):
        Study(staged(only={"teacher": ["fedavg"]}))


def test_settings_reach_their_stage(staged: Make) -> None:
    study = Study(staged(), {"students.rounds": 5, "rounds": 3, "objective": "vanilla", "seed": [1, 2]})
    assert {cell.experiment.rounds for cell in study.teachers} == {3}
    assert {cell.experiment.rounds for cell in study.students} == {5}
    assert {cell.labels["objective"] for cell in study.students} == {"vanilla"}
    assert {cell.experiment.seed for cell in study.students} == {1, 2}


@pytest.mark.parametrize(
    ("students", "says"),
    [
        ({"which": "newest"}, "which is 'newest'"),
        ({"epochs": 3}, "unknown 'epochs'"),
        ({"grid": {"seed": [1]}}, "'seed' is varied for the teachers already"),
        ({"grid": {"objective": ["vanila"]}}, "did you mean 'vanilla'"),
        ({"experiment": {"model": "mlp", "rounds": 1}}, "the student is the teacher"),
        ({"experiment": "oops"}, "experiment must hold settings"),
        ({"experiment": {"method": "fedavg", "model": "cnn"}}, "students are distilled, not trained by fedavg"),
        ({"columns": ["objective"]}, "columns must be an axis"),
        ({"grid": {"objective": ["labels-only"], "tempersture": [3]}}, "unknown setting 'tempersture'"),
        ({"grid": {"objective": ["labels-only"], "labels": ["no-ce"]}}, "make no experiment"),
    ],
)
def test_what_cannot_be_taught_is_refused_before_anything_runs(
    staged: Make, tmp_path: Path, students: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        Study(staged(**students)).run(tmp_path)
    assert not list(tmp_path.iterdir())


def files(folder: Path) -> dict[str, bytes]:
    """Everything but times and locks."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ("timing.json", ".lock")
    }


def test_students_of_a_study_have_the_bits_they_have_alone(
    staged: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All students of a teacher learn in one lesson; then each is run by itself, from its configuration."""
    taught: list[int] = []
    learn = Distillation.reply_jointly

    def counted(self: Distillation, requests: Any) -> Any:
        taught.append(len(requests))
        return learn(self, requests)

    monkeypatch.setattr(Distillation, "reply_jointly", counted)
    study = Study(staged(grid={"objective": ["vanilla", "self", "dkd"], "labels": ["use", "no-ce"]}))
    assert len(study.study_plan.jobs) == 14
    results = study.run(tmp_path / "study")
    assert results.students is not None
    assert len(results.students.runs) == 12
    # Per teacher: six students for two epochs, and for two more the second generation of `self`, with labels and not.
    assert taught == [6, 6, 2, 2] * 2
    ledger = RunStatus(tmp_path / "study")
    for job in study.study_plan.jobs:
        teacher = None if job.teacher is None else ledger.run(job.teacher)
        given = make_experiment(job.given(teacher and teacher.path))
        launching.launch(given, out=tmp_path / "alone", known=study.study_plan.known)  # whose count has changed a part
    alone, together = files(tmp_path / "alone"), files(tmp_path / "study")
    assert alone.keys() == together.keys()
    assert [name for name in alone if alone[name] != together[name]] == []


def test_a_failure_of_joint_training_is_in_the_results(
    staged: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Distillation, requests: Any) -> Any:
        raise RuntimeError("no memory for two")

    monkeypatch.setattr(Distillation, "reply_jointly", broken)
    students = {"only": {"method": "centralised"}, "grid": {"objective": ["vanilla"], "labels": ["use", "no-ce"]}}
    results = Study(staged(**students)).run(tmp_path / "study")
    assert results.students is not None
    assert results.joint_errors == {}
    assert set(results.students.joint_errors) == set(results.students.runs)
    results.save(tmp_path / "r.json")
    table = make_table(load_results(tmp_path / "r.json").students or results)
    assert table.note.startswith("Two students were trained separately because joint training failed: RuntimeError:")


def test_an_objective_that_reads_no_labels_is_its_own_control(staged: Make, tmp_path: Path) -> None:
    """`feature` has no cross-entropy at its usual weights: one run for both modes, with the bits of either."""
    study = Study(staged(only={"method": "fedavg"}, grid={"objective": ["feature"], "labels": ["use", "no-ce"]}))
    assert len(study.study_plan.jobs) == 3  # two teachers
    results = study.run(tmp_path)
    assert results.students is not None
    used, control = results.students.runs.values()
    assert used == control
    assert list(results.axes["method"]) == ["fedavg", "centralised"]
    assert list(results.students.axes["method"]) == ["fedavg"], "nobody waits for students of the others"
    student = dict(study.students[0].given)
    teacher = RunStatus(tmp_path).run(study.study_plan.jobs[0])
    assert teacher is not None
    bits = {
        launching.run(
            {**student, "method": {"name": "distill", "labels": mode}},
            teachers=[{"run": str(teacher.path)}],
            out=tmp_path,
        ).sha256
        for mode in ("use", "no-ce", "withhold")
    }
    assert len(bits) == 1


def test_a_lesson_may_be_shared_out(staged: Make) -> None:
    study = Study(staged(grid={"objective": ["vanilla", "self", "dkd"]}))
    jobs = study.study_plan.jobs
    assert sorted(map(len, lessons(jobs))) == [1, 1, 3, 3]
    assert sorted(map(len, lessons(jobs, 2))) == [1, 1, 1, 1, 2, 2]
    assert {job for group in lessons(jobs, 2) for job in group} == set(jobs)


def test_what_is_known_of_a_student_is_in_the_results(staged: Make, tmp_path: Path) -> None:
    results = Study(staged()).run(tmp_path, workers=2)
    students = results.students
    assert students is not None
    assert not results.failures
    assert not students.failures
    assert set(students.refused) == {
        (method, "7", "crd", mode) for method in ("fedavg", "centralised") for mode in ("no-ce", "withhold")
    }
    row = students.runs["fedavg", "7", "vanilla", "use"]
    teacher = results.runs["fedavg", "7"]
    assert row.figures["teacher.0"] == teacher.figures["accuracy"]
    assert 0 < float(row.figures["ceiling"] or 0) <= 1
    assert students.runs["fedavg", "7", "vanilla", "no-ce"] == students.runs["fedavg", "7", "vanilla", "withhold"]
    assert students.runs["fedavg", "7", "vanilla", "no-ce"].figures["ceiling"] is None
    assert students.runs["fedavg", "7", "labels-only", "use"] == students.runs["centralised", "7", "labels-only", "use"]
    counts = results.test_counts[DATA]
    number, _, _ = row.correct["last"].partition(":")
    assert int(number) == sum(counts)


def test_a_student_without_a_teacher_is_the_same_student(staged: Make) -> None:
    """Images: distillation trains with Adam, pooled training with SGD; a share of the proxy is a share for both."""
    experiment = {"model": "cnn", "rounds": 2, "method": {"share": 0.5}}
    study = Study(staged(experiment=experiment, grid={"objective": ["labels-only", "vanilla"]}))
    alone, taught = (
        next(job for job in study.study_plan.jobs if job.cell.labels.get("objective") == name)
        for name in ("labels-only", "vanilla")
    )
    assert alone.experiment.training == taught.experiment.training
    assert alone.experiment.method == taught.experiment.method
    assert alone.teacher is None


def test_points_and_augmentation_are_the_teachers(recipe: Make) -> None:
    """PointNet wants 1,024 points, the small student 256: unless somebody says so, it gets what its teacher had."""
    made = {
        "experiment": {"data": "heads", "model": "pointnet", "method": "centralised", "rounds": 1},
        "grid": {"seed": [7]},
        "students": {"experiment": {"model": "small-pointnet-tiny", "rounds": 1}, "grid": {"objective": ["vanilla"]}},
    }
    teacher, student = Study(made).study_plan.jobs
    assert (teacher.experiment.points, student.experiment.points) == (1024, 1024)
    assert student.given(None)["points"] == 1024
    made["students"]["experiment"]["points"] = 64
    assert Study(made).study_plan.jobs[1].experiment.points == 64


def test_one_who_fails_does_not_take_the_others_along(
    staged: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = Attempt.finish

    def broken(self: Attempt) -> None:
        if self.plan.experiment.objective and self.plan.experiment.objective.name == "dkd":
            raise RuntimeError("boom")
        finish(self)

    monkeypatch.setattr(Attempt, "finish", broken)
    study = Study(staged(only={"method": "fedavg"}, grid={"objective": ["vanilla", "dkd", "feature"]}))
    students = study.run(tmp_path).students
    assert students is not None
    assert {labels[-1] for labels in students.runs} == {"vanilla", "feature"}
    assert students.failures == {("fedavg", "7", "dkd"): "RuntimeError: boom"}


def test_data_that_changes_between_two_studies_is_read_again(recipe: Make, tmp_path: Path) -> None:
    made = recipe({"method": ["fedavg"]}, data=f"npz:{tmp_path / 'mine.npz'}")
    for seed in (0, 1):
        draw = np.random.default_rng(seed)
        np.savez(tmp_path / "mine.npz", x=draw.random((40, 8, 8)), y=np.arange(40) % 2)
        assert len(Study(made).run(tmp_path / "runs").runs) == 1
    assert len(list((tmp_path / "runs").glob("*/result.json"))) == 2


def test_a_teacher_that_was_never_finite_is_a_result(staged: Make, tmp_path: Path) -> None:
    """It has no best model: its students are refused, not failed."""
    study = Study(staged(which="best", only={"method": "fedavg"}, grid={"objective": ["vanilla"]}))
    Study({**staged(), "students": None}).run(tmp_path)
    teacher = RunStatus(tmp_path).run(study.study_plan.jobs[0])
    assert teacher is not None
    (teacher.path / "model-best.safetensors").unlink()
    students = study.run(tmp_path).students
    assert students is not None
    assert not students.failures
    assert "has no best model" in students.refused["fedavg", "7", "vanilla"]


def test_old_rows_are_kept_stage_by_stage(staged: Make, tmp_path: Path) -> None:
    study = Study(staged(grid={}, experiment={"model": "cnn", "rounds": 1, "objective": "vanilla"}))
    results = study.run(tmp_path)
    assert results.extended(results, *study.identities(tmp_path)) == results
