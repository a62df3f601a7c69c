"""Evidence from a study's results; where the runs lie beside them, with their journals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from fedstill.audit.evidence import Evidence, RoundFacts, Score, Student, Teacher
from fedstill.audit.verdicts import NOT_ASSESSABLE
from fedstill.core.errors import InputError, did_you_mean
from fedstill.distillation import objectives
from fedstill.methods import methods
from fedstill.methods.fedavg import buffers_of
from fedstill.runtime.result import Run, run_called
from fedstill.runtime.run_folder import folder_of
from fedstill.runtime.run_verification import verify_run
from fedstill.studies.grid import SEED
from fedstill.studies.results import Labels, Pupil, ResultRow, Results
from fedstill.studies.results_table import joint_training_note, stale_runs
from fedstill.studies.run_figures import figures_of, unpacked
from fedstill.studies.verification import row_contradictions

OBJECTIVE = "objective"
_FIGURE = {"last": "accuracy", "best": "best", "selected": "selected"}


def evidence_from(results: Results, runs: Path | None = None, data: str | None = None) -> Evidence:
    """What a study in two stages says; `runs` is the folder of its runs, if it is there.

    Where students learnt on several data sets, `data` says which is meant: accuracies on two are not one story.
    """
    students = results.students
    if students is None:
        raise InputError(
            f"the study {results.study} has no students, so there is nothing to audit: its recipe needs a section"
            " `students`"
        )
    known = sorted({pupil.data for pupil in students.pupils.values()})
    if not known:
        raise InputError(
            f"the results of {results.study} do not say what its students were taught: run the study again"
        )
    if data is None and len(known) > 1:
        raise InputError(f"the study {results.study} has students on several data sets: name one of {', '.join(known)}")
    if data is not None and data not in known:
        raise InputError(f"the study {results.study} has no students on {data!r}: {did_you_mean(data, known)}")
    return _Reader(results, students, runs, data or known[0]).evidence()


@dataclass(frozen=True)
class _Reader:
    results: Results
    students: Results
    runs: Path | None
    data: str

    @cached_property
    def which(self) -> str:
        """Of whose models: those that taught, and of their students the same kind."""
        return str(self.students.source.get("which", "last"))

    @cached_property
    def pupils(self) -> dict[Labels, Pupil]:
        return {cell: pupil for cell, pupil in self.students.pupils.items() if pupil.data == self.data}

    @cached_property
    def taught_by(self) -> list[Labels]:
        """The cells of teachers with students, in the order of the study."""
        taught = {cell[: len(self.results.axes)] for cell in self.pupils}
        return [cell for cell in self.results.runs if cell in taught]

    @cached_property
    def alone(self) -> dict[tuple[str, str], Score]:
        """Students without a teacher, by model and seed."""
        found: dict[tuple[str, str], Score] = {}
        for cell, pupil in self.pupils.items():
            if not _has_teacher(pupil) and (score := self._score(cell)) is not None:
                found.setdefault((pupil.model, self._seed(cell)), score)
        return found

    def evidence(self) -> Evidence:
        results = self.results
        models = {pupil.model for pupil in self.pupils.values()}
        only = next(iter(models)) if len(models) == 1 else None
        counts = self.students.test_counts.get(self.data) or results.test_counts.get(self.data) or []
        return Evidence(
            name=results.study,
            about=results.about,
            teachers=tuple(self._teacher(cell, results.runs[cell]) for cell in self.taught_by),
            students=tuple(self._student(cell, pupil) for cell, pupil in self.pupils.items() if _has_teacher(pupil)),
            alone={seed: score for (model, seed), score in self.alone.items() if model == only},
            class_counts=tuple(counts),
            commands=(results.command,) if results.command else (),
            settings=self._settings(),
            edited=tuple(self._edited()),
        )

    def _edited(self) -> Iterator[str]:
        """Figures that are not those of their runs, where the runs are here, and what contradicts itself in these."""
        rows = [
            (cell, results.runs[cell], results.pupils.get(cell))
            for results, cells in self._stages()
            for cell in cells
            if cell in results.runs
        ]
        for cell, row, pupil in rows:
            run = self._run(row)
            if run is not None:
                figures = row_contradictions(Path(self.results.study), cell, row, run, pupil)
                yield from (f"{one.field}: {one.says}" for one in figures)
                yield from contradictions_of(run)

    def _stages(self) -> tuple[tuple[Results, Iterable[Labels]], ...]:
        return (self.results, self.taught_by), (self.students, self.pupils)

    def _teacher(self, cell: Labels, row: ResultRow) -> Teacher:
        """What it gets right counts on the students' test data, which may not be what it was tested on itself."""
        run, figures = self._run(row), row.figures
        finite = self.which != "last" or figures.get("finite", 1) == 1
        up = figures.get("bytes_up")
        own, there = self._placed(row), self._of_students(cell, "teacher.0")
        at_home = not there or (own is not None and own.accuracy in there)
        score = own if at_home else Score(there[0])
        return Teacher(
            name=self._name(cell),
            seed=self._seed(cell),
            score=score if finite else None,
            which=self.which,
            constant=figures.get("constant" if self.which == "last" else f"{self.which}_constant") if at_home else None,
            accuracies=_accuracies(row) if at_home else {},
            recalibrated=next(iter(self._of_students(cell, "teacher.0.recalibrated")), None),
            rounds=_rounds(run),
            ceilings=self._ceilings(cell),
            traffic=None if up is None or _pooled(run) else up / 2**20,
            egress=_egress(run),
            buffers=None if run is None else buffers_of(run.experiment.method.settings),
            model=_model(run),
            guessing=guessing_of(run, self.which) if at_home else None,
        )

    def _student(self, cell: Labels, pupil: Pupil) -> Student:
        row = self.students.runs.get(cell)
        why = self.students.failures.get(cell, "") or self.students.refused.get(cell, "")
        return Student(
            teacher=self._name(cell),
            objective=self._objective(cell),
            seed=self._seed(cell),
            free=pupil.taught.labels != "use",
            score=self._score(cell),
            missing=NOT_ASSESSABLE if NOT_ASSESSABLE in why else why,
            hard_label_weight=pupil.taught.hard_label_weight,
            terms={} if row is None else _terms(row),
            curve=() if row is None else curve_of(self._run(row)),
            accuracies={} if row is None else _accuracies(row),
            alone=self.alone.get((pupil.model, self._seed(cell))),
            model=pupil.model,
        )

    def _score(self, cell: Labels) -> Score | None:
        row = self.students.runs.get(cell)
        return None if row is None else self._placed(row)

    def _placed(self, row: ResultRow) -> Score | None:
        """The score of a run, with the run's folder where that is here."""
        score = _score(row, self.which)
        folder = None if self.runs is None else folder_of(row.identity, self.runs)
        return None if score is None else replace(score, run=folder)

    def _name(self, cell: Labels) -> str:
        """What a teacher is called: whatever tells it from the others, its seed aside; its data where that differs."""
        labels = dict(zip(self.results.axes, cell, strict=False))
        varied = [
            axis
            for place, (axis, values) in enumerate(self.results.axes.items())
            if axis != SEED and len({one[place] for one in self.taught_by} if axis == "data" else values) > 1
        ]
        shown = varied or [axis for axis in self.results.axes if axis != SEED][:1]
        return " ".join(labels[axis] for axis in shown) or self.results.study

    def _objective(self, cell: Labels) -> str:
        """The objective as labelled, with whatever else is varied among these students."""
        labels = dict(zip(self.students.axes, cell, strict=True))
        first = labels.get(OBJECTIVE, self.pupils[cell].taught.objective)
        return " ".join([first, *(f"{axis} {labels[axis]}" for axis in self._varied)])

    @cached_property
    def _varied(self) -> tuple[str, ...]:
        """Axes of the students' own that tell them apart, beside objective and label mode."""
        found = []
        for place, axis in enumerate(self.students.axes):
            seen = {(cell[place], pupil.taught.labels) for cell, pupil in self.pupils.items()}
            labels, modes = ({one[side] for one in seen} for side in (0, 1))
            # One label for one mode and the other way round: nothing but the label mode, whatever it is called.
            mode_alone = len(seen) == len(labels) == len(modes)
            if axis not in (*self.results.axes, OBJECTIVE) and len(labels) > 1 and not mode_alone:
                found.append(axis)
        return tuple(found)

    def _of_students(self, teacher: Labels, figure: str) -> list[float]:
        """What its students here wrote down of a teacher, each of them."""
        known = (
            self.students.runs[cell].figures.get(figure)
            for cell in self.pupils
            if cell[: len(teacher)] == teacher and cell in self.students.runs
        )
        return [value for value in known if value is not None]

    def _ceilings(self, teacher: Labels) -> dict[str, float]:
        return {
            self._objective(cell): ceiling
            for cell in self.pupils
            if cell[: len(teacher)] == teacher
            and cell in self.students.runs
            and (ceiling := self.students.runs[cell].figures.get("ceiling")) is not None
        }

    def _settings(self) -> dict[str, str]:
        stages = {"teachers": self.results, "students": self.students}
        told = {"data": self.data, "which models": self.which}
        for stage, results in stages.items():
            experiment = results.source.get("experiment", {})
            for key in ("model", "points", "clients", "rounds", "partition"):
                if key in experiment and key not in results.axes:
                    told[f"{stage}: {key}"] = str(experiment[key])
        stale = stale_runs(stages)
        notes = {"stale": stale, "joint training": joint_training_note(self.students)}
        return told | {what: note for what, note in notes.items() if note}

    def _seed(self, cell: Labels) -> str:
        return dict(zip(self.results.axes, cell, strict=False)).get(SEED, "0")

    def _run(self, row: ResultRow) -> Run | None:
        if self.runs is None:
            return None
        return run_called(row.identity, self.runs)


