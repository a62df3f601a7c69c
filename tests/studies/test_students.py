"""Studies in two stages: who is taught by whom, what is run once, what cannot be, and the bits of learning together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedstill.config import make_experiment
from fedstill.core.errors import InputError
from fedstill.federation import launch as launching
from fedstill.federation import lesson
from fedstill.studies import Study
from fedstill.studies.agenda import lessons
from fedstill.studies.ledger import Ledger

Make = Callable[..., dict[str, Any]]
TAUGHT = {
    "experiment": {"model": "cnn", "rounds": 2, "training": {"batch": 64}},
    "grid": {"objective": ["labels-only", "vanilla", "crd", "self"], "labels": ["use", "no-ce", "withhold"]},
}


@pytest.fixture
def staged(recipe: Make) -> Callable[..., dict[str, Any]]:
    def make(**students: Any) -> dict[str, Any]:
        made = recipe({"method": ["fedavg", "centralised"], "seed": [7]})
        return {**made, "students": {**TAUGHT, **students}}

    return make


def test_every_run_teaches_by_every_objective(staged: Make) -> None:
    """Two teachers; labels-only in one label mode, the others in three: 2 + 2 x (1 + 9) cells.

    Runs: both controls are one, crd has none without labels, and labels-only needs no teacher, so that both teachers'
    are one run: 2 + 1 + 2 x (2 + 1 + 2).
    """
    study = Study(staged())
    assert len(study.expand()) == 22
    assert len(study.agenda.jobs) == 13
    refused = {study.expand()[number].labels["objective"] for number in study.agenda.refused}
    assert refused == {"crd"}
    assert len(study.agenda.refused) == 4
    student = next(cell for cell in study.students if cell.labels["objective"] == "vanilla")
    assert student.labels == {"method": "fedavg", "seed": "7", "objective": "vanilla", "labels": "use"}
    assert student.experiment.seed == 7
    assert student.teacher is study.teachers[0]


def test_only_some_teach(staged: Make) -> None:
    study = Study(staged(only={"method": "centralised"}))
    assert {cell.labels["method"] for cell in study.students} == {"centralised"}
    with pytest.raises(InputError, match="nobody would be taught"):
        Study(staged(only={"method": ["fedprox"]}))
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
    learn = lesson.together

    def counted(students: Any) -> Any:
        taught.append(len(students))
        return learn(students)

    monkeypatch.setattr(lesson, "together", counted)
    study = Study(staged(grid={"objective": ["vanilla", "self", "dkd"], "labels": ["use", "no-ce"]}))
    assert len(study.agenda.jobs) == 14
    results = study.run(tmp_path / "study")
    assert results.students is not None
    assert len(results.students.runs) == 12
    # Per teacher: six students for two epochs, and for two more the second generation of `self`, with labels and not.
    assert taught == [6, 6, 2, 2] * 2
    ledger = Ledger(tmp_path / "study")
    for job in study.agenda.jobs:
        teacher = None if job.teacher is None else ledger.run(job.teacher)
        launching.launch(make_experiment(job.given(teacher and teacher.path)), out=tmp_path / "alone")
    alone, together = files(tmp_path / "alone"), files(tmp_path / "study")
    assert alone.keys() == together.keys()
    assert [name for name in alone if alone[name] != together[name]] == []


def test_an_objective_that_reads_no_labels_is_its_own_control(staged: Make, tmp_path: Path) -> None:
    """`feature` has no cross-entropy at its usual weights: one run for both modes, with the bits of either."""
    study = Study(staged(only={"method": "fedavg"}, grid={"objective": ["feature"], "labels": ["use", "no-ce"]}))
    assert len(study.agenda.jobs) == 3  # two teachers
    results = study.run(tmp_path)
    assert results.students is not None
    used, control = results.students.runs.values()
    assert used == control
    student = dict(study.students[0].given)
    teacher = Ledger(tmp_path).run(study.agenda.jobs[0])
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
    jobs = study.agenda.jobs
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
    counts = results.test_counts["digits"]
    number, _, _ = row.correct["last"].partition(":")
    assert int(number) == sum(counts)
