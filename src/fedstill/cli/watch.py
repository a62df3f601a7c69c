"""`fedstill watch`: a page in the browser that follows runs, studies and deployments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedstill.cli.options import in_runs, run_folders
from fedstill.cli.screen import console


def watch(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Folders of runs, runs, or servers' folders; default: runs.",
            metavar="FOLDER...",
            autocompletion=run_folders,
            callback=lambda paths: list(map(in_runs, paths or [])),
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to serve on; other than this machine's own, the page asks for a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to serve on; 0: any that is free.")] = 8321,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Serve a page that follows runs, studies and deployments.

    Ctrl-C ends it.
    """
    from fedstill.live.page_server import watch as serve

    page = serve(folders or "runs", host=host, port=port, open=open_)
    console.print(page.url, soft_wrap=True, markup=False)
    if page.token is not None:
        console.print("anyone who has this address can read the page; the connection is not encrypted", soft_wrap=True)
    console.print("press Ctrl-C to end", soft_wrap=True)
    try:
        page.wait()
    except KeyboardInterrupt:
        console.print("ended")
    finally:
        page.close()
