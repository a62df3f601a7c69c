"""What a person reads: one self-contained page about some runs, or about a study and its audit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedstill.core.lazy import lazily

if TYPE_CHECKING:
    from fedstill.report.runs import write_report
    from fedstill.report.shards import Holdings, partition_tables
    from fedstill.report.study.audit_page import write_audit_report
    from fedstill.report.study.extras import Cloud, Cost, Extras, make_cloud
    from fedstill.report.writer import checked_page, report, write_study

__all__ = [
    "Cloud",
    "Cost",
    "Extras",
    "Holdings",
    "checked_page",
    "make_cloud",
    "partition_tables",
    "report",
    "write_audit_report",
    "write_report",
    "write_study",
]

__getattr__ = lazily(
    __name__,
    {
        "fedstill.report.runs": ["write_report"],
        "fedstill.report.shards": ["Holdings", "partition_tables"],
        "fedstill.report.study.extras": ["Cloud", "Cost", "Extras", "make_cloud"],
        "fedstill.report.study.audit_page": ["write_audit_report"],
        "fedstill.report.writer": ["checked_page", "report", "write_study"],
    },
)
