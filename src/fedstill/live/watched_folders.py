"""All runs, studies and deployments in some folders, read when the page is requested, at most once a second."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from time import monotonic, time
from typing import Any

from fedstill.live.bounded_files import finite, read_mapping, section_of, short_text, stamp_of, whole
from fedstill.live.deployment_status import deployments_in
from fedstill.live.held_locks import held_inodes
from fedstill.live.run_titles import give_titles
from fedstill.live.watched_run import CONFIG, WatchedRun
from fedstill.studies.progress_file import FOLDER as STUDIES
from fedstill.studies.progress_file import NAME as PROGRESS
from fedstill.studies.progress_file import SILENCE
from fedstill.studies.status import FAILURES

_BUDGET = 1.5  # seconds for one look; what is left is read by the next one
_EVERY = 0.9  # seconds between looks
_MOST_RUNS = 5000
_MOST_FILES = 100  # studies, and failures
_CELLS = 12  # of a study that are being worked on


class WatchedFolders:
    """What the page shows; safe to use from several threads."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = list(folders)
        self.version = int(time() * 1000)  # a page of an earlier process is then never taken for up to date
        self.first = self.version
        self.runs: dict[Path, WatchedRun] = {}
        self.studies: list[dict[str, Any]] = []
        self.failures: list[dict[str, Any]] = []
        self.deployments: list[dict[str, Any]] = []
        self.unread = 0  # runs that are not read yet
        self.left_out = 0  # runs beyond those that a page can hold
        self.gone: dict[str, int] = {}  # runs that were deleted, and in which version
        self._lock = Lock()
        self._looked = -_EVERY
        self._known_files: dict[Path, tuple[Any, dict[str, Any]]] = {}

    def state(self, since: int = 0) -> dict[str, Any]:
        """Everything that changed since that version; all of it where the version is not of this process."""
        with self._lock:
            self._look()
            if not self.first <= since <= self.version:
                since = 0
            changed = [run for run in self.runs.values() if run.version > since]
            return {
                "version": self.version,
                "whole": since == 0,
                "now": round(time()),
                "folders": [str(folder) for folder in self.folders],
                "missing": [str(folder) for folder in self.folders if not folder.is_dir()],
                "runs": [run.summary() for run in changed],
                "gone": [name for name, version in self.gone.items() if version > since] if since else [],
                "studies": self.studies,
                "failures": self.failures,
                "deployments": self.deployments,
                "unread": self.unread,
                "left_out": self.left_out,
            }

    def details(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Of runs by their names on the page; others are left out."""
        with self._lock:
            self._look()
            known = {run.id: run for run in self.runs.values()}
            return [known[name].details() for name in dict.fromkeys(names) if name in known]

    def _look(self) -> None:
        now = monotonic()
        if now - self._looked < _EVERY:
            return
        self._find()
        self._read(now + _BUDGET)
        self.studies = sorted(self._studies(), key=lambda one: (one["state"] != "running", -one["changed"]))
        self.failures = self._failures()
        self.deployments = [one for folder in self.folders for one in deployments_in(folder)]
        self._looked = monotonic()

    def _find(self) -> None:
        found = list(dict.fromkeys(path for folder in self.folders for path in _runs_in(folder)))
        self.left_out = max(0, len(found) - _MOST_RUNS)
        kept = set(found[:_MOST_RUNS])
        for path in [path for path in self.runs if path not in kept]:
            self.version += 1
            self.gone[self.runs.pop(path).id] = self.version
        for path in kept - self.runs.keys():
            self.runs[path] = WatchedRun(path)
            self.gone.pop(self.runs[path].id, None)

    def _read(self, until: float) -> None:
        """Those that were never read come last, so that the others stay up to date while these are read."""
        held, changed, retitle, self.unread = held_inodes(), [], False, 0
        for run in sorted(self.runs.values(), key=lambda run: run.version == 0):
            if monotonic() > until:
                self.unread += run.version == 0
                continue
            before = run.config
            if run.look(held) or run.version == 0:
                changed.append(run)
            retitle |= run.config is not before
        if retitle:
            changed += give_titles([run for run in self.runs.values() if run.experiment])
        if changed:
            self.version += 1
        for run in changed:
            run.version = self.version

    def _studies(self) -> Iterator[dict[str, Any]]:
        for path in self._newest(f"{STUDIES}/*/{PROGRESS}"):
            told = self._file(path)
            if not told:
                continue
            stamp = stamp_of(path)
            changed = 0.0 if stamp is None else stamp[2] / 1e9
            state = short_text(told.get("state"))
            if state == "running" and time() - changed > SILENCE:
                state = "stopped"
            working = told.get("working")
            cells = [one for one in working if isinstance(one, dict)] if isinstance(working, list) else []
            yield {
                "name": short_text(told.get("study")) or path.parent.name,
                "about": short_text(told.get("about")),
                "command": short_text(told.get("command")),
                "state": state,
                **{key: whole(told.get(key)) for key in ("total", "done", "failed", "refused", "workers")},
                "progress": finite(told.get("progress")) or 0.0,
                "working": [
                    {"cell": short_text(one.get("cell")), "share": finite(one.get("share")) or 0.0}
                    for one in cells[:_CELLS]
                ],
                "left": finite(told.get("left")) if state == "running" else None,
                "changed": round(changed),
                "folder": str(path.parents[2]),
            }

    def _failures(self) -> list[dict[str, Any]]:
        """Runs of studies that failed or were refused, the latest first."""
        told = [self._file(path) for path in self._newest(f"{FAILURES}/*.json")]
        return [
            {
                "cell": ", ".join(short_text(label) for label in section_of(one, "cell").values()),
                "error": short_text(one.get("error")),
                "refused": one.get("refused") is True,
            }
            for one in told
            if one
        ]

    def _newest(self, pattern: str) -> list[Path]:
        paths: list[Path] = []
        for folder in self.folders:
            with suppress(OSError):  # deleted meanwhile
                paths.extend(folder.glob(pattern))
        dated = [(stamp[2], path) for path in paths if (stamp := stamp_of(path)) is not None]
        return [path for _, path in sorted(dated, reverse=True)[:_MOST_FILES]]

    def _file(self, path: Path) -> dict[str, Any]:
        """A small JSON file, read again only where it has changed."""
        stamp = stamp_of(path)
        if len(self._known_files) > 4 * _MOST_FILES:
            self._known_files.clear()
        if path not in self._known_files or self._known_files[path][0] != stamp:
            self._known_files[path] = stamp, read_mapping(path)
        return self._known_files[path][1]


def _runs_in(folder: Path) -> Iterator[Path]:
    """The folder itself where it is a run, else the runs in it; the newest first."""
    if stamp_of(folder / CONFIG) is not None:
        yield folder
        return
    dated = [(stamp[2], path) for path in _entries(folder) if (stamp := stamp_of(path / CONFIG)) is not None]
    yield from (path for _, path in sorted(dated, reverse=True))


def _entries(folder: Path) -> list[Path]:
    """What is in a folder; nothing where it cannot be read, or is deleted meanwhile."""
    found: list[Path] = []
    with suppress(OSError), os.scandir(folder) as entries:
        found.extend(Path(entry.path) for entry in entries)
    return found
