"""`fedstill report`: one HTML page about a study, its audit, or some runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedstill.cli.options import Json, Metric, OneData, Plugin, Root, html_path, run_folders
from fedstill.cli.screen import console, print_page


def report(
    sources: Annotated[
        list[Path],
        typer.Argument(
            help="A study's results (.json), its folder, or folders of runs.",
            metavar="SOURCE...",
            autocompletion=run_folders,
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Page to write (.html); default: next to the results.", callback=html_path)
    ] = None,
    metric: Metric = None,
    data: OneData = None,
    data_root: Root = None,
    plugin: Plugin = None,
    json: Json = False,
) -> None:
    """Write an HTML report of a study and its audit, or of runs."""
    from fedstill.report.writer import left_out
    from fedstill.report.writer import report as write_report

    print_page(write_report(sources, out, data=data, data_root=data_root, plugins=plugin or [], metric=metric), json)
    if not json and (sentence := left_out(sources)):
        console.print(sentence, soft_wrap=True)
