"""`fedstill clean`: what runs take on disk, and freeing it."""

from __future__ import annotations

import shutil
from pathlib import Path

from fedstill.cli.screen import console, print_json, table
from fedstill.core.errors import InputError
from fedstill.core.numbers import size
from fedstill.federation.checkpoint import NAME, PREVIOUS
from fedstill.federation.result import Run


def clean(out: Path, checkpoints: bool, unfinished: bool, everything: bool, yes: bool, as_json: bool) -> None:
    if not out.is_dir():
        raise InputError(f"there is no folder {out}: name the folder that holds the runs with --out")
    rows, freed = [], 0
    for run in _runs(out):
        doomed = _doomed(run, checkpoints, unfinished, everything)
        taken, freeing = _size_of([run.path]), _size_of(doomed)
        freed += freeing
        rows.append((run.path.name, "finished" if run.finished else "unfinished", size(taken), size(freeing)))
        if yes:
            for path in doomed:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    if as_json:
        runs = [dict(zip(("run", "state", "size", "freed"), row, strict=True)) for row in rows]
        print_json({"runs": runs, "freed_bytes": freed if yes else 0, "would_free_bytes": freed})
        return
    table("", ("run", "state", "takes", "frees"), rows, right=(2, 3))
    if yes:
        console.print(f"freed {size(freed)}", highlight=False)
    elif freed:
        console.print(f"would free {size(freed)}: add --yes to do it", highlight=False)
    else:
        console.print("choose what to free with --checkpoints, --unfinished or --all", highlight=False)


def _runs(out: Path) -> list[Run]:
    return [Run(path.parent) for path in sorted(out.glob("*/config.json"))]


def _doomed(run: Run, checkpoints: bool, unfinished: bool, everything: bool) -> list[Path]:
    """A finished run needs no checkpoint, unless its clients' own models hang on it."""
    if everything or (unfinished and not run.finished):
        return [run.path]
    if checkpoints and run.finished and not run.result["personal"]:
        return [path for name in (NAME, PREVIOUS) if (path := run.path / name).exists()]
    return []


def _size_of(paths: list[Path]) -> int:
    files = [file for path in paths for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file()]
    return sum(file.stat().st_size for file in files)
