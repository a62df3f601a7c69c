"""Evidence from a study's results; where the runs lie beside them, with their journals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedstill.audit.evidence import Evidence, RoundFacts, Score, Student, Teacher
from fedstill.config.experiment import choose
from fedstill.core.errors import InputError
from fedstill.distillation import objectives
from fedstill.federation.result import Run
from fedstill.methods import methods
from fedstill.studies.grid import SEED
from fedstill.studies.results import Labels, Results, Row, figures_of, unpacked
from fedstill.studies.students import LABELS, LABELS_ONLY, OBJECTIVE

NOT_ASSESSABLE = "not assessable"
_FIGURE = {"last": "accuracy", "best": "best", "selected": "selected"}


def evidence_from(results: Results, runs: Path | None = None) -> Evidence:
    """What a study in two stages says; `runs` is the folder of its runs, if it is there."""
    if results.students is None:
        raise InputError(
            f"the study {results.study} has no students, so there is nothing to audit: its recipe needs a section"
            " `students`"
        )
    return _Reader(results, results.students, runs).evidence()


@dataclass(frozen=True)
class _Reader:
    results: Results
    students: Results
    runs: Path | None

    @cached_property
    def which(self) -> str:
        """Of whose models: those that taught, and of their students the same kind."""
        return str(self.students.source.get("which", "last"))

    @cached_property
    def names(self) -> dict[Labels, str]:
        """What a teacher is called: whatever tells it from the others, its seed aside."""
        axes = [axis for axis, values in self.results.axes.items() if axis != SEED and len(values) > 1]
        if not axes:
            axes = [axis for axis in self.results.axes if axis != SEED][:1]
        return {
            cell: " ".join(labels[axis] for axis in axes) or self.results.study
            for cell in [*self.results.runs, *self.results.failures, *self.results.refused]
            for labels in [dict(zip(self.results.axes, cell, strict=True))]
        }

    def evidence(self) -> Evidence:
        results = self.results
        counts = [*results.test_counts.values()]
        return Evidence(
            name=results.study,
            about=results.about,
            teachers=tuple(self._teacher(cell, row) for cell, row in results.runs.items() if self._teaches(cell)),
            students=tuple(self._students()),
            alone=self._alone(),
            class_counts=tuple(counts[0]) if len(counts) == 1 else (),
            commands=(results.command,) if results.command else (),
            settings=self._settings(),
        )

    def _teaches(self, cell: Labels) -> bool:
        everyone = [*self.students.runs, *self.students.failures, *self.students.refused]
        return any(student[: len(cell)] == cell for student in everyone)

    def _teacher(self, cell: Labels, row: Row) -> Teacher:
        run, figures = self._run(row), row.figures
        finite = self.which != "last" or figures.get("finite", 1) == 1
        up = figures.get("bytes_up")
        return Teacher(
            name=self.names[cell],
            seed=self._seed(self.results, cell),
            score=_score(row, self.which) if finite else None,
            which=self.which,
            constant=figures.get("constant" if self.which == "last" else "best_constant"),
            accuracies=_accuracies(row),
            recalibrated=self._of_students(cell, "teacher.0.recalibrated"),
            rounds=_rounds(run),
            ceilings=self._ceilings(cell),
            traffic=None if up is None or _pooled(run) else up / 2**20,
            egress=_egress(run),
            buffers=None if run is None else getattr(run.experiment.method.settings, "buffers", None),
        )

    def _students(self) -> list[Student]:
        found = []
        told = {**self.students.failures, **self.students.refused}
        for cell in [*self.students.runs, *told]:
            labels = dict(zip(self.students.axes, cell, strict=True))
            if labels.get(OBJECTIVE) == LABELS_ONLY:
                continue
            row = self.students.runs.get(cell)
            teacher = cell[: len(self.results.axes)]
            why = told.get(cell, "")
            found.append(
                Student(
                    teacher=self.names.get(teacher, " ".join(teacher)),
                    objective=self._objective(labels),
                    seed=self._seed(self.students, cell),
                    free=labels.get(LABELS, "use") != "use",
                    score=None if row is None else _score(row, self.which),
                    missing=NOT_ASSESSABLE if NOT_ASSESSABLE in why else why,
                    hard_label_weight=self._weight(labels),
                    terms={} if row is None else _terms(row),
                    curve=() if row is None else curve_of(self._run(row)),
                    accuracies={} if row is None else _accuracies(row),
                )
            )
        return found

    def _alone(self) -> dict[str, Score]:
        found: dict[str, Score] = {}
        for cell, row in self.students.runs.items():
            labels = dict(zip(self.students.axes, cell, strict=True))
            if labels.get(OBJECTIVE) == LABELS_ONLY and (score := _score(row, self.which)) is not None:
                found.setdefault(self._seed(self.students, cell), score)
        return found

    def _objective(self, labels: Mapping[str, str]) -> str:
        """The objective, with whatever else is varied among students."""
        varied = [
            axis
            for axis, values in self.students.axes.items()
            if axis not in (*self.results.axes, OBJECTIVE, LABELS) and len(values) > 1
        ]
        return " ".join([labels.get(OBJECTIVE, "vanilla"), *(f"{axis} {labels[axis]}" for axis in varied)])

    def _weight(self, labels: Mapping[str, str]) -> float | None:
        meaning: Any = self.students.axes.get(OBJECTIVE, {}).get(labels.get(OBJECTIVE, ""), labels.get(OBJECTIVE))
        if isinstance(meaning, Mapping):
            meaning = {key: value for key, value in meaning.items() if key != "label"}
            meaning = meaning.get(OBJECTIVE, meaning)
        try:
            chosen = choose(OBJECTIVE, meaning)
        except InputError:
            return None  # of a plugin that is not loaded
        return objectives[chosen.name](chosen.settings).hard_label_weight

    def _of_students(self, teacher: Labels, figure: str) -> float | None:
        values = (
            row.figures.get(figure) for cell, row in self.students.runs.items() if cell[: len(teacher)] == teacher
        )
        return next((value for value in values if value is not None), None)

    def _ceilings(self, teacher: Labels) -> dict[str, float]:
        return {
            self._objective(dict(zip(self.students.axes, cell, strict=True))): ceiling
            for cell, row in self.students.runs.items()
            if cell[: len(teacher)] == teacher and (ceiling := row.figures.get("ceiling")) is not None
        }

    def _settings(self) -> dict[str, str]:
        stages = {"teachers": self.results, "students": self.students}
        told = {"which models": self.which}
        for stage, results in stages.items():
            experiment = results.source.get("experiment", {})
            for key in ("data", "model", "points", "clients", "rounds", "partition"):
                if key in experiment and key not in results.axes:
                    told[f"{stage}: {key}"] = str(experiment[key])
        return told

    def _seed(self, stage: Results, cell: Labels) -> str:
        return dict(zip(stage.axes, cell, strict=True)).get(SEED, "0")

    def _run(self, row: Row) -> Run | None:
        if self.runs is None:
            return None
        path = next((found.parent for found in self.runs.glob(f"*-{row.identity}/config.json")), None)
        return None if path is None else Run(path)


def _score(row: Row, which: str) -> Score | None:
    accuracy = row.figures.get(_FIGURE[which])
    if accuracy is None:
        return None
    return Score(accuracy, unpacked(row.correct[which]) if which in row.correct else ())


def _accuracies(row: Row) -> dict[str, float]:
    return {which: value for which, name in _FIGURE.items() if (value := row.figures.get(name)) is not None}


def _terms(row: Row) -> dict[str, float]:
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
            record["round"] + 1,
            record["metrics"].get("accuracy"),
            record["finite"],
            record["metrics"].get("constant"),
            record.get("negative_variances", 0.0),
        )
        for record in run.journal
        if "metrics" in record
    )


def curve_of(run: Run | None) -> tuple[float, ...]:
    """By epoch; of an objective with several generations, those of the last."""
    if run is None:
        return ()
    evaluated = [record["metrics"]["accuracy"] for record in run.journal if "metrics" in record]
    return tuple(evaluated[-run.experiment.rounds :])


def terms_of(run: Run) -> dict[str, float]:
    """The mean size of each loss term."""
    return _terms(Row("", figures_of(run)))


def _pooled(run: Run | None) -> bool:
    """Whether nothing really travelled: one client held all the data."""
    return run is not None and methods[run.experiment.method.name].pooled


def _egress(run: Run | None) -> frozenset[str]:
    if run is None:
        return frozenset()
    return frozenset(item.kind for item in methods[run.experiment.method.name].egress)
