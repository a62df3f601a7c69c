"""`fedstill query`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedstill.cli.completion import one_of
from fedstill.cli.extensions import commands
from fedstill.cli.options import Device, DryRun, Json, Out, Plugin, Quiet, Root, RunFolder, Set, a_page


@commands.register("query")
def query(
    run: RunFolder,
    client: Annotated[int | None, typer.Option(help="Who asks.")] = None,
    class_: Annotated[
        list[str] | None, typer.Option("--class", help="For which class, by number or name; repeatable.")
    ] = None,
    probe: Annotated[bool, typer.Option("--probe", help="Ask nobody: only show what all models seem to know.")] = False,
    method: Annotated[
        str,
        typer.Option(help="qkt, qkt-light or naive-kd.", autocompletion=one_of("qkt", "qkt-light", "naive-kd")),
    ] = "qkt",
    set_: Set = None,
    out: Out = Path("runs"),
    html: Annotated[
        Path | None, typer.Option(help="The page with its figures; else in the new run's folder.", callback=a_page)
    ] = None,
    data_root: Root = None,
    device: Device = "cpu",
    plugin: Plugin = None,
    dry_run: DryRun = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Let a client of a finished run ask the others for a class."""
    from fedstill.queries import query_command

    if probe:
        query_command.probe(run, set_ or [], data_root, device, plugin or [], json)
        return
    if client is None or not class_:
        from fedstill.core.errors import InputError

        raise InputError("say who asks and for what, e.g. --client 3 --class 7; or --probe to see what all models know")
    typed = query_command.Typed(run, client, class_, method, set_ or [], data_root, device, plugin or [])
    if dry_run:
        query_command.show_plan(typed, json)
    else:
        query_command.query(typed, out, html, quiet, json)
