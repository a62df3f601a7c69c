"""How far a study is, in a file in its folder of runs, for another process that watches it.

`studies/<title>/timing.json` is written at most once a second, and its time is renewed while the study runs. It
decides nothing: a study goes on from its runs, and one that cannot write the file goes on without it. Like the file of
that name in a run's folder, it differs between two studies with the same results.
"""

from __future__ import annotations

import json
import logging
import os
import re
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from types import TracebackType
from typing import Any, Self

from fedstill.core.files import replace_whole
from fedstill.studies.jobs import JobOutcome
from fedstill.studies.study_plan import Job
from fedstill.studies.study_progress import StudyProgress

_log = logging.getLogger(__name__)

FOLDER, NAME = "studies", "timing.json"
SILENCE = 30.0  # seconds without news after which the process of a study is gone
_RENEW = 5.0  # seconds between signs of life
_EVERY = 1.0  # seconds between writes
_UNUSUAL = re.compile(r"[^\w.-]|^\.+")  # in names of files


class ProgressFile:
    """An observer that writes the file, from the beginning to the end of a study."""

    def __init__(self, out: Path, title: str, about: str, command: str) -> None:
        self.path = out / FOLDER / _UNUSUAL.sub("-", title)[:100] / NAME
        self.facts: dict[str, Any] = {"study": title, "about": about, "command": command, "state": "running"}
        self.facts["started"] = datetime.now(UTC).isoformat(timespec="seconds")
        self._written = -_EVERY
        self._begun = False
        self._ended = Event()
        self._thread = Thread(target=self._keep_alive, daemon=True, name="progress of a study")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if not self._begun:
            return
        self._thread.join()
        over = self.facts["done"] + self.facts["failed"] + self.facts["refused"] >= self.facts["total"]
        self.facts |= {"state": "finished" if error is None and over else "stopped", "working": [], "left": None}
        self._write()

    def start(self, tally: StudyProgress) -> None:
        self._show(tally)
        self._begun = True
        self._thread.start()

    def settled(self, tally: StudyProgress, job: Job, outcome: JobOutcome) -> None:
        self._show(tally)

    def heard(self, tally: StudyProgress) -> None:
        self._show(tally)

    def waiting(self, tally: StudyProgress, number: int) -> None:
        """The sign of life is enough."""

    def _show(self, tally: StudyProgress) -> None:
        left = tally.seconds_left() if tally.waiting else None
        self.facts |= {
            "total": tally.total,
            "done": tally.done,
            "failed": len(tally.failures),
            "refused": len(tally.refused),
            "workers": tally.workers,
            "progress": round(tally.progress, 3),
            "working": [{"cell": str(job.cell), "share": round(part, 3)} for job, part in tally.halfway.items()],
            "left": None if left is None else round(left, 1),
        }
        if monotonic() - self._written >= _EVERY:
            self._write()

    def _write(self) -> None:
        self._written = monotonic()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            replace_whole(self.path, (json.dumps(self.facts, indent=1) + "\n").encode())
        except OSError:  # a full disk stops the study where its results are written, with a sentence
            _log.info("%s cannot be written", self.path, exc_info=True)

    def _keep_alive(self) -> None:
        while not self._ended.wait(_RENEW):
            with suppress(OSError):
                os.utime(self.path)
