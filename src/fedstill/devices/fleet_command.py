"""`fedstill fleet show`: the devices of an experiment, or of a run, as tables and as a page."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedstill.cli.extensions import Commands, commands
from fedstill.cli.flags import Flags, with_flags
from fedstill.cli.options import Html, Json, Root, named
from fedstill.cli.screen import console, print_json, print_table
from fedstill.core.errors import InputError
from fedstill.core.plugins import use_plugins

if TYPE_CHECKING:  # avoids importing torch for `--help`
    from fedstill.devices.fleet_page import Described
    from fedstill.runtime.experiment import Experiment

fleet_app = Commands(name="fleet", help="Simulated devices with batteries.")
commands.register("fleet")(fleet_app)


@fleet_app.callback()
def _only_below() -> None:
    """The callback keeps `show` a subcommand, although it is the only one."""


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
    """Show devices by tier, and what a round costs them."""
    from fedstill.devices.fleet_page import described, write_fleet_page
    from fedstill.report.writer import checked_page
    from fedstill.runtime.result import Run

    if html is not None:
        checked_page(html)
    use_plugins(flags.plugin or ())
    run = Run(source) if (Path(source) / "config.json").is_file() else None
    if run is not None and replace(flags, plugin=None) != Flags():
        raise InputError(f"{source} is a run, whose fleet is what it was: leave all settings out")
    experiment = run.experiment if run is not None else _experiment(source, flags)
    found = described(experiment, data_root, run)
    page = None if html is None else write_fleet_page(found, html)
    if json:
        print_json(_as_dict(found) | {"page": None if page is None else str(page)})
        return
    _print(found)
    if page is not None:
        console.print(f"\nopen {page.resolve()} in a browser", soft_wrap=True)


def _experiment(name: str, flags: Flags) -> Experiment:
    """As for `fedstill run`; for a study, the first of its experiments."""
    from fedstill.runtime.assemble import make_experiment
    from fedstill.runtime.recipes import recipe_by
    from fedstill.studies.grid import expand, read_axes

    recipe = recipe_by(name, flags.preset, flags.variant)
    given = recipe.experiment
    if recipe.grid:
        given = next(expand(given, read_axes(recipe.grid), {})).given
    return make_experiment(flags.over(given))


def _as_dict(found: Described) -> dict[str, object]:
    return {
        "experiment": found.experiment.model_dump(mode="json"),
        "tiers": [asdict(one) for one in found.tiers],
        "job": None if found.job is None else {**asdict(found.job), "down": found.job.down, "up": found.job.up},
        "costs": [asdict(one) for one in found.costs],
        "missing": found.missing or None,
        "run": None if found.run is None else str(found.run.path),
        "rounds": None if found.run is None else len(found.run.journal),
        "left": [asdict(one) for one in found.left],
    }


def _print(found: Described) -> None:
    from fedstill.devices.fleet_tables import costs_table, left_table, tiers_table

    console.print(found.heading, style="bold")
    print_table(tiers_table(found.tiers))
    if found.job is None:
        console.print(f"\n{found.work}")
    else:
        console.print(f"\nWhat a round takes a device, in Wh: {found.work}")
        print_table(costs_table(found.costs))
    if found.run is None:
        return
    if found.left:
        console.print(f"\nAfter round {len(found.run.journal)}")
        print_table(left_table(found.left))
    else:
        console.print("\nWhat became of them is not known: the run has no checkpoint")
