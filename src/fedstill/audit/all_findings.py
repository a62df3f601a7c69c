"""Everything that a reader should know beyond the words, the serious things first."""

from __future__ import annotations

from fedstill.audit.case import Case
from fedstill.audit.copy_findings import copy_findings
from fedstill.audit.correlation_findings import correlation_findings
from fedstill.audit.gain_findings import gain_findings
from fedstill.audit.plausibility_findings import plausibility_findings
from fedstill.audit.ranking_findings import ranking_findings
from fedstill.audit.seed_findings import seed_findings
from fedstill.audit.student_findings import student_findings
from fedstill.audit.teacher_findings import teacher_findings
from fedstill.audit.verdicts import SEVERITIES, Finding


def findings(case: Case) -> tuple[Finding, ...]:
    found = [
        *plausibility_findings(case),
        *copy_findings(case),
        *student_findings(case),
        *gain_findings(case),
        *teacher_findings(case),
        *seed_findings(case),
        *correlation_findings(case),
        *ranking_findings(case),
    ]
    return tuple(sorted(found, key=lambda one: SEVERITIES.index(one.severity)))
