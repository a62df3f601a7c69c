"""What has been done about a run, as its folder tells: finished, being worked on, failed, or nothing yet.

Several processes may work on one folder of runs. They agree through the runs' own locks and results, so that nothing
else has to be kept consistent; only failures, of which a run's folder says nothing, have a place of their own:
`failures/<identity>.json` in the folder of runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedstill.core.errors import InputError
from fedstill.federation.folder import RunFolder, read_json, write_json
from fedstill.federation.result import Run
from fedstill.studies.agenda import Job

FAILURES = "failures"


class Ledger:
    """The folder of runs, seen by identity."""

    def __init__(self, out: Path) -> None:
        self.out = out

    def run(self, identity: str) -> Run | None:
        """The finished run of that identity."""
        path = self._folder(identity)
        if path is None or RunFolder(path).result() is None:
            return None
        return Run(path)

    def busy(self, identity: str) -> bool:
        """Whether some process is working on it; asking takes its lock for an instant."""
        path = self._folder(identity)
        if path is None:
            return False
        try:
            RunFolder(path).lock().release()
        except InputError:
            return True
        return False

    def failure(self, identity: str) -> str | None:
        """The sentence of an earlier failure."""
        record = read_json(self.out / FAILURES / f"{identity}.json")
        return None if record is None else str(record.get("error"))

    def record_failure(self, job: Job, error: str, details: str = "") -> None:
        folder = self.out / FAILURES
        folder.mkdir(parents=True, exist_ok=True)
        content: dict[str, Any] = {
            "error": error,
            "cell": job.cell.labels,
            "experiment": job.cell.experiment.model_dump(mode="json"),
            "details": details.splitlines(),
        }
        write_json(folder / f"{job.identity}.json", content)

    def forget_failure(self, identity: str) -> None:
        (self.out / FAILURES / f"{identity}.json").unlink(missing_ok=True)

    def _folder(self, identity: str) -> Path | None:
        return next((path.parent for path in self.out.glob(f"*-{identity}/config.json")), None)
