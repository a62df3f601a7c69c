"""The check-up: what is right and wrong with an installation, for `fedstill doctor`.

Nothing on disk is changed, but that numba makes its cache folder, empty, where there is none.
"""

from __future__ import annotations

from pathlib import Path

from fedstill.cli.doctor.data_sets import look_at_data
from fedstill.cli.doctor.disk import look_at_disk
from fedstill.cli.doctor.finding import Finding, State
from fedstill.cli.doctor.kernel_check import look_at_kernels
from fedstill.cli.doctor.optional_packages import look_at_extras
from fedstill.cli.doctor.thread_check import look_at_threads
from fedstill.cli.doctor.versions import look_at_plugins, look_at_versions

__all__ = ["Finding", "State", "check_up"]


def check_up(out: Path, data_root: Path | None = None) -> list[Finding]:
    """Everything there is to say, topic by topic; `out` is the folder that holds the runs, or would."""
    return [
        *look_at_versions(),
        *look_at_plugins(),
        *look_at_threads(),
        *look_at_kernels(),
        *look_at_data(data_root),
        *look_at_disk(out),
        *look_at_extras(),
    ]
