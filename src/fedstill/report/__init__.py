"""What a person reads: one self-contained page about some runs."""

from fedstill.report.command import command
from fedstill.report.page import write_report
from fedstill.report.shards import partition_tables

__all__ = ["command", "partition_tables", "write_report"]
