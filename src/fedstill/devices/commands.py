"""The commands below `fedstill fleet`."""

from __future__ import annotations

from typing import Annotated

import typer

from fedstill.cli.completion import named
from fedstill.cli.extensions import commands
from fedstill.cli.flags import Flags, with_flags
from fedstill.cli.options import (
    Html,
    Json,
    Root,
)
from fedstill.cli.plain import Commands

fleet_app = Commands(name="fleet", help="Devices with batteries: look at them.")


commands.register("fleet")(fleet_app)


@fleet_app.callback()
def _only_below() -> None:
    """A callback keeps `show` a command of its own, although it is the only one."""


@fleet_app.command(name="show")
@with_flags()
def fleet_show(
    source: Annotated[
        str,
        typer.Argument(
            help="A run's folder, a method, a recipe, or a recipe file.",
            metavar="RUN_OR_METHOD_OR_RECIPE",
            autocompletion=named("methods", "recipes", "studies"),
        ),
    ],
    flags: Flags,
    html: Html = None,
    data_root: Root = None,
    json: Json = False,
) -> None:
    """Devices by tier, and what a round costs them; of a run, also what became of them. Nothing is run."""
    from fedstill.devices import fleet_command

    fleet_command.show(source, flags, html, data_root, json)
