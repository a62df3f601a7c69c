"""The commands that look at what there is; `app` registers them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedstill.cli.completion import named, runs
from fedstill.cli.flags import Flags, with_flags
from fedstill.cli.options import (
    Experiment,
    Json,
    OneData,
    Out,
    Plugin,
    Root,
    RunFolder,
    a_page,
)


def list_(
    what: Annotated[
        str | None,
        typer.Argument(
            help="One shelf, e.g. methods, objectives, models, datasets, recipes or studies.",
            autocompletion=named("shelves"),
        ),
    ] = None,
    traffic: Annotated[bool, typer.Option("--traffic", help="What a client of each method sends, measured.")] = False,
    plugin: Plugin = None,
    json: Json = False,
) -> None:
    """Everything that can be chosen by name, with a sentence each."""
    from fedstill.cli import list as listing

    (listing.show_traffic if traffic else listing.show)(what, plugin or [], json)


def show(run: RunFolder, plugin: Plugin = None, json: Json = False) -> None:
    """A run's rounds as a table and a curve."""
    from fedstill.cli import runs

    runs.show(run, plugin or [], json)


@with_flags()
def egress(experiment: Experiment, flags: Flags, data_root: Root = None, json: Json = False) -> None:
    """What leaves a client in this experiment, with measured sizes."""
    from fedstill.cli import plans

    plans.egress(flags.assemble(experiment), data_root, json)


def report(
    sources: Annotated[
        list[Path],
        typer.Argument(
            help="A study's results (.json), its folder, or folders of runs.", metavar="SOURCE...", autocompletion=runs
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="The page (.html); else beside the results.", callback=a_page)
    ] = None,
    data: OneData = None,
    data_root: Root = None,
    plugin: Plugin = None,
    json: Json = False,
) -> None:
    """Write one HTML page about a study, its audit, or some runs."""
    from fedstill.cli.screen import print_page
    from fedstill.report.writer import report

    print_page(report(sources, out, data=data, data_root=data_root, plugins=plugin or []), json)


def clean(
    out: Out = Path("runs"),
    checkpoints: Annotated[bool, typer.Option("--checkpoints", help="Free checkpoints of finished runs.")] = False,
    unfinished: Annotated[bool, typer.Option("--unfinished", help="Remove unfinished runs.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Remove all runs.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without this it is only shown.")] = False,
    json: Json = False,
) -> None:
    """Show what runs take on disk, and free it."""
    from fedstill.cli import clean as cleaning

    cleaning.clean(out, checkpoints, unfinished, everything, yes, json)
