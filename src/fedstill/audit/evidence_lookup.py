"""The evidence as an audit looks things up: by teacher, by pair, by objective, over seeds."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from statistics import fmean, variance

from fedstill.audit.evidence import Evidence, Score, Seed, Student, Teacher
from fedstill.audit.sample_counts import least_samples

Pair = tuple[str, str]  # teacher, objective
TINY = 1e-6  # study files round accuracies to so much


class Book:
    """An index of the evidence; the order of everything is the order in which it is first met."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.teachers: dict[str, dict[Seed, Teacher]] = {}
        for teacher in evidence.teachers:
            self.teachers.setdefault(teacher.name, {}).setdefault(teacher.seed, teacher)
        self.labelled = _by_pair(student for student in evidence.students if not student.free)
        self.free = _by_pair(student for student in evidence.students if student.free)

    @cached_property
    def objectives(self) -> list[str]:
        return list(dict.fromkeys(student.objective for student in self.evidence.students))

    @cached_property
    def pairs(self) -> list[Pair]:
        """Every teacher with every objective that it was distilled by, teacher by teacher."""
        met = self.labelled | self.free
        names = dict.fromkeys([*self.teachers, *(teacher for teacher, _ in met)])
        return [
            (teacher, objective) for teacher in names for objective in self.objectives if (teacher, objective) in met
        ]

    @cached_property
    def chance(self) -> float | None:
        """What always answering the most frequent class of the test set would get right."""
        return max(self.class_shares, default=None)

    @cached_property
    def class_shares(self) -> tuple[float, ...]:
        total = sum(self.evidence.class_counts)
        return tuple(count / total for count in self.evidence.class_counts)

    @cached_property
    def samples(self) -> int:
        """How many test samples there are; 0: not known."""
        counts = self.evidence.class_counts
        if self.evidence.test_size:
            return self.evidence.test_size
        if max(counts, default=0) > 1:  # one of each says that classes are equal, and nothing of their size
            return sum(counts)
        return max((len(score.correct) for score in self.every_score()), default=0)

    @cached_property
    def least_samples(self) -> int:
        """The same; where it is not known, the least that the printed accuracies allow."""
        return self.samples or least_samples(self.every_score())

    def every_score(self) -> Iterable[Score]:
        """Those of teachers and students; labels-only students aside."""
        everyone: list[Teacher | Student] = [*self.evidence.teachers, *self.evidence.students]
        return (one.score for one in everyone if one.score is not None)

    def weight(self, objective: str) -> float | None:
        """How much the objective weighs the labels, as its labelled students say."""
        weights = (
            student.hard_label_weight
            for (_, name), students in self.labelled.items()
            if name == objective
            for student in students.values()
        )
        return next((weight for weight in weights if weight is not None), None)

    def teacher_scores(self, teacher: str) -> dict[Seed, Score]:
        return {seed: one.score for seed, one in self.teachers.get(teacher, {}).items() if one.score is not None}

    def teacher_mean(self, teacher: str) -> float | None:
        """Over its seeds; None where it is not known, or where a seed has no finite model."""
        scores = self.teacher_scores(teacher)
        return mean(scores.values()) if len(scores) == len(self.teachers.get(teacher, {})) else None

    def labelled_scores(self, pair: Pair) -> dict[Seed, Score]:
        return _scored(self.labelled.get(pair, {}))

    def free_scores(self, pair: Pair) -> dict[Seed, Score]:
        """The label-free students; of an objective that gives the labels no weight, the students are their own."""
        found = _scored(self.free.get(pair, {}))
        if found or not self.own_control(pair):
            return found
        return self.labelled_scores(pair)

    @cached_property
    def variances_of_two(self) -> dict[Pair, float]:
        """Of pairs with two seeds, the variance over seeds of what labels add."""
        found = {}
        for pair in self.pairs:
            labelled, free = self.labelled_scores(pair), self.free_scores(pair)
            gaps = [labelled[seed].accuracy - free[seed].accuracy for seed in labelled if seed in free]
            if len(gaps) == 2 and not self.own_control(pair):
                found[pair] = variance(gaps)
        return found

    def own_control(self, pair: Pair) -> bool:
        return not self.free.get(pair) and self.weight(pair[1]) == 0

    def alone(self, pair: Pair) -> float | None:
        """The mean labels-only student that a pair's labelled students are held against, seed by seed.

        Each may have one of its own. Where no seed has one, all labels-only students that exist are used.
        """
        return mean(self.alone_scores(pair).values() or self.evidence.alone.values())

    def alone_scores(self, pair: Pair) -> dict[Seed, Score]:
        """The labels-only students of the seeds that have a labelled student."""
        shared = self.evidence.alone
        students = [one for one in self.labelled.get(pair, {}).values() if one.score is not None]
        found = {one.seed: one.alone if one.alone is not None else shared.get(one.seed) for one in students}
        return {seed: score for seed, score in found.items() if score is not None}

    def equals_a_class(self, scores: Iterable[Score]) -> bool:
        """Whether accuracies are, in every seed, what always answering one class would get: not always the same."""
        tolerance = max(self.evidence.precision, TINY) + 1e-9
        values = [score.accuracy for score in scores]
        return bool(values) and all(
            any(abs(value - share) <= tolerance for share in set(self.class_shares)) for value in values
        )


def mean(scores: Iterable[Score]) -> float | None:
    values = [score.accuracy for score in scores]
    return fmean(values) if values else None


def _by_pair(students: Iterable[Student]) -> dict[Pair, dict[Seed, Student]]:
    found: dict[Pair, dict[Seed, Student]] = {}
    for student in students:
        seeds = found.setdefault((student.teacher, student.objective), {})
        # Both label-free controls are one computation: whichever has a score will do.
        if student.seed not in seeds or seeds[student.seed].score is None:
            seeds[student.seed] = student
    return found


def _scored(students: dict[Seed, Student]) -> dict[Seed, Score]:
    return {seed: student.score for seed, student in students.items() if student.score is not None}
