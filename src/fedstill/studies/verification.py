"""`fedstill verify`: whether runs and results files are what was computed, by their digests or by computing again."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedstill.core.cpu import cpu_kind
from fedstill.core.errors import FedstillError, InputError
from fedstill.core.files import read_json
from fedstill.core.plugins import use_plugins
from fedstill.core.streams import Streams
from fedstill.distillation import objectives
from fedstill.runtime.assemble import assignments
from fedstill.runtime.digests import JOURNAL, RESULT
from fedstill.runtime.launch import launch
from fedstill.runtime.result import Run
from fedstill.runtime.run_verification import Contradiction, Verified, verify_run
from fedstill.studies.results import Labels, Pupil, ResultRow, Results, load_results
from fedstill.studies.run_figures import figures_of
from fedstill.studies.study import Study

_log = logging.getLogger(__name__)
_NOT_COMPARED = ("seconds",)  # which no two runs have in common


def verify(
    source: str | Path | Run,
    *,
    runs: str | Path | None = None,
    rerun: int = 0,
    seed: int = 0,
    data_root: str | Path | None = None,
    plugins: Sequence[str | Path] = (),
) -> list[Verified]:
    """Check a run, a study's results file, or a folder with any number of both.

    Digests and numbers that must agree are compared, and what differs is named. `runs` is the folder with the runs of a
    results file. `rerun` repeats so many runs, drawn at random by `seed`, and compares their bits. Digests notice
    accidents and careless edits, not a forger, who would write new ones; only `rerun` notices that.

    >>> import fedstill
    >>> made = fedstill.run("fedavg", data="digits", rounds=1, clients=2, out=getfixture("tmp_path"))
    >>> [one.ok for one in fedstill.verify(made)]
    [True]
    """
    use_plugins(plugins)
    path = source.path if isinstance(source, Run) else Path(source)
    root = None if data_root is None else Path(data_root)
    folder = None if runs is None else Path(runs)
    found = [_verified(one, folder) for one in _sources(path)]
    return _repeated(found, rerun, seed, root) if rerun else found


def _sources(path: Path) -> list[Path]:
    """The runs and results files that are meant."""
    if path.suffix == ".json" and path.is_file():
        return [path]
    if (path / "config.json").is_file():
        return [path]
    if not path.is_dir():
        raise InputError(f"there is nothing at {path}: name a run, a results file (.json) or a folder of them")
    found = [config.parent for config in sorted(path.glob("*/config.json"))]
    found += [file for file in sorted(path.glob("*.json")) if "study" in (read_json(file) or {})]
    if not found:
        raise InputError(f"there is neither a run nor a results file in {path}")
    return found


def _verified(path: Path, runs: Path | None) -> Verified:
    return verify_run(path) if path.is_dir() else _verify_results(path, runs)


def _verify_results(path: Path, runs: Path | None) -> Verified:
    """Check a results file in itself and, where they are here, against its runs."""
    try:
        results = load_results(path)
    except InputError as error:
        return Verified(path, (Contradiction(path.name, "", str(error).removeprefix(f"{path} ")),))
    found: list[Contradiction] = []
    compared = 0
    folder = runs if runs is not None else path.parent
    for stage in _stages(results):
        for cell, row in stage.runs.items():
            at = _folder_of(row, folder)
            if at is not None:
                compared += 1
                found += _against_run(path, cell, row, stage.pupils.get(cell), at)
                found += [replace(one, file=f"{at.name}/{one.file}") for one in verify_run(at).contradictions]
    total = sum(len(stage.runs) for stage in _stages(results))
    stale = dict.fromkeys(why for stage in _stages(results) for why in stage.stale().values())
    notes = [f"{compared} of its {total} runs are in {folder}, and were compared"]
    return Verified(path, tuple(found), tuple(notes), tuple(stale), total)


def _stages(results: Results) -> Iterator[Results]:
    yield results
    if results.students is not None:
        yield results.students


def _folder_of(row: ResultRow, folder: Path) -> Path | None:
    found = next(iter(folder.glob(f"*-{row.identity}/config.json")), None)
    return None if found is None else found.parent


def _against_run(path: Path, cell: Labels, row: ResultRow, pupil: Pupil | None, at: Path) -> Iterator[Contradiction]:
    try:
        run = Run(at)
    except InputError as error:  # which is found in the run itself
        _log.info("%s is not compared with %s: %s", path, at, error)
        return
    yield from row_contradictions(path, cell, row, run, pupil)


def row_contradictions(
    path: Path, cell: Labels, row: ResultRow, run: Run, pupil: Pupil | None = None
) -> Iterator[Contradiction]:
    """What a row of a results file says that its run does not."""
    if not run.finished:
        yield Contradiction(path.name, ", ".join(cell), f"its run {run.path.name} has no result")
        return
    if pupil is not None:
        yield from _otherwise_taught(path, cell, pupil, run)
    try:
        figures = figures_of(run)
    except FedstillError as error:  # what is wrong with the run itself is found there
        _log.info("%s is not compared with %s: %s", path, run.path, error)
        return
    yield from _differences(path, cell, row, figures, f"the run {run.path.name}")


def _otherwise_taught(path: Path, cell: Labels, pupil: Pupil, run: Run) -> Iterator[Contradiction]:
    """A student's objective and labels by the results file that are not those of its run's configuration.

    Without a weight of the labels, a student and its label-free control are one run.
    """
    chosen, mode = run.experiment.objective, getattr(run.experiment.method.settings, "labels", None)
    if chosen is None or chosen.name not in objectives:
        return
    weight = objectives[chosen.name](chosen.settings).hard_label_weight
    taught, called = pupil.taught, ", ".join(cell)
    if taught.objective != chosen.name:
        said = f"it says {taught.objective!r}, and the run {run.path.name} {chosen.name!r}"
        yield Contradiction(path.name, f"objective of {called}", said)
    elif taught.hard_label_weight != weight:
        said = f"it says {taught.hard_label_weight:g}, and the objective of the run {run.path.name} has {weight:g}"
        yield Contradiction(path.name, f"weight of the labels of {called}", said)
    elif weight and mode is not None and (taught.labels == "use") != (mode == "use"):
        said = f"it says {taught.labels!r}, and the run {run.path.name} {mode!r}"
        yield Contradiction(path.name, f"labels of {called}", said)


def _differences(
    path: Path, cell: Labels, row: ResultRow, figures: dict[str, float | None], whose: str
) -> Iterator[Contradiction]:
    for name, value in figures.items():
        if name not in _NOT_COMPARED and row.figures.get(name) != value:
            says = f"it says {row.figures.get(name)!r}, and {whose} {value!r}"
            yield Contradiction(path.name, f"{name} of {', '.join(cell)}", says)


# Computing again


def _repeated(found: Sequence[Verified], count: int, seed: int, data_root: Path | None) -> list[Verified]:
    """The same with what repeating some of the runs has shown."""
    candidates = [(number, cell) for number, one in enumerate(found) for cell in _repeatable(one.path) if one.ok]
    order = Streams(seed).draw("verify").permutation(len(candidates))
    repeated = list(found)
    for number, cell in (candidates[place] for place in order[:count]):
        one = repeated[number]
        if one.path.is_dir():
            more, note = _repeat_run(one.path, data_root)
        else:
            assert cell is not None
            more, note = _repeat_cell(one.path, cell, data_root)
        repeated[number] = replace(one, contradictions=(*one.contradictions, *more), notes=(*one.notes, note))
    return repeated


def _repeatable(path: Path) -> list[tuple[int, Labels] | None]:
    """A run, or the cells of a results file by stage."""
    if path.is_dir():
        return [None] if (path / RESULT).exists() else []
    return [(number, cell) for number, stage in enumerate(_stages(load_results(path))) for cell in stage.runs]


def _elsewhere(cpu: str) -> str:
    """A warning where bits cannot be compared here."""
    return "" if cpu in ("", cpu_kind()) else f", which was made on another kind of processor ({cpu})"


def _repeat_run(path: Path, data_root: Path | None) -> tuple[list[Contradiction], str]:
    before = Run(path)
    if other := _elsewhere(before.made.cpu):
        return [], f"{path.name} was not repeated{other}: bits may differ here"
    with TemporaryDirectory() as folder:
        again = launch(before.experiment, out=Path(folder), data_root=data_root)
        found = []
        if again.sha256 != before.sha256:
            found.append(Contradiction(RESULT, "sha256", f"repeated, the run gives {again.sha256}"))
        if (again.path / JOURNAL).read_bytes() != (path / JOURNAL).read_bytes():
            found.append(Contradiction(JOURNAL, "", "repeated, the run gives other rounds"))
        if again.path.name != path.name:
            found.append(Contradiction("config.json", "identity", f"repeated, the run is called {again.path.name}"))
    return found, f"{path.name} was repeated, {'with other results' if found else 'to the same bits'}"


def _repeat_cell(path: Path, cell: tuple[int, Labels], data_root: Path | None) -> tuple[list[Contradiction], str]:
    """Do one cell of a study again, with its teacher where it has one."""
    stage, labels = cell
    results = load_results(path)
    row = list(_stages(results))[stage].runs[labels]
    called = ", ".join(labels)
    if other := _elsewhere(row.made.cpu):
        return [], f"{called} was not repeated{other}: bits may differ here"
    axes = list(list(_stages(results))[stage].axes)
    study = study_of(results.command, dict(zip(axes, labels, strict=True)), data_root)
    with TemporaryDirectory() as folder:
        again = list(_stages(study.run(folder)))[stage].runs.get(labels)
    if again is None:
        return [], f"{called} could not be repeated: the study gives no such run today"
    found = list(_differences(path, labels, row, again.figures, "repeated, the run gives"))
    found += [
        Contradiction(path.name, f"correct.{which} of {called}", "repeated, the run gives other answers")
        for which, bits in again.correct.items()
        if row.correct.get(which) != bits
    ]
    if found and not row.made.cpu:
        what = f"{found[0].field.partition(' of ')[0]}: {found[0].says}"
        why = "may be due to the processor: the file does not name the kind that it was made on"
        return [], f"{called} was repeated with other results ({what}), which {why}"
    return found, f"{called} was repeated, {'with other results' if found else 'to the same figures and answers'}"


def study_of(command: str, labels: dict[str, str], data_root: Path | None = None) -> Study:
    """The study that a results file was made by, with nothing but the cells of these labels.

    >>> [str(cell) for cell in study_of("fedstill study clinical-grid --preset tiny", {"method": "fedavg"}).teachers]
    ['fedavg, seed 7']
    """
    words = shlex.split(command)
    if words[:2] != ["fedstill", "study"] or len(words) < 3:
        raise InputError(f"the results do not say which study made them (command: {command!r})")
    flags = list(zip(words[3::2], words[4::2], strict=False))
    preset, variant = (dict(flags).get(flag) for flag in ("--preset", "--variant"))
    given: dict[str, Any] = dict(assignments(value for flag, value in flags if flag == "--set"))
    whole = Study(words[2], given, preset=preset, variant=variant, data_root=data_root)
    for axis, label in labels.items():
        grid, axes = (whole.grid, whole.axes) if axis in whole.grid else (whole.student_grid, whole.student_axes)
        given[axis] = [raw for raw, one in zip(grid[axis], axes[axis], strict=True) if one.label == label]
    return Study(words[2], given, preset=preset, variant=variant, data_root=data_root)
