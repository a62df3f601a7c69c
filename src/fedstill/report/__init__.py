"""What a person reads: one self-contained page about some runs."""

from fedstill.report.command import command
from fedstill.report.page import write_report
from fedstill.report.shards import Table, partition_tables

__all__ = ["Table", "command", "partition_tables", "write_report"]
