"""`fedstill clean`: what runs take on disk, and freeing it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from fedstill.cli.screen import console, print_json, table
from fedstill.core.errors import BusyError, InputError
from fedstill.core.numbers import size
from fedstill.federation.checkpoint import NAME, PREVIOUS
from fedstill.federation.folder import RunFolder
from fedstill.federation.result import Run
from fedstill.studies.ledger import FAILURES


def clean(out: Path, checkpoints: bool, unfinished: bool, everything: bool, yes: bool, as_json: bool) -> None:
    if not out.is_dir():
        raise InputError(f"there is no folder {out}: name the folder that holds the runs with --out")
    found: list[dict[str, Any]] = []
    freed = 0
    for run in _runs(out):
        busy = not run.finished and _busy(run)
        doomed = [] if busy else _doomed(run, checkpoints, unfinished, everything)
        taken, freeing = _size_of([run.path]), _size_of(doomed)
        freed += freeing
        state = "finished" if run.finished else "being worked on" if busy else "unfinished"
        found.append({"run": run.path.name, "state": state, "bytes": taken, "frees_bytes": freeing})
        if yes:
            _remove(doomed)
    if everything and yes:
        _remove([path for path in (out / FAILURES,) if path.exists()])
    if as_json:
        print_json({"runs": found, "freed_bytes": freed if yes else 0, "would_free_bytes": freed})
        return
    rows = [(one["run"], one["state"], size(one["bytes"]), size(one["frees_bytes"])) for one in found]
    table("", ("run", "state", "takes", "frees"), rows, right=(2, 3))
    if yes:
        console.print(f"freed {size(freed)}")
    elif freed:
        console.print(f"would free {size(freed)}: add --yes to do it")
    else:
        console.print("choose what to free with --checkpoints, --unfinished or --all")


def _runs(out: Path) -> list[Run]:
    return [Run(path.parent) for path in sorted(out.glob("*/config.json"))]


def _remove(paths: list[Path]) -> None:
    for path in paths:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _busy(run: Run) -> bool:
    try:
        RunFolder(run.path).lock().release()
    except BusyError:
        return True
    return False


def _doomed(run: Run, checkpoints: bool, unfinished: bool, everything: bool) -> list[Path]:
    """A finished run needs no checkpoint, unless its clients' own models, or figures of its fleet, hang on it."""
    if everything or (unfinished and not run.finished):
        return [run.path]
    experiment = run.experiment
    needed = run.finished and (run.result["personal"] or experiment.fleet or experiment.clusters)
    if checkpoints and run.finished and not needed:
        return [path for name in (NAME, PREVIOUS) if (path := run.path / name).exists()]
    return []


def _size_of(paths: list[Path]) -> int:
    files = [file for path in paths for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file()]
    return sum(file.stat().st_size for file in files)
