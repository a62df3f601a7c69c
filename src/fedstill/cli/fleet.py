"""`fedstill fleet show`: the devices of an experiment, or of a run, as tables and as a page."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

from fedstill.cli.flags import Flags
from fedstill.cli.screen import console, print_json, table
from fedstill.config import Experiment, make_experiment, recipe_by
from fedstill.core.errors import InputError
from fedstill.core.numbers import MISSING, share
from fedstill.core.plugins import use_plugins
from fedstill.federation.result import Run
from fedstill.report.fleet_page import Described, described, energy, seconds, span, write_fleet_page
from fedstill.report.writing import checked_page
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
    table(
        "",
        ("tier", "devices", "capacity Wh", "power W", "GFLOP/s", "charge %", "on Wi-Fi"),
        [
            (
                one.tier,
                f"{one.devices:,}",
                span(one.capacity),
                span(one.watts),
                span(one.speed),
                span(one.charge, 0, 100),
                share(one.wifi, 0),
            )
            for one in found.tiers
        ],
        right=range(1, 7),
    )
    if found.job is None:
        console.print(f"\n{found.work}")
    else:
        console.print(f"\nWhat a round takes a device, in Wh: {found.work}")
        table(
            "",
            ("tier", "link", "download", "training", "upload", "background", "of battery", "seconds"),
            [
                (
                    one.tier,
                    one.link,
                    *(energy(value) for value in (one.download, one.training, one.upload, one.background)),
                    share(one.share),
                    seconds(one.seconds),
                )
                for one in found.costs
            ],
            right=range(2, 8),
        )
    if found.run is not None:
        _print_left(found, found.run)


def _print_left(found: Described, run: Run) -> None:
    if not found.left:
        console.print("\nWhat became of them is not known: the run has no checkpoint")
        return
    console.print(f"\nAfter round {len(run.journal)}")
    table(
        "",
        ("tier", "devices", "charge before", "after", "flat", "rounds attended", "Wh a round"),
        [
            (
                one.tier,
                f"{one.devices:,}",
                share(one.before, 1),
                share(one.after, 1),
                f"{one.flat:,}",
                f"{one.attended:.1f}",
                MISSING if one.spent is None else energy(one.spent),
            )
            for one in found.left
        ],
        right=range(1, 7),
    )
