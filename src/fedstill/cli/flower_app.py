"""`fedstill flower app`: an experiment as an app for a federation that runs Flower already."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fedstill.cli.deploy import need_extra
from fedstill.cli.flags import Flags, with_flags
from fedstill.cli.options import ExperimentName, Json
from fedstill.cli.screen import console, print_json


@with_flags("clients")
def flower_app(
    folder: Annotated[Path, typer.Argument(help="Folder to write the app into.", metavar="DIR")],
    flags: Flags,
    experiment: ExperimentName = "fedavg",
    sites: Annotated[int, typer.Option(min=1, help="Number of sites, each with a SuperNode.")] = 2,
    name: Annotated[str, typer.Option(help="What the sites' deployment is called.")] = "federation",
    json: Json = False,
) -> None:
    """Write a Flower app that runs an experiment with stock `flower-superlink`, `flower-supernode` and `flwr run`."""
    need_extra()
    from fedstill.deploy.flower_project import write_flower_app

    chosen = replace(flags, clients=sites, set_=[*(flags.set_ or ()), "evaluation=on-site"]).assemble(experiment)
    written = write_flower_app(folder, chosen, sites, name)
    if json:
        print_json({"files": [str(path) for path in written]})
        return
    console.print(f"{folder}: {chosen.method.name} for {sites} sites. With a SuperLink of that connection:")
    console.print(f"  flwr run {folder} CONNECTION --stream", soft_wrap=True, markup=False)
    console.print(
        "and at each site, with the folder that `fedstill deploy init` made for it:\n"
        '  flower-supernode ... --node-config \'folder="/srv/site-0" data="npz:/srv/site-0.npz"\'',
        soft_wrap=True,
        markup=False,
    )
