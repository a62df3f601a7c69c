"""`fedstill clean`: what runs take on disk, and freeing it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fedstill.cli.options import Json, Out
from fedstill.cli.screen import console, print_json, table
from fedstill.core.errors import BusyError, InputError
from fedstill.core.files import disk_trouble
from fedstill.core.numbers import size

State = Literal["finished", "unfinished", "being worked on", "cannot be read"]


def clean(
    out: Out = Path("runs"),
    checkpoints: Annotated[bool, typer.Option("--checkpoints", help="Delete checkpoints of finished runs.")] = False,
    unfinished: Annotated[bool, typer.Option("--unfinished", help="Delete unfinished runs.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Delete all runs.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Delete; without this, only show what would be deleted.")] = False,
    json: Json = False,
) -> None:
    """Show the disk space that runs take, and free it."""
    from fedstill.studies.status import FAILURES

    if not out.is_dir():
        raise InputError(f"there is no folder {out}: name the folder that holds the runs with --out")
    found: list[dict[str, Any]] = []
    freed = 0
    for path in sorted(config.parent for config in out.glob("*/config.json")):
        state = _state(path)
        doomed = _doomed(path, state, checkpoints, unfinished, everything)
        taken, freeing = size_on_disk([path]), size_on_disk(doomed)
        freed += freeing
        found.append({"run": path.name, "state": state, "bytes": taken, "frees_bytes": freeing})
        if yes:
            _remove(doomed)
    if everything and yes:
        _remove([path for path in (out / FAILURES,) if path.exists()])
    if json:
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


def _remove(paths: list[Path]) -> None:
    for path in paths:
        try:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        except OSError as error:
            raise disk_trouble(path, error) from error


def _state(path: Path) -> State:
    from fedstill.runtime.result import Run
    from fedstill.runtime.run_folder import RunFolder

    try:
        if Run(path).finished:
            return "finished"
        RunFolder(path).lock().release()
    except BusyError:
        return "being worked on"
    except InputError:  # of another version, say: one more reason to free what it takes
        return "cannot be read"
    return "unfinished"


def _doomed(path: Path, state: State, checkpoints: bool, unfinished: bool, everything: bool) -> list[Path]:
    """A finished run needs no checkpoint, unless its clients' own models, or figures of its fleet, hang on it."""
    from fedstill.runtime.checkpoint import NAME, PREVIOUS
    from fedstill.runtime.result import Run

    if state == "being worked on":
        return []
    if everything or (unfinished and state == "unfinished"):
        return [path]
    if checkpoints and state == "finished":
        run = Run(path)
        written = run.config["experiment"]  # as it is written: what a plugin brought need not be here to be freed
        if not (run.result.personal or written.get("fleet") or written.get("clusters")):
            return [held for name in (NAME, PREVIOUS) if (held := path / name).exists()]
    return []


def size_on_disk(paths: list[Path]) -> int:
    """The bytes of these files, and of all files below these folders."""
    files = [file for path in paths for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file()]
    return sum(file.stat().st_size for file in files)
