"""The status of a run, from its folder: finished, being worked on, failed, or not started.

Several processes may work on one folder of runs. They agree through the runs' own locks and results, so that nothing
else has to be kept consistent; only failures, of which a run's folder says nothing, have a place of their own:
`failures/<identity>.json` in the folder of runs.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from fedstill.core.errors import BusyError, InputError
from fedstill.core.files import read_json, write_json
from fedstill.core.kinds import state_of
from fedstill.core.message import digest
from fedstill.runtime.result import Run
from fedstill.runtime.run_folder import RunFolder, folder_of
from fedstill.studies.jobs import JobOutcome
from fedstill.studies.study_plan import Job

_log = logging.getLogger(__name__)

FAILURES = "failures"


class RunStatus:
    """The folder of runs, seen job by job."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self._digests: dict[tuple[Path, str], str] = {}

    def identity(self, job: Job) -> str | None:
        """What the run's folder is called by; None while its teacher is not there."""
        if job.teacher is None:
            return job.key
        teacher = self.run(job.teacher)
        return None if teacher is None else job.identity(self._digest(teacher, job.which))

    def run(self, job: Job) -> Run | None:
        """The finished run of that job."""
        path = folder_of(self.identity(job), self.out)
        if path is None or RunFolder(path).result() is None:
            return None
        return Run(path)

    def busy(self, job: Job) -> bool:
        """Whether some process is working on it; asking takes its lock for an instant."""
        path = folder_of(self.identity(job), self.out)
        if path is None:
            return False
        try:
            RunFolder(path).lock().release()
        except BusyError:
            return True
        return False

    def failure(self, job: Job) -> JobOutcome | None:
        """How it failed, or was refused, before; also where that happened to its teacher."""
        identity = self.identity(job)
        if identity is None:
            assert job.teacher is not None
            before = self.failure(job.teacher)
            return None if before is None else JobOutcome("failed", f"its teacher failed: {before.error}")
        record = read_json(self.out / FAILURES / f"{identity}.json")
        if record is None:
            return None
        return JobOutcome("refused" if record.get("refused") else "failed", str(record.get("error")))

    def record_failure(self, job: Job, outcome: JobOutcome) -> None:
        identity = self.identity(job)
        if identity is None or self.failure(job) == JobOutcome(outcome.state, outcome.error):
            return  # its teacher's failure is written down, or another process has recorded this one already
        folder = self.out / FAILURES
        folder.mkdir(parents=True, exist_ok=True)
        content: dict[str, Any] = {
            "error": outcome.error,
            "refused": outcome.state == "refused",
            "cell": job.cell.labels,
            "experiment": job.experiment.model_dump(mode="json"),
            "details": outcome.details.splitlines(),
        }
        write_json(folder / f"{identity}.json", content)

    def forget_failure(self, job: Job) -> None:
        (self.out / FAILURES / f"{self.identity(job)}.json").unlink(missing_ok=True)

    def _digest(self, teacher: Run, which: str) -> str:
        """Of the teacher's weights; where it has no such model, a word that is no digest."""
        if (teacher.path, which) not in self._digests:
            try:
                found = digest(state_of(teacher.built(which)))
            except InputError:
                _log.info("the teacher %s has no model %r", teacher.path, which, exc_info=True)
                found = "none"
            self._digests[teacher.path, which] = found
        return self._digests[teacher.path, which]
