"""The commands below `fedstill fleet`."""

from __future__ import annotations

from typing import Annotated

import typer

from fedstill.cli.completion import named
from fedstill.cli.options import (
    Clients,
    Cut,
    Data,
    Dropout,
    Html,
    Json,
    Model,
    Participation,
    Plugin,
    Preset,
    Query,
    Root,
    Rounds,
    Seed,
    Set,
    Variant,
)
from fedstill.cli.plain import Commands

fleet_app = Commands(name="fleet", help="Devices with batteries: look at them.")


@fleet_app.callback()
def _only_below() -> None:
    """A callback keeps `show` a command of its own, although it is the only one."""


@fleet_app.command(name="show")
def fleet_show(
    source: Annotated[
        str,
        typer.Argument(
            help="A run's folder, a method, a recipe, or a recipe file.",
            metavar="RUN_OR_METHOD_OR_RECIPE",
            autocompletion=named("methods", "recipes", "studies"),
        ),
    ],
    data: Data = None,
    model: Model = None,
    partition: Cut = None,
    participation: Participation = None,
    dropout: Dropout = None,
    clients: Clients = None,
    rounds: Rounds = None,
    seed: Seed = None,
    query: Query = None,
    set_: Set = None,
    html: Html = None,
    data_root: Root = None,
    preset: Preset = None,
    variant: Variant = None,
    plugin: Plugin = None,
    json: Json = False,
) -> None:
    """Devices by tier, and what a round costs them; of a run, also what became of them. Nothing is run."""
    from fedstill.cli import experiments, fleet

    flags = experiments.Flags(
        data=data,
        model=model,
        partition=partition,
        participation=participation,
        dropout=dropout,
        clients=clients,
        rounds=rounds,
        seed=seed,
        query=query,
        set_=set_,
    )
    fleet.show(source, flags, preset, variant, html, data_root, plugin or [], json)
