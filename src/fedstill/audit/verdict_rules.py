"""From evidence to verdicts. Nothing here reads files, draws, or knows where the numbers come from."""

from __future__ import annotations

from fedstill.audit.all_findings import findings
from fedstill.audit.case import Case
from fedstill.audit.damage import refuse_damaged
from fedstill.audit.evidence import Evidence
from fedstill.audit.evidence_lookup import Book
from fedstill.audit.objectives import objective_verdict
from fedstill.audit.pairs import pair_verdict
from fedstill.audit.summary import summary
from fedstill.audit.teacher_verdicts import teacher_verdict
from fedstill.audit.verdicts import Audit
from fedstill.core.errors import InputError

DELTA = 0.05


def judge(evidence: Evidence, delta: float = DELTA) -> Audit:
    """The audit of this evidence; `delta` is the difference in accuracy, as a share, that is of no account."""
    if not 0 < delta < 1:
        raise InputError(f"the threshold must lie between 0 and 100 points, and not be {100 * delta:g}")
    if not evidence.teachers and not evidence.students:
        raise InputError(f"there is nothing to audit in {evidence.name}: no teacher and no student")
    refuse_damaged(evidence)
    book = Book(evidence)
    pairs = tuple(pair_verdict(book, pair, delta) for pair in book.pairs)
    case = Case(
        book=book,
        delta=delta,
        teachers=tuple(teacher_verdict(book, name, delta) for name in book.teachers),
        pairs=pairs,
        objectives=tuple(objective_verdict(book, name, pairs, delta) for name in book.objectives),
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
