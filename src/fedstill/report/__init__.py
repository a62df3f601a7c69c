"""What a person reads: one self-contained page about some runs, or about a study and its audit."""

from fedstill.core.rooms import make_callable
from fedstill.report.command import command
from fedstill.report.query_page import write_query_report
from fedstill.report.runs import write_report
from fedstill.report.shards import Holdings, partition_tables
from fedstill.report.study.extras import Cloud, Cost, Extras, make_cloud
from fedstill.report.study.page import write_audit_report
from fedstill.report.writing import checked_page, report, write_study

__all__ = [
    "Cloud",
    "Cost",
    "Extras",
    "Holdings",
    "checked_page",
    "command",
    "make_cloud",
    "partition_tables",
    "report",
    "write_audit_report",
    "write_query_report",
    "write_report",
    "write_study",
]

make_callable(__name__, report)
