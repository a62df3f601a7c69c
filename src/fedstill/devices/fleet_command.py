"""`fedstill fleet show`: the devices of an experiment, or of a run, as tables and as a page."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

from fedstill.cli.flags import Flags
from fedstill.cli.screen import console, print_json, print_table
from fedstill.core.errors import InputError
from fedstill.core.plugins import use_plugins
from fedstill.devices.fleet_page import Described, described, write_fleet_page
from fedstill.devices.fleet_tables import costs_table, left_table, tiers_table
from fedstill.report.writer import checked_page
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.experiment import Experiment
from fedstill.runtime.recipes import recipe_by
from fedstill.runtime.result import Run
from fedstill.studies.grid import expand, read_axes


def show(source: str, flags: Flags, html: Path | None, data_root: Path | None, as_json: bool) -> None:
    if html is not None:
        checked_page(html)
    use_plugins(flags.plugin or ())
    run = Run(source) if (Path(source) / "config.json").is_file() else None
    if run is not None and replace(flags, plugin=None) != Flags():
        raise InputError(f"{source} is a run, whose fleet is what it was: leave all settings out")
    experiment = run.experiment if run is not None else _experiment(source, flags)
    found = described(experiment, data_root, run)
    page = None if html is None else write_fleet_page(found, html)
    if as_json:
        print_json(_told(found) | {"page": None if page is None else str(page)})
        return
    _print(found)
    if page is not None:
        console.print(f"\nopen {page.resolve()} in a browser", soft_wrap=True)


def _experiment(name: str, flags: Flags) -> Experiment:
    """As for `fedstill run`; of a study, the first of its experiments."""
    recipe = recipe_by(name, flags.preset, flags.variant)
    given = recipe.experiment
    if recipe.grid:
        given = next(expand(given, read_axes(recipe.grid), {})).given
    return make_experiment(flags.over(given))


def _told(found: Described) -> dict[str, object]:
    return {
        "experiment": found.experiment.model_dump(mode="json"),
        "tiers": [asdict(one) for one in found.tiers],
        "job": None if found.job is None else asdict(found.job),
        "costs": [asdict(one) for one in found.costs],
        "missing": found.missing or None,
        "run": None if found.run is None else str(found.run.path),
        "rounds": None if found.run is None else len(found.run.journal),
        "left": [asdict(one) for one in found.left],
    }


def _print(found: Described) -> None:
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