def _has_teacher(pupil: Pupil) -> bool:
    return pupil.taught.objective not in objectives or objectives[pupil.taught.objective].least_teachers > 0


def _score(row: ResultRow, which: str) -> Score | None:
    accuracy = row.figures.get(_FIGURE[which])
    if accuracy is None:
        return None
    return Score(accuracy, unpacked(row.correct[which]) if which in row.correct else ())


def _accuracies(row: ResultRow) -> dict[str, float]:
    return {which: value for which, name in _FIGURE.items() if (value := row.figures.get(name)) is not None}


def _terms(row: ResultRow) -> dict[str, float]:
    return {
        name.removeprefix("loss."): value
        for name, value in row.figures.items()
        if name.startswith("loss.") and value is not None
    }


def _rounds(run: Run | None) -> tuple[RoundFacts, ...]:
    if run is None:
        return ()
    return tuple(
        RoundFacts(
            record.round,
            record.accuracy,
            record.evaluation.finite,
            record.metrics.get("constant"),
            record.evaluation.negative_variances,
        )
        for record in run.journal
        if record.evaluation is not None
    )


def contradictions_of(run: Run) -> Iterator[str]:
    """What does not fit together in a run's folder: its rounds, result, predictions and models."""
    for one in verify_run(run.path).contradictions:
        yield f"{run.path.name}/{one}"


