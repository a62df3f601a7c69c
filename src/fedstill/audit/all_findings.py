"""Everything that a reader should know beyond the words, the serious things first."""

from __future__ import annotations

from fedstill.audit.case import Case
from fedstill.audit.ranking_findings import ranking_findings
from fedstill.audit.student_findings import student_findings, unstable_findings
from fedstill.audit.teacher_findings import teacher_findings
from fedstill.audit.verdicts import SEVERITIES, Finding


def findings(case: Case) -> tuple[Finding, ...]:
    found = [*student_findings(case), *teacher_findings(case), *unstable_findings(case), *ranking_findings(case)]
    return tuple(sorted(found, key=lambda one: SEVERITIES.index(one.severity)))
