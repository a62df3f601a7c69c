"""A study: a grid of experiments with seeds, run into one folder of runs, read as one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from time import sleep
from typing import Any

from fedstill.config import BEHAVIOUR, Recipe, recipe_by
from fedstill.core.errors import InputError
from fedstill.core.files import writable_folder
from fedstill.core.plugins import loaded_plugins
from fedstill.federation.launch import use_plugins
from fedstill.studies.agenda import Agenda, Job, make_agenda
from fedstill.studies.crew import Crew, crew_size
from fedstill.studies.grid import Cell, Value, expand, read_axes
from fedstill.studies.ledger import Ledger
from fedstill.studies.results import Results, Row, figures_of
from fedstill.studies.table import Table, make_table
from fedstill.studies.tally import Tally, Watcher
from fedstill.studies.worker import Outcome, Place

_PATIENCE = 0.5  # seconds between looks at runs that another process is working on


class Study:
    """An experiment, varied. `run` does what is left to do, `table` shows what there is.

    `recipe` is a recipe's name, a file, or a mapping with the same sections. `settings` are spelt as after `--set`;
    a setting that the grid varies takes the place of its axis, as one value or as a list of them.

    >>> grid = {"method": ["fedavg", "fedprox"], "seed": [7, 42, 123]}
    >>> recipe = {"experiment": {"data": "digits"}, "grid": grid}
    >>> len(Study(recipe).expand()), len(Study(recipe, {"seed": [7, 42]}).expand())
    (6, 4)
    """

    def __init__(
        self,
        recipe: str | Mapping[str, Any],
        settings: Mapping[str, Any] | None = None,
        *,
        preset: str | None = None,
        variant: str | None = None,
        plugins: Sequence[str | Path] = (),
        data_root: str | Path | None = None,
        device: str = "cpu",
    ) -> None:
        use_plugins(plugins)
        self.data_root = None if data_root is None else Path(data_root)
        self.device = device
        self.recipe: Recipe = recipe_by(recipe, preset, variant)
        grid: dict[str, Any] = dict(self.recipe.grid)
        settings = dict(settings or {})
        for axis in grid:
            if (key := axis.removesuffix("?")) not in settings:
                continue
            chosen = settings.pop(key)
            grid[axis] = chosen if isinstance(chosen, list) else [chosen]
            if not grid[axis]:
                raise InputError(f"the setting {axis!r} is an empty list, so nothing would be run")
        self.grid = {axis.removesuffix("?"): values for axis, values in grid.items()}
        self.settings = settings
        self.layers = {"preset": preset, "variant": variant}
        self.axes: dict[str, tuple[Value, ...]] = read_axes(grid)
        self._cells = tuple(expand(self.recipe.experiment, self.axes, settings))

    def expand(self) -> tuple[Cell, ...]:
        """Every combination as an experiment, in the order written."""
        return self._cells

    @cached_property
    def agenda(self) -> Agenda:
        """The cells resolved against the data on this machine."""
        return make_agenda(self._cells, self.data_root, self.device)

    def run(
        self,
        out: str | Path = "runs",
        *,
        workers: int = 1,
        retry_failed: bool = False,
        watcher: Watcher | None = None,
    ) -> Results:
        """Do every run that nobody has done yet; one that fails is recorded, and the rest goes on.

        Runs that failed before are left alone unless `retry_failed`.
        """
        size = crew_size(workers)
        self.agenda.check_data()
        folder = writable_folder(Path(out))
        ledger = Ledger(folder)
        tally = Tally(ledger, self.agenda.jobs, size, retry_failed)
        if watcher is not None:
            watcher.start(tally)
        root = None if self.data_root is None else str(self.data_root)
        place = Place(str(folder), root, self.device, tuple(loaded_plugins()))

        def skip(job: Job) -> Outcome | None:
            if ledger.run(job.identity) is not None:
                return Outcome("done")
            if not retry_failed and (error := ledger.failure(job.identity)) is not None:
                return Outcome("failed", error)
            return Outcome("busy") if ledger.busy(job.identity) else None

        left = list(tally.waiting)
        with Crew(size, place) as crew:
            while left:
                elsewhere = []
                for job, outcome in crew.work(left, skip):
                    # Two that begin a run in the same instant can be in each other's way before one has the lock.
                    if outcome.state == "busy" or (outcome.state == "failed" and ledger.busy(job.identity)):
                        elsewhere.append(job)
                        continue
                    tally.settle(job, outcome)
                    if watcher is not None:
                        watcher.settled(tally, job, outcome)
                left = elsewhere
                if left:
                    if watcher is not None:
                        watcher.waiting(tally, len(left))
                    sleep(_PATIENCE)
        return self.results(folder)

    def results(self, out: str | Path = "runs") -> Results:
        """What the folder of runs holds of this study so far."""
        ledger = Ledger(Path(out))
        runs, failures = {}, {}
        for cell, identity in self.agenda.cells:
            labels = tuple(cell.labels.values())
            if (run := ledger.run(identity)) is not None:
                runs[labels] = Row(identity, figures_of(run))
            elif (error := ledger.failure(identity)) is not None:
                failures[labels] = error
        source = {"experiment": self.recipe.experiment, "settings": self.settings, "behaviour": BEHAVIOUR}
        axes = {
            axis: {value.label: raw for value, raw in zip(values, self.grid[axis], strict=True)}
            for axis, values in self.axes.items()
        }
        recipe = self.recipe
        return Results(recipe.name, recipe.about, source, axes, recipe.columns, recipe.rows, runs, failures)

    def identities(self) -> dict[tuple[str, ...], str]:
        """The identity of every cell's run, by the cell's labels."""
        return {tuple(cell.labels.values()): identity for cell, identity in self.agenda.cells}

    def table(self, out: str | Path = "runs", metric: str = "accuracy") -> Table:
        """The results so far as a table of one metric."""
        return make_table(self.results(out), metric)


def study(
    recipe: str | Mapping[str, Any],
    *,
    out: str | Path = "runs",
    workers: int = 1,
    preset: str | None = None,
    variant: str | None = None,
    plugins: Sequence[str | Path] = (),
    data_root: str | Path | None = None,
    device: str = "cpu",
    retry_failed: bool = False,
    watcher: Watcher | None = None,
    **settings: Any,
) -> Results:
    """Run a grid of experiments, or go on with it; what was run before, in whatever study, is not run again."""
    made = Study(recipe, settings, preset=preset, variant=variant, plugins=plugins, data_root=data_root, device=device)
    return made.run(out, workers=workers, retry_failed=retry_failed, watcher=watcher)
