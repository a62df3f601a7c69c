"""`fedstill clean`: what runs take on disk, and freeing it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedstill.cli.options import Json, Out, named_run, run_folders
from fedstill.cli.screen import console, print_json, table
from fedstill.core.errors import InputError
from fedstill.core.files import disk_trouble, size_on_disk
from fedstill.core.numbers import size

if TYPE_CHECKING:
    from fedstill.runtime.run_state import State


def clean(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Runs to delete; default: look at all runs in --out.", metavar="RUN...", autocompletion=run_folders
        ),
    ] = None,
    out: Out = Path("runs"),
    checkpoints: Annotated[bool, typer.Option("--checkpoints", help="Delete checkpoints of finished runs.")] = False,
    unfinished: Annotated[bool, typer.Option("--unfinished", help="Delete unfinished runs.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Delete all runs.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Delete; without this, only show what would be deleted.")] = False,
    json: Json = False,
) -> None:
    """Show the disk space that runs take, and free it."""
    from fedstill.runtime.run_state import run_state
    from fedstill.studies.status import FAILURES

    chosen = _chosen(runs or [], out, everything or unfinished)
    found: list[dict[str, Any]] = []
    freed = 0
    for path in chosen:
        state = run_state(path)
        doomed = _doomed(path, state, checkpoints, unfinished, everything or (bool(runs) and not checkpoints))
        taken, freeing = size_on_disk([path]), size_on_disk([one for one in doomed if not one.is_symlink()])
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
        console.print("choose what to free with --checkpoints, --unfinished or --all, or name runs")


def _chosen(runs: list[Path], out: Path, others: bool) -> list[Path]:
    """The runs that were named, or all in a folder."""
    if runs and others:
        raise InputError("name runs, or choose them with --unfinished or --all, not both")
    chosen = [named_run(run, out) for run in runs]
    for path in chosen:
        if not (path / "config.json").is_file():
            raise InputError(f"{path} is not a run: it has no config.json")
    if not runs and not out.is_dir():
        raise InputError(f"there is no folder {out}: name the folder that holds the runs with --out")
    return chosen or sorted(config.parent for config in out.glob("*/config.json"))


def _remove(paths: list[Path]) -> None:
    for path in paths:
        try:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        except OSError as error:
            raise disk_trouble(path, error) from error


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
