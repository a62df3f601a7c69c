"""`fedstill verify`: whether runs and results are what was computed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedstill.cli.options import Json, Plugin, Root, run_folders
from fedstill.cli.screen import console, print_json


def verify(
    source: Annotated[
        Path,
        typer.Argument(
            help="A run, a study's results (.json), or a folder of them.", metavar="SOURCE", autocompletion=run_folders
        ),
    ],
    runs: Annotated[Path | None, typer.Option(help="The runs of a results file; else looked for beside it.")] = None,
    rerun: Annotated[int, typer.Option(help="Repeat so many runs and compare bits: finds forgeries too.", min=0)] = 0,
    seed: Annotated[int, typer.Option(help="Of that draw.")] = 0,
    data_root: Root = None,
    plugin: Plugin = None,
    json: Json = False,
) -> None:
    """Check runs and results by their digests, or repeat some."""
    from fedstill.studies.verification import verify as check

    found = check(source, runs=runs, rerun=rerun, seed=seed, data_root=data_root, plugins=plugin or [])
    wrong = [one for one in found if not one.ok]
    if json:
        print_json({"ok": not wrong, "sources": [_described(one) for one in found]})
    else:
        for one in found:
            state = "contradicts itself" if not one.ok else "stale" if one.stale else "fits together"
            console.print(f"{one.path.name}: {state}", soft_wrap=True)
            for line in (*map(str, one.contradictions), *(f"stale: {why}" for why in one.stale), *one.notes):
                console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)
        console.print(f"{len(found)} checked, {len(wrong)} with contradictions")
    if wrong:
        raise typer.Exit(1)


def _described(one: Any) -> dict[str, Any]:
    return {
        "path": str(one.path),
        "ok": one.ok,
        "contradictions": [vars(each) for each in one.contradictions],
        "stale": list(one.stale),
        "notes": list(one.notes),
        "runs": one.checked,
    }
