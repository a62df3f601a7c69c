"""An audit as notebooks show it: what was found, teacher by teacher, and what a reader should know."""

from __future__ import annotations

from typing import TYPE_CHECKING

from markupsafe import Markup

from fedstill.core.notebook import html_table, panel, paragraph
from fedstill.core.numbers import share
from fedstill.core.table import text_table

if TYPE_CHECKING:
    from fedstill.audit.verdicts import Audit


def audit_panel(audit: Audit) -> str:
    teachers = [(one.teacher, one.word, share(one.accuracy, 1)) for one in audit.teachers]
    objectives = [(one.objective, one.pattern, share(one.mean, 1)) for one in audit.objectives]
    findings = [(one.severity, one.title, one.advice) for one in audit.findings]
    tables = [
        html_table(text_table("", header, rows, right))
        for header, rows, right in (
            (("Teacher", "Verdict", "Accuracy"), teachers, (2,)),
            (("Objective", "Pattern", "Students"), objectives, (2,)),
            (("Finding", "What", "Advice"), findings, ()),
        )
        if rows
    ]
    return panel("Audit", {}, Markup().join(map(paragraph, audit.summary)), *tables)
