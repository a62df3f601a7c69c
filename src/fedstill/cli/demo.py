"""`fedstill demo`: the main job at a small scale, from training teachers to the report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedstill.cli.options import Json, Out, Quiet, one_of
from fedstill.cli.screen import print_json, print_page
from fedstill.cli.study import StudyOutput, run_and_show
from fedstill.core.files import writable_folder

RECIPE = "demo"


def demo(
    preset: Annotated[
        str | None,
        typer.Option(help="tiny: only test whether everything works (seconds).", autocompletion=one_of("tiny")),
    ] = None,
    out: Out = Path("demo"),
    workers: Annotated[int, typer.Option(help="Number of worker processes.")] = 2,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Train small teachers and students, audit them, write a report."""
    from fedstill.report.writer import write_study
    from fedstill.studies import Study

    writable_folder(out)
    study = Study(RECIPE, preset=preset)
    results = out / "runs" / f"{study.title}.json"
    output = StudyOutput(["accuracy"], None, None, as_json=False, quiet=quiet or json, prints=not json)
    run_and_show(study, out / "runs", workers, False, output)
    page = write_study(results, out / "report.html")
    if json:
        print_json({"results": str(results), "page": str(page)})
    else:
        print_page(page, json)