def guessing_of(run: Run | None, which: str) -> float | None:
    """What a run's predicted classes would score if they had nothing to do with the test samples."""
    said, truth = (None, None) if run is None else (run.predictions(which), run.test_labels)
    if not said or not truth:
        return None
    answers, classes = Counter(said), Counter(truth)
    return sum(number * classes[one] for one, number in answers.items()) / len(truth) ** 2


def curve_of(run: Run | None) -> tuple[float, ...]:
    """By evaluated epoch; of an objective with several generations, those of the last."""
    if run is None:
        return ()
    journal = run.journal
    first = len(journal) - run.experiment.rounds
    evaluations = [record.evaluation for record in journal[first:] if record.evaluation is not None]
    return tuple(evaluation.test["accuracy"] for evaluation in evaluations)


def terms_of(run: Run) -> dict[str, float]:
    """The mean size of each loss term."""
    return _terms(ResultRow("", figures_of(run)))


def _pooled(run: Run | None) -> bool:
    """Whether nothing really travelled: one client held all the data."""
    return run is not None and methods[run.experiment.method.name].pooled


def _model(run: Run | None) -> str | None:
    """Its architecture; nothing where its clients have several."""
    known = () if run is None else run.task.architectures
    return known[0] if len(known) == 1 else None


def _egress(run: Run | None) -> frozenset[str]:
    if run is None:
        return frozenset()
    chosen = run.experiment.method
    method = methods[chosen.name](
        chosen.settings, run.task, run.experiment.training
    )  # some send less or more by settings
    return frozenset(line.kind for line in method.egress)
