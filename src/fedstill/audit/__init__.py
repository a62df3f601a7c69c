"""The audit: is a student's accuracy really its teacher's?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedstill.core.lazy import lazily

if TYPE_CHECKING:
    from fedstill.audit.evidence import Evidence, RoundFacts, Score, Student, Teacher
    from fedstill.audit.evidence_table import read_table
    from fedstill.audit.judge_source import audit
    from fedstill.audit.verdict_rules import DELTA, judge
    from fedstill.audit.verdicts import Audit

__all__ = [
    "DELTA",
    "Audit",
    "Evidence",
    "RoundFacts",
    "Score",
    "Student",
    "Teacher",
    "audit",
    "judge",
    "read_table",
]

__getattr__ = lazily(
    __name__,
    {
        "fedstill.audit.evidence": ["Evidence", "RoundFacts", "Score", "Student", "Teacher"],
        "fedstill.audit.evidence_table": ["read_table"],
        "fedstill.audit.judge_source": ["audit"],
        "fedstill.audit.verdict_rules": ["DELTA", "judge"],
        "fedstill.audit.verdicts": ["Audit"],
    },
)
