"""A study: a grid of experiments with seeds, run into one folder of runs, read as one table."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from functools import cached_property, partial
from hashlib import blake2b
from pathlib import Path
from time import sleep
from typing import Any

from fedstill.core.errors import InputError
from fedstill.core.files import writable_folder
from fedstill.core.notebook import panel, paragraph
from fedstill.core.numbers import count
from fedstill.core.own_parts import OwnParts, fresh_token
from fedstill.core.plugins import use_plugins
from fedstill.core.table import Table
from fedstill.runtime.callbacks import CallbackInput, StopRun, former_observers
from fedstill.runtime.identity import check_parts_sendable
from fedstill.runtime.recipes import Recipe, recipe_by
from fedstill.runtime.tracked import TrackInput, tracking_of
from fedstill.studies.executor import Executor, Lesson, executor_maker, executor_size
from fedstill.studies.extensions import PlannedRun, study_figures
from fedstill.studies.grid import GridCell, Value, expand, read_axes
from fedstill.studies.jobs import Place, forget_data
from fedstill.studies.progress_file import ProgressFile
from fedstill.studies.results import Labels, Pupil, ResultRow, Results
from fedstill.studies.results_table import make_table
from fedstill.studies.run_figures import correct_by, figures_of, samples_by_class
from fedstill.studies.scheduler import Scheduler
from fedstill.studies.status import RunStatus
from fedstill.studies.students import expand_students
from fedstill.studies.study_callbacks import StudyCallbacks, study_display
from fedstill.studies.study_estimate import estimate_of
from fedstill.studies.study_plan import StudyPlan, make_study_plan
from fedstill.studies.study_progress import StudyObserver, StudyProgress

STUDENTS = "students."  # what a setting of the second stage begins with
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
        recipe: str | Path | Mapping[str, Any],
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
        self.called = recipe if isinstance(recipe, str) else self.recipe.name
        self.given = given = dict(settings or {})
        self.layers = {"preset": preset, "variant": variant}
        students = self.recipe.students
        own = {key: value for key, value in given.items() if not key.startswith(STUDENTS)}
        theirs = {key.removeprefix(STUDENTS): value for key, value in given.items() if key.startswith(STUDENTS)}
        if students is not None:
            theirs |= {key: own.pop(key) for key in _names(students.grid) & own.keys()}
        elif theirs:
            raise InputError(f"the recipe {self.recipe.name} has no students: leave {min(theirs)!r} out")
        self.grid, self.axes, own = _chosen(self.recipe.grid, own)
        self.teachers = tuple(expand(self.recipe.experiment, self.axes, own))
        self.student_grid, self.student_axes = dict[str, list[Any]](), dict[str, tuple[Value, ...]]()
        self.students: tuple[GridCell, ...] = ()
        if students is not None:
            self.student_grid, self.student_axes, theirs = _chosen(students.grid, theirs)
            self.students = tuple(expand_students(students, self.student_axes, self.teachers, theirs))
        self.settings = {**own, **{f"{STUDENTS}{key}": value for key, value in theirs.items()}}

    def __repr__(self) -> str:
        return f"Study({self.title!r}, {count(len(self.expand()), 'run')})"

    def _repr_html_(self) -> str:
        axes = {**self.axes, **self.student_axes}
        varied = {axis: ", ".join(value.label for value in values) for axis, values in axes.items()}
        runs = count(len(self.expand()), "run")
        return panel(self.title, {**varied, "runs": runs, "command": self.command}, paragraph(self.recipe.about))

    @property
    def title(self) -> str:
        """The recipe's name with its layers, and a trace of the user's own settings, for file names."""
        own = blake2b(json.dumps(self.given, sort_keys=True).encode(), digest_size=3).hexdigest() if self.given else ""
        return "-".join(filter(None, [self.recipe.name, *self.layers.values(), own]))

    @property
    def command(self) -> str:
        """What to type to run it."""
        layers = [f" --{what} {layer}" for what, layer in self.layers.items() if layer]
        settings = [f" --set {shlex.quote(f'{key}={_spelt(value)}')}" for key, value in self.given.items()]
        return f"fedstill study {shlex.quote(self.called)}{''.join(layers)}{''.join(settings)}"

    def expand(self) -> tuple[GridCell, ...]:
        """Every combination as an experiment, in the order written: first those who teach, then their students."""
        return (*self.teachers, *self.students)

    @cached_property
    def study_plan(self) -> StudyPlan:
        """The cells resolved against the data on this machine."""
        which = self.recipe.students.which if self.recipe.students else "last"
        return make_study_plan(self.expand(), self.data_root, self.device, which)

    def run(
        self,
        out: str | Path = "runs",
        *,
        workers: int | None = None,
        retry_failed: bool = False,
        executor: str = "local",
        address: str | None = None,
        callbacks: CallbackInput = (),
        progress: bool | None = None,
        track: TrackInput = None,
        observers: Sequence[StudyObserver] | None = None,
    ) -> Results:
        """Do every run that nobody has done yet; one that fails is recorded, and the rest goes on.

        Runs that failed before are left alone unless `retry_failed`. The executor `local` is this process, or so many
        worker processes; `ray` is the Ray cluster at that address, or a Ray of this study's own. `callbacks` and
        `progress` and `track` are those of `fedstill.study`.
        """
        watching, former, display = StudyCallbacks(callbacks), former_observers(observers), study_display(progress)
        shown: list[StudyObserver] = [] if display is None else [display]
        how: dict[str, Any] = {"workers": workers, "executor": executor, "address": address, "track": track}
        with nullcontext() if display is None else closing(display):
            return watching.watch(
                lambda: self.execute(out, [*shown, watching, *former], retry_failed=retry_failed, **how)
            )

    def execute(
        self,
        out: str | Path,
        observers: Sequence[StudyObserver] = (),
        *,
        workers: int | None = None,
        retry_failed: bool = False,
        executor: str = "local",
        address: str | None = None,
        track: TrackInput = None,
        tell: Callable[[str], None] | None = None,
    ) -> Results:
        """The same with observers; one that raises `StopRun` ends the study early. `tell` hears of failing trackers."""
        hired = executor_maker(executor, workers, address, self.device)
        self.study_plan.check_data()
        if executor == "ray" or executor_size(workers) > 1:
            check_parts_sendable(*(job.experiment for job in self.study_plan.jobs))
        forget_data()
        folder = writable_folder(Path(out))
        observers = [*self._trackers(track, folder, tell), *observers]
        root = None if self.data_root is None else str(self.data_root)
        place = Place(str(folder), root, self.device, OwnParts.here(), self.study_plan.known)
        estimates = estimate_of(self.study_plan, measure=False).seconds
        watched = ProgressFile(folder, self.title, self.recipe.about, self.command)
        with suppress(StopRun), watched, hired(place) as crew:
            progress = StudyProgress(RunStatus(folder), self.study_plan.jobs, crew.size, retry_failed, estimates)
            self._work(crew, progress, [*observers, watched])
        results = self.results(folder)
        fresh_token.renew()
        return results

    def _trackers(self, track: TrackInput, out: Path, tell: Callable[[str], None] | None) -> Iterator[StudyObserver]:
        if (tracking := tracking_of(track, out, tell)) is not None:
            from fedstill.studies.study_tracking import TrackedStudy

            yield TrackedStudy(tracking, self.title)

    def _work(self, crew: Executor, tally: StudyProgress, observers: Sequence[StudyObserver]) -> None:
        """Let the executor run all waiting jobs."""
        for observer in observers:
            observer.start(tally)
        # Fewer teachers than workers: their students are shared out, and a teacher speaks in several places.
        taught = len({job.lesson for job in tally.waiting if job.teacher is not None or job.experiment.teachers})
        board = Scheduler(tally, observers, parts=max(1, crew.size // taught) if taught else 1)

        def told(lesson: Lesson, share: float) -> None:
            tally.halfway.update(dict.fromkeys(lesson, share))
            for observer in observers:
                observer.heard(tally)

        while True:
            while crew.idle and (lesson := board.next()) is not None:
                crew.start(lesson, board.givens(lesson), partial(told, lesson))
            if crew.working:
                board.returned(*crew.hear())
            elif board.elsewhere:
                for observer in observers:
                    observer.waiting(tally, len(board.elsewhere))
                sleep(_PATIENCE)
                board.revisit()
            else:
                break

    def results(self, out: str | Path = "runs") -> Results:
        """What the folder of runs holds of this study so far."""
        ledger, recipe = RunStatus(Path(out)), self.recipe
        stage = self._stage(ledger, self.teachers, recipe.experiment, self.axes, self.grid)
        stage |= {"columns": recipe.columns, "rows": recipe.rows}
        results = Results(recipe.name, recipe.about, **stage, command=self.command)
        students = recipe.students
        if students is None:
            return results
        stage = self._stage(
            ledger,
            self.students,
            students.experiment,
            {**self.axes, **self.student_axes},
            {**self.grid, **self.student_grid},
        )
        stage["source"]["which"] = students.which
        stage |= {"columns": students.columns, "rows": students.rows}
        return replace(results, students=Results(f"{recipe.name}, students", recipe.about, **stage))

    def _stage(
        self,
        ledger: RunStatus,
        cells: Sequence[GridCell],
        experiment: Mapping[str, Any],
        axes: Mapping[str, Sequence[Value]],
        grid: Mapping[str, Sequence[Any]],
    ) -> dict[str, Any]:
        """One stage's part of the results."""
        runs: dict[Labels, ResultRow] = {}
        failures: dict[Labels, str] = {}
        refused: dict[Labels, str] = {}
        joint_errors: dict[Labels, str] = {}
        counts: dict[str, list[int]] = {}
        wanted = set(map(id, cells))
        planned = [
            PlannedRun(tuple(cell.labels.values()), cell.experiment, job)
            for cell, job in self.study_plan.cells
            if job is not None
        ]
        added = [study_figures[name].make(planned) for name in study_figures]
        for number, (cell, job) in enumerate(self.study_plan.cells):
            if id(cell) not in wanted:
                continue
            labels = tuple(cell.labels.values())
            if job is None:
                refused[labels] = self.study_plan.refused[number]
            elif (run := ledger.run(job)) is not None:
                runs[labels] = ResultRow(str(ledger.identity(job)), figures_of(run), correct_by(run), run.made)
                if run.joint_error is not None:
                    joint_errors[labels] = run.joint_error
                for figures in added:
                    more = figures(PlannedRun(labels, cell.experiment, job), run, ledger.run)
                    runs[labels].figures.update(more)
                if job.experiment.data not in counts and (truth := run.test_labels) is not None:
                    counts[job.experiment.data] = samples_by_class(truth, len(run.config["classes"]))
            elif (ended := ledger.failure(job)) is not None:
                (refused if ended.state == "refused" else failures)[labels] = ended.error
        taken = {axis: {cell.labels[axis] for cell in cells} for axis in axes}  # students' `only` may leave some out
        meanings = {
            axis: {one.label: raw for one, raw in zip(values, grid[axis], strict=True) if one.label in taken[axis]}
            for axis, values in axes.items()
        }
        source = {"experiment": dict(experiment), "settings": self.settings}
        return {
            "source": source,
            "axes": meanings,
            "runs": runs,
            "failures": failures,
            "refused": refused,
            "joint_errors": joint_errors,
            "test_counts": counts,
            "pupils": {
                tuple(cell.labels.values()): Pupil(cell.taught, cell.experiment.data, str(cell.experiment.model))
                for cell in cells
                if cell.taught is not None
            },
        }

    def identities(self, out: str | Path = "runs") -> list[dict[Labels, str | None]]:
        """Stage by stage the identity of every cell's run, by labels; a student's only once its teacher is there."""
        ledger = RunStatus(Path(out))
        stages: list[dict[Labels, str | None]] = [{}, {}]
        for cell, job in self.study_plan.cells:
            stage = stages[cell.teacher is not None]
            stage[tuple(cell.labels.values())] = None if job is None else ledger.identity(job)
        return stages

    def table(self, out: str | Path = "runs", metric: str = "accuracy") -> Table:
        """The results so far as a table of one metric."""
        return make_table(self.results(out), metric)


