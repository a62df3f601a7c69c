"""From evidence to verdicts. Nothing here reads files, draws, or knows where the numbers come from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fedstill.audit.all_findings import findings
from fedstill.audit.case import Case
from fedstill.audit.evidence import Evidence, Score
from fedstill.audit.evidence_lookup import Book
from fedstill.audit.objectives import objective_verdict
from fedstill.audit.outlying_seeds import outlying_seeds
from fedstill.audit.pairs import pair_verdict
from fedstill.audit.sample_counts import deduced_samples
from fedstill.audit.summary import summary
from fedstill.audit.teacher_verdicts import teacher_verdict
from fedstill.audit.verdicts import Audit
from fedstill.core.errors import InputError

DELTA = 0.05
TEST_SAMPLES = "test samples"  # of the settings: a number that nobody gave


def judge(evidence: Evidence, delta: float = DELTA) -> Audit:
    """The audit of this evidence; `delta` is the difference in accuracy, as a share, that is of no account."""
    if not 0 < delta < 1:
        raise InputError(f"the threshold must lie between 0 and 100 points, and not be {100 * delta:g}")
    if not evidence.teachers and not evidence.students:
        raise InputError(f"there is nothing to audit in {evidence.name}: no teacher and no student")
    refuse_damaged(evidence)
    evidence = _with_test_size(evidence)
    book = Book(evidence)
    pairs = tuple(pair_verdict(book, pair, delta) for pair in book.pairs)
    outlying = tuple(outlying_seeds(book, delta))
    case = Case(
        book=book,
        delta=delta,
        teachers=tuple(teacher_verdict(book, name, delta) for name in book.teachers),
        pairs=pairs,
        objectives=tuple(objective_verdict(book, name, pairs, delta, outlying) for name in book.objectives),
        outlying=outlying,
    )
    found = findings(case)
    return Audit(
        evidence=evidence,
        delta=delta,
        chance=book.chance,
        teachers=case.teachers,
        pairs=case.pairs,
        objectives=case.objectives,
        findings=found,
        summary=summary(case, found),
    )


def _with_test_size(evidence: Evidence) -> Evidence:
    """The same with the number of test samples, where nobody gave it and the accuracies show it."""
    book = Book(evidence)
    found = 0 if book.samples else deduced_samples([*book.every_score(), *evidence.alone.values()])
    if not found:
        return evidence
    told = f"{found:,} (deduced: all accuracies are whole numbers of so many)"
    return replace(evidence, test_size=found, settings={**evidence.settings, TEST_SAMPLES: told})


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
