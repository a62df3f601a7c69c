"""Runs in Weights & Biases: files on disk, unless the user has set another mode."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from time import monotonic, sleep, strftime
from typing import Any

from fedstill.core.files import writable_folder
from fedstill.tracking.tracker import Status, TrackedRun, Tracker
from fedstill.tracking.tracker_registry import package, trackers
from fedstill.tracking.wandb_files import histories

PROJECT = "fedstill"
FLUSHED = 30.0  # seconds within which a closed run's file should hold what was logged

_log = logging.getLogger(__name__)


@trackers.register("wandb")
class WeightsAndBiases(Tracker):
    """Runs in Weights & Biases: offline in OUT/wandb unless $WANDB_MODE is set; the project may be named."""

    requires = ("wandb",)

    def __init__(self, where: str = "") -> None:
        self.project = where
        self.runs: dict[str, Any] = {}
        self.logged: dict[str, int] = {}

    def prepare(self, out: Path) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        os.environ.setdefault("WANDB_SILENT", "true")
        self.wandb = package("wandb", "wandb")
        self.messages = package("wandb.proto.wandb_internal_pb2", "wandb")
        # What it looks up about the machine, the code and the process is not asked for.
        quiet = ("disable_git", "disable_code", "disable_job_creation", "x_disable_stats", "x_disable_meta")
        known = [name for name in quiet if hasattr(self.wandb.Settings(), name)]
        self.settings = self.wandb.Settings(silent=True, console="off", **dict.fromkeys(known, True))
        self.folder = writable_folder(Path(os.environ.get("WANDB_DIR", out)))
        self.mode = os.environ.get("WANDB_MODE", "offline")

    def open(self, run: TrackedRun) -> int:
        """Offline nothing is begun before there is something to add to what the files have."""
        kept = self._last_step(run)
        if self.mode == "offline":
            return kept
        before: int = self._started(run).step - 1
        return max(0, before, kept)

    def log(self, run: TrackedRun, step: int, metrics: Mapping[str, float]) -> None:
        self._started(run).log(dict(metrics), step=step, commit=True)
        self.logged[run.key] = step

    def save(self, run: TrackedRun, files: Mapping[str, Path]) -> None:
        kept = {path.name for file in self._files(_number(run)) for path in (file.parent / "files").iterdir()}
        for name, path in files.items():
            if name not in kept:
                self._started(run).save(str(path), base_path=str(path.parent), policy="now")

    def close(self, run: TrackedRun, status: Status) -> None:
        if (made := self.runs.pop(run.key, None)) is not None:
            made.summary["status"] = status
            made.finish(exit_code=0 if status == "finished" else 1)
            if self.mode == "offline":
                self._wait_for_files(run)

    def _started(self, run: TrackedRun) -> Any:
        """The run as the package has it: begun, or continued under its number."""
        if run.key not in self.runs:
            while (self.folder / "wandb" / f"offline-run-{strftime('%Y%m%d_%H%M%S')}-{_number(run)}").exists():
                sleep(0.1)  # folders are named by the second: another one would be written over
            self.runs[run.key] = self.wandb.init(
                project=self.project or os.environ.get("WANDB_PROJECT", PROJECT),
                id=_number(run),
                name=" ".join(run.labels.values()) or run.name,
                group=run.group or None,
                job_type=run.kind,
                config={**run.settings, "fedstill_run": run.name},
                dir=str(self.folder),
                mode=self.mode,
                resume="allow",
                reinit="create_new",
                settings=self.settings,
            )
        return self.runs[run.key]

    def _last_step(self, run: TrackedRun) -> int:
        files = self._files(_number(run))
        return max((int(step["_step"]) for file in files for step in histories(file, self.messages)), default=0)

    def _wait_for_files(self, run: TrackedRun) -> None:
        """The package's own process writes the file, and may do so after `finish` has returned.

        A run that is continued at once would log the missing steps a second time.
        """
        last, end = self.logged.pop(run.key, 0), monotonic() + FLUSHED
        while self._last_step(run) < last:
            if monotonic() > end:
                _log.warning("Weights & Biases has not written step %d of %s in %.0f s", last, run.name, FLUSHED)
                return
            sleep(0.02)

    def _files(self, number: str) -> list[Path]:
        return sorted((self.folder / "wandb").glob(f"offline-run-*-{number}/*.wandb"))


def _number(run: TrackedRun) -> str:
    """By which the run is found again."""
    return sha256(run.key.encode()).hexdigest()[:16]
