"""What is to be audited: a study's results, a folder that holds one, or one distilled student."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedstill.audit.evidence import Evidence, Score, Student, Teacher
from fedstill.audit.from_results import contradictions_of, curve_of, evidence_from, guessing_of, terms_of
from fedstill.audit.verdicts import NOT_ASSESSABLE
from fedstill.core.errors import InputError, UnusableError
from fedstill.distillation import objectives
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.experiment import Experiment
from fedstill.runtime.launch import launch
from fedstill.runtime.observers import Observer
from fedstill.runtime.result import Run
from fedstill.studies.results import Results, load_results
from fedstill.studies.run_figures import samples_by_class


def evidence_of(
    source: Path,
    data_root: Path | None = None,
    device: str = "cpu",
    observers: Sequence[Observer] = (),
    data: str | None = None,
) -> Evidence:
    """Read a study's results (.json), the folder they lie in, or a student's run.

    A student needs others to be compared with: without labels, and without a teacher. Where they are not in the same
    folder of runs they are trained, by the student's own settings. Of a study with several data sets `data` names one.
    """
    if source.suffix == ".json":
        return evidence_from(load_results(source), source.parent, data)
    if (source / "config.json").is_file():
        return _of_run(Run(source), data_root, device, observers)
    found = results_in(source)
    if found is None:
        raise InputError(f"{source} is neither a study's results (.json) nor a run, nor a folder with results in it")
    return evidence_of(found, data_root, device, observers, data)


def evidence_of_object(source: Any, **reading: Any) -> Evidence:
    """The same of a run, or of a study's results in memory."""
    if isinstance(source, Run):
        return evidence_of(source.path, **reading)
    if isinstance(source, Results):
        return evidence_from(source, Path(), **reading)
    raise InputError(
        f"an audit is of a study's results, a run, a table or evidence, and not of type {type(source).__name__}"
    )


def results_in(folder: Path) -> Path | None:
    """The results file of a folder; None where there is none, and refused where there are several."""
    found = sorted(folder.glob("*.json")) if folder.is_dir() else []
    if len(found) > 1:
        raise InputError(f"{folder} holds the results of several studies: name one of {', '.join(map(str, found))}")
    return found[0] if found else None


def _of_run(run: Run, data_root: Path | None, device: str, observers: Sequence[Observer]) -> Evidence:
    """The student as it is, its label-free control, and a student without a teacher."""
    experiment = _at_home(run)
    if experiment.objective is None or not experiment.teachers:
        raise InputError(f"{run.path} had no teacher: an audit is of a distilled student, or of a study with students")
    name, seed = experiment.objective.name, str(experiment.seed)

    def launched(other: Experiment) -> Run:
        return launch(other, out=run.path.parent, data_root=data_root, device=device, observers=observers)

    labelled = launched(_with_labels(experiment, "use"))
    students = [_student(labelled, name, seed, free=False)]
    trained = [labelled]
    try:
        trained.append(launched(_with_labels(experiment, "withhold")))
        students.append(_student(trained[-1], name, seed, free=True))
    except UnusableError:
        students.append(Student(_names(labelled), name, seed, True, None, NOT_ASSESSABLE))
    alone = launched(_alone(experiment))
    trained.append(alone)
    truth = labelled.test_labels
    return Evidence(
        name=f"{name} from {_names(labelled)}",
        about="One student, its label-free control, and a student without a teacher.",
        teachers=_teachers(labelled, seed),
        students=tuple(students),
        alone={seed: _score(alone)},
        class_counts=() if truth is None else tuple(samples_by_class(truth, len(run.config["classes"]))),
        commands=(f"fedstill audit {run.path}",),
        edited=tuple(text for one in trained for text in contradictions_of(one)),
        settings={"data": experiment.data, "student": str(experiment.model), "epochs": str(experiment.rounds)},
    )


def _at_home(run: Run) -> Experiment:
    """Its experiment; a teacher whose folder was named from elsewhere is looked for beside the student's."""
    experiment, sources = run.experiment, []
    for source in run.experiment.teachers:
        beside = run.path.parent / Path(source.run).name if source.run else None
        if beside is not None and not Path(str(source.run)).exists() and beside.exists():
            sources.append(source.model_copy(update={"run": str(beside)}))
        else:
            sources.append(source)
    return experiment.model_copy(update={"teachers": tuple(sources)})


def _with_labels(experiment: Experiment, mode: str) -> Experiment:
    given = _given(experiment)
    return make_experiment({**given, "method": {**given["method"], "labels": mode}})


def _alone(experiment: Experiment) -> Experiment:
    """The same student on the same data, with nobody to listen to."""
    given = _given(experiment)
    method = {**given["method"], "labels": "use"}
    return make_experiment({**given, "method": method, "objective": "labels-only", "teachers": []})


def _given(experiment: Experiment) -> dict[str, Any]:
    """As a configuration; the digest of a teacher is found out again when it is loaded."""
    given = experiment.model_dump(mode="json")
    given["teachers"] = [{**source, "sha256": None} for source in given["teachers"]]
    return given


def _names(run: Run) -> str:
    return " and ".join(teacher.name for teacher in run.result.teachers)


def _teachers(run: Run, seed: str) -> tuple[Teacher, ...]:
    """Of several teachers none can be set against the student."""
    reports = run.result.teachers
    if len(reports) > 1:
        return ()
    (report,), (source,) = reports, run.experiment.teachers
    correct: tuple[bool, ...] = ()
    guessing = None
    if source.run is not None and (Path(source.run) / "config.json").is_file():
        taught = Run(source.run)
        correct, guessing = _correct(taught, source.which), guessing_of(taught, source.which)
    ceiling = run.result.ceiling
    assert run.experiment.objective is not None
    return (
        Teacher(
            name=report.name,
            seed=seed,
            score=Score(report.metrics["accuracy"], correct),
            which=source.which,
            constant=report.metrics["constant"],
            recalibrated=report.recalibrated,
            ceilings={} if ceiling is None else {run.experiment.objective.name: ceiling},
            guessing=guessing,
        ),
    )


def _student(run: Run, objective: str, seed: str, free: bool) -> Student:
    chosen = run.experiment.objective
    assert chosen is not None
    return Student(
        teacher=_names(run),
        objective=objective,
        seed=seed,
        free=free,
        score=_score(run),
        hard_label_weight=objectives[chosen.name](chosen.settings).hard_label_weight,
        terms=terms_of(run),
        curve=curve_of(run),
        accuracies={which: value for which, value in run.result.accuracy.items() if value is not None},
    )


def _score(run: Run) -> Score:
    return Score(run.accuracy, _correct(run, "last"))


def _correct(run: Run, which: str) -> tuple[bool, ...]:
    said, truth = run.predictions(which), run.test_labels
    if said is None or truth is None:
        return ()
    return tuple(one == label for one, label in zip(said, truth, strict=True))