def _chosen(
    grid: Mapping[str, Sequence[Any]], settings: Mapping[str, Any]
) -> tuple[dict[str, list[Any]], dict[str, tuple[Value, ...]], dict[str, Any]]:
    """The grid, its axes, and the settings that are left: one that the grid varies takes the place of its axis.

    A value that the grid gives a label can be named by it.
    """
    values, left = {axis: list(listed) for axis, listed in grid.items()}, dict(settings)
    for axis in values:
        if (key := axis.removesuffix("?")) not in left:
            continue
        chosen = left.pop(key)
        called = {one["label"]: one for one in values[axis] if isinstance(one, Mapping) and "label" in one}
        wanted = chosen if isinstance(chosen, list) else [chosen]
        values[axis] = [called.get(value, value) if isinstance(value, str) else value for value in wanted]
        if not values[axis]:
            raise InputError(f"the setting {axis!r} is an empty list, so nothing would be run")
    return {axis.removesuffix("?"): listed for axis, listed in values.items()}, read_axes(values), left


def _spelt(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _names(grid: Mapping[str, Any]) -> set[str]:
    return {axis.removesuffix("?") for axis in grid}


def study(
    recipe: str | Path | Mapping[str, Any],
    *,
    out: str | Path = "runs",
    workers: int | None = None,
    executor: str = "local",
    address: str | None = None,
    preset: str | None = None,
    variant: str | None = None,
    plugins: Sequence[str | Path] = (),
    data_root: str | Path | None = None,
    device: str = "cpu",
    retry_failed: bool = False,
    callbacks: CallbackInput = (),
    progress: bool | None = None,
    track: TrackInput = None,
    observers: Sequence[StudyObserver] | None = None,
    **settings: Any,
) -> Results:
    """Run a grid of experiments, or resume it; finished runs, of any study, are reused.

    Of `callbacks` the hooks `on_progress`, `on_run`, `on_failure`, `on_note`, `on_finish` and `on_error` are called,
    and a function with the labels and the `Run` of each run that is finished. `progress` shows a progress bar: unless
    set, in notebooks only. `track` is as in `fedstill.run`: each run is handed over when it has ended, all as a group.
    `observers` is deprecated.

    >>> import fedstill
    >>> tiny = {"data": "digits", "model": "mlp", "clients": 2, "rounds": 1}
    >>> recipe = {"experiment": tiny, "grid": {"method": ["fedavg", "fedprox"]}}
    >>> results = fedstill.study(recipe, out=getfixture("tmp_path"), workers=1)
    >>> sorted(results.runs)
    [('fedavg',), ('fedprox',)]
    """
    made = Study(recipe, settings, preset=preset, variant=variant, plugins=plugins, data_root=data_root, device=device)
    return made.run(
        out,
        workers=workers,
        retry_failed=retry_failed,
        executor=executor,
        address=address,
        callbacks=callbacks,
        progress=progress,
        track=track,
        observers=observers,
    )
