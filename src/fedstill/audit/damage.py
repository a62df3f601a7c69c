"""Evidence that cannot be: refused in one sentence before anything is computed from it."""

from __future__ import annotations

from collections.abc import Iterator

from fedstill.audit.evidence import Evidence, Score
from fedstill.core.errors import InputError


def refuse_damaged(evidence: Evidence) -> None:
    """Accuracies are shares, a test set has samples, and a student has one score; a file may say otherwise."""
    _refuse_mixed(evidence)
    for what, value in _accuracies(evidence):
        if not 0 <= value <= 1:  # which NaN is not, either
            raise InputError(f"{evidence.name} is damaged: {what} is {value:g}, and not from 0 to 1")
    counts = evidence.class_counts
    if any(count < 0 for count in counts):
        raise InputError(f"{evidence.name} is damaged: a class has {min(counts)} test samples")
    if counts and not sum(counts):
        raise InputError(f"{evidence.name} is damaged: by its class counts the test set is empty")


def _refuse_mixed(evidence: Evidence) -> None:
    """Two scores of what has one name would be two models; an audit of either alone is not one of both."""
    known: dict[tuple[str, str, str, bool], Score] = {}
    for student in evidence.students:
        if student.score is None:
            continue
        first = known.setdefault((student.teacher, student.objective, student.seed, student.free), student.score)
        if first != student.score:
            raise InputError(
                f"{evidence.name} has two students of {student.teacher} with {student.objective}, seed {student.seed},"
                f" {'without' if student.free else 'with'} labels, that differ: give them two names"
            )


def _accuracies(evidence: Evidence) -> Iterator[tuple[str, float]]:
    for teacher in evidence.teachers:
        who = f"teacher {teacher.name}, seed {teacher.seed},"
        if teacher.score is not None:
            yield f"the accuracy of {who}", teacher.score.accuracy
        if teacher.recalibrated is not None:
            yield f"the accuracy with BatchNorm measured anew of {who}", teacher.recalibrated
        yield from ((f"the masking ceiling by {name} of {who}", value) for name, value in teacher.ceilings.items())
    for student in evidence.students:
        who = f"{student.teacher} with {student.objective}, seed {student.seed},"
        if student.score is not None:
            yield f"the accuracy of {who}", student.score.accuracy
        if student.alone is not None:
            yield f"the accuracy of the labels-only student beside {who}", student.alone.accuracy
    for seed, score in evidence.alone.items():
        yield f"the accuracy of the labels-only student of seed {seed}", score.accuracy
