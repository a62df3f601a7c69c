"""An audit arranged for drawing: who comes first, and what each seed said."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, stdev

from fedstill.audit.evidence import Seed, Student, Teacher
from fedstill.audit.verdicts import Audit, ObjectiveVerdict, PairVerdict, TeacherVerdict
from fedstill.report.facts import number

Scores = dict[Seed, float]


class View:
    """Teachers from the best to the worst, objectives with labels before those without, and quick ways to scores."""

    def __init__(self, audit: Audit) -> None:
        self.audit = audit
        self.teacher = {verdict.teacher: verdict for verdict in sorted(audit.teachers, key=_by_accuracy)}
        self.objective = {verdict.objective: verdict for verdict in sorted(audit.objectives, key=_labels_first)}
        self.pairs: dict[tuple[str, str], PairVerdict] = {(pair.teacher, pair.objective): pair for pair in audit.pairs}
        # A table may name students of teachers that it says nothing else of.
        self.teachers = list(dict.fromkeys([*self.teacher, *(pair.teacher for pair in audit.pairs)]))
        evidence = audit.evidence
        self.trained: dict[str, list[Teacher]] = defaultdict(list)
        for teacher in evidence.teachers:
            self.trained[teacher.name].append(teacher)
        self.taught: dict[tuple[str, str, bool], list[Student]] = defaultdict(list)
        for student in evidence.students:
            self.taught[student.teacher, student.objective, student.free].append(student)
        seeds = {one.seed for one in evidence.teachers} | {one.seed for one in evidence.students}
        self.seeds: list[Seed] = sorted(seeds | set(evidence.alone), key=_by_size)
        # Labels-only students by seed, if all students are held against the same ones; else there is no line to draw.
        self.alone_scores = self._labels_only()
        self.alone = mean(self.alone_scores.values())

    @property
    def ranked(self) -> list[PairVerdict]:
        """Pairs by the accuracy of the labelled student; those without one are left out."""
        scored = [pair for pair in self.audit.pairs if pair.labelled is not None]
        return sorted(scored, key=lambda pair: (-(pair.labelled or 0.0), pair.teacher, pair.objective))

    @property
    def worst(self) -> TeacherVerdict | None:
        """The teacher least worth learning from, of those that somebody learned from and that have an accuracy."""
        taught = {pair.teacher for pair in self.ranked}
        known = [verdict for verdict in self.teacher.values() if verdict.accuracy is not None]
        return next((verdict for verdict in reversed(known) if verdict.teacher in taught), None)

    def accuracy(self, teacher: str) -> float | None:
        verdict = self.teacher.get(teacher)
        return verdict.accuracy if verdict else None

    def teacher_scores(self, teacher: str) -> Scores:
        return _scores(self.trained[teacher])

    def student_scores(self, teacher: str, objective: str, free: bool) -> Scores:
        return _scores(self.taught[teacher, objective, free])

    def held_against(self, teacher: str, objective: str) -> Scores:
        """The labels-only students that go with these students: their own, or those that all share."""
        shared = self.audit.evidence.alone
        found = {one.seed: one.alone or shared.get(one.seed) for one in self.taught[teacher, objective, False]}
        return {seed: score.accuracy for seed, score in found.items() if score is not None}

    def teacher_model(self, teacher: str) -> str | None:
        """The architecture of a teacher, where all its seeds have one."""
        return _only(one.model for one in self.trained[teacher])

    def student_model(self, pair: PairVerdict) -> str | None:
        """The architecture of a pair's students, where all of them have one."""
        return _only(one.model for free in (False, True) for one in self.taught[pair.teacher, pair.objective, free])

    def _labels_only(self) -> Scores:
        everyone = [{seed: score.accuracy for seed, score in self.audit.evidence.alone.items()}]
        everyone += [self.held_against(*pair) for pair in self.pairs]
        found: Scores = {}
        for scores in everyone:
            for seed, accuracy in scores.items():
                if found.setdefault(seed, accuracy) != accuracy:
                    return {}
        return found

    def missing(self, teacher: str, objective: str, free: bool) -> str:
        """Why there is no student, as far as it is known."""
        said = [student.missing for student in self.taught[teacher, objective, free] if student.missing]
        return said[0] if said else "not run"


def mean(values: Iterable[float | None]) -> float | None:
    """Of the values that are there."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def spread(values: Iterable[float]) -> float | None:
    """The standard deviation of a sample; of one value nothing can be said.

    >>> spread([0.5]), spread([0.25, 0.75])
    (None, 0.3535533905932738)
    """
    known = list(values)
    return stdev(known) if len(known) > 1 else None


def mean_curve(curves: Sequence[Sequence[float]]) -> list[float]:
    """The mean of several curves, as far as all of them go.

    >>> mean_curve([[0.0, 0.5, 1.0], [1.0, 0.5]])
    [0.5, 0.5]
    """
    return [fmean(values) for values in zip(*(curve for curve in curves if curve), strict=False)]


def deviation(values: Iterable[float | None]) -> float:
    """The standard deviation of those that are known; 0 of one.

    >>> round(deviation([0.5, None, 0.7]), 4), deviation([0.5])
    (0.1414, 0.0)
    """
    known = [value for value in values if value is not None]
    return stdev(known) if len(known) > 1 else 0.0


def folders(ones: Sequence[Teacher] | Sequence[Student]) -> dict[Seed, Path]:
    """By seed, the folders of runs that are here; of several for one seed, the first."""
    found: dict[Seed, Path] = {}
    for one in ones:
        if one.score is not None and one.score.run is not None:
            found.setdefault(one.seed, one.score.run)
    return found


def _only(names: Iterable[str | None]) -> str | None:
    found = set(names)
    return found.pop() if len(found) == 1 else None


def _scores(ones: Sequence[Teacher] | Sequence[Student]) -> Scores:
    """Of several for one seed, the first counts, as it does for the audit."""
    found: Scores = {}
    for one in ones:
        accuracy = None if one.score is None else number(one.score.accuracy)
        if accuracy is not None:
            found.setdefault(one.seed, accuracy)
    return found


def _by_accuracy(verdict: TeacherVerdict) -> tuple[bool, float, str]:
    return verdict.accuracy is None, -(verdict.accuracy or 0.0), verdict.teacher


def _labels_first(verdict: ObjectiveVerdict) -> bool:
    """Objectives keep their order otherwise."""
    return not verdict.hard_label_weight


def _by_size(seed: Seed) -> tuple[bool, float, str]:
    """Seeds are names, but most of them are numbers."""
    try:
        return False, float(seed), seed
    except ValueError:
        return True, 0.0, seed
