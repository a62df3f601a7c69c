"""`fedstill study`: a grid of experiments, from its plan to its table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedstill.cli.screen import console, errors, print_json, print_table, table
from fedstill.cli.study_progress import StudyDisplay
from fedstill.core.errors import InputError, RunError
from fedstill.core.files import write_atomically
from fedstill.core.numbers import count, duration
from fedstill.runtime.assemble import assignments
from fedstill.studies import Results, Study, Table, load_results, make_table
from fedstill.studies.executor import check_executor, executor_size
from fedstill.studies.extensions import table_for
from fedstill.studies.grid import called
from fedstill.studies.progress import StudyProgress
from fedstill.studies.results import Labels
from fedstill.studies.status import RunStatus
from fedstill.studies.table import check_metric


@dataclass(frozen=True)
class Wanted:
    """What a study should leave behind: tables of which metrics, and files.

    Without a metric it is accuracy; of clients' queries there is a table of their own, with or without others.
    """

    metrics: Sequence[str]
    table: Path | None
    results: Path | None
    as_json: bool
    quiet: bool


def assemble(
    recipe: str,
    preset: str | None,
    variant: str | None,
    settings: Sequence[str],
    plugins: Sequence[Path],
    data_root: Path | None,
    device: str,
) -> Study:
    """The study; a list in JSON replaces all values of an axis."""
    return Study(
        recipe,
        dict(assignments(settings)),
        preset=preset,
        variant=variant,
        plugins=plugins,
        data_root=data_root,
        device=device,
    )


def run(
    study: Study,
    out: Path,
    workers: int | None,
    retry_failed: bool,
    wanted: Wanted,
    executor: str = "local",
    address: str | None = None,
    say: bool = True,
) -> None:
    older = _check(wanted)
    if older is not None:
        study.results(out).extended(older, *study.identities(out))  # refused now if they do not belong together
    display = StudyDisplay(wanted.quiet or wanted.as_json)
    try:
        results = study.run(
            out, workers=workers, retry_failed=retry_failed, observers=[display], executor=executor, address=address
        )
    finally:
        display.close()
    _leave(study, results, older, out, wanted, say)
    failures = {**results.failures, **(results.students.failures if results.students else {})}
    if failures:
        _complain(results, failures, len(study.expand()), wanted.as_json)


def show_results(file: Path, wanted: Wanted) -> None:
    """Draw the tables of a results file again, without any runs."""
    _check(Wanted(wanted.metrics, wanted.table, None, wanted.as_json, wanted.quiet))
    _tell(load_results(file), wanted)


def show_plan(
    study: Study,
    out: Path,
    workers: int | None,
    retry_failed: bool,
    wanted: Wanted,
    executor: str = "local",
    address: str | None = None,
) -> None:
    """What would be run; data that is not here is said, and is no error. Nothing is written.

    A cluster is not asked for its size: without `workers` the time left is that of this machine's cores.
    """
    check_executor(executor, address, study.device)
    size = executor_size(workers, executor, cores=workers if address else None)
    _check(wanted)
    study_plan = study.study_plan
    tally = StudyProgress(RunStatus(out), study_plan.jobs, size, retry_failed)
    counts = {
        "experiments": len(study_plan.cells),
        "runs": tally.total,
        "done": tally.done,
        "failed": len(tally.failures),
    }
    left = tally.seconds_left()
    if wanted.as_json:
        cells = [
            {"cell": cell.labels, "experiment": cell.experiment.model_dump(mode="json")} for cell in study.expand()
        ]
        print_json(
            {"study": study.recipe.name, **counts, "seconds_left": left, "missing": study_plan.missing, "cells": cells}
        )
    else:
        axes = {**study.axes, **study.student_axes}
        rows = [(axis, str(len(values)), ", ".join(v.label for v in values)) for axis, values in axes.items()]
        table("", ("varied", "values", ""), rows, right=(1,))
        same = counts["experiments"] - counts["runs"]
        told = [f"{counts['experiments']} experiments"] if same else []
        if study.students:
            taught = sum(job.teacher is not None for job in study_plan.jobs)
            told.append(f"{counts['runs'] - taught} runs without a teacher and {taught} students")
        told += [f"{counts['runs']} runs", f"{counts['done']} done", f"{counts['failed']} failed"]
        console.print(f"\n{study.recipe.name}: {', '.join(told)}")
        if left is not None and tally.waiting:
            console.print(f"about {duration(left)} left with {count(size, 'worker')}")
        for sentence in study_plan.missing.values():
            console.print(f"cannot run here: {sentence}")


def _check(wanted: Wanted) -> Results | None:
    """Refuse what could not be written at the end; gives the results that the file holds already."""
    for metric in wanted.metrics:
        check_metric(metric)
    for path in (wanted.table, wanted.results):
        if path is not None and (path.is_dir() or not _folder_above(path).is_dir()):
            raise InputError(f"cannot write {path}: it is a folder, or below something that is none")
    return load_results(wanted.results) if wanted.results is not None and wanted.results.exists() else None


def _folder_above(path: Path) -> Path:
    """The nearest folder above that exists."""
    return next(parent for parent in path.absolute().parents if parent.exists())


def _leave(
    study: Study,
    results: Results,
    older: Results | None,
    out: Path,
    wanted: Wanted,
    say: bool,
) -> None:
    kept = [out / f"{study.title}.json"] if results.students is not None or table_for(results) else []
    for file in kept:
        results.save(file)  # what an audit and a report are made from
    if wanted.results is not None:
        if older is not None:
            results = results.extended(older, *study.identities(out))
        results.save(wanted.results)
        kept.append(wanted.results)
    _tell(results, wanted, say)
    if say and not wanted.as_json:
        written = [*kept, *([] if wanted.table is None else [wanted.table])]
        where = f"; written: {', '.join(map(str, written))}" if written else ""
        console.print(f"the runs are in {out}{where}", soft_wrap=True)


def _tell(results: Results, wanted: Wanted, say: bool = True) -> None:
    stages = [stage for stage in (results, results.students) if stage is not None]
    asked = [(stage, metric) for stage in stages for metric in _metrics(stage, wanted.metrics)]
    tables = [make_table(stage, metric) for stage, metric in asked]
    own = table_for(results)
    answers = None if own is None else own.make(results)
    if wanted.table is not None:
        text = "\n".join(made.markdown() for made in [*tables, *([] if answers is None else [answers])])
        wanted.table.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(wanted.table, text.encode())
    if not say:
        return
    if wanted.as_json:
        print_json(_summary(results, wanted.metrics))
        return
    for made, (stage, metric) in zip(tables, asked, strict=True):
        fitting = made if made.width <= console.width else make_table(stage, metric, long=True)
        console.print(f"{fitting.caption}\n")
        _draw(fitting)
    if own is not None and answers is not None:
        console.print(f"{answers.caption}\n")
        if answers.width <= console.width:
            _draw(answers)
            return
        for labels, part in own.make_parts(results).items():
            console.print(", ".join(labels), style="bold")
            _draw(part)


def _draw(made: Table) -> None:
    print_table(made)
    console.print()


def _metrics(stage: Results, chosen: Sequence[str]) -> Sequence[str]:
    return chosen or ([] if table_for(stage) else ["accuracy"])


def _summary(results: Results, metrics: Sequence[str]) -> dict[str, Any]:
    axes = list(results.axes)
    runs = [
        {"cell": dict(zip(axes, cell, strict=True)), "identity": row.identity, **row.figures}
        for cell, row in results.runs.items()
    ]
    failures = [
        {"cell": dict(zip(axes, cell, strict=True)), "error": error} for cell, error in results.failures.items()
    ]
    refused = [{"cell": dict(zip(axes, cell, strict=True)), "why": why} for cell, why in results.refused.items()]
    summary: dict[str, Any] = {
        "study": results.study,
        "axes": results.axes,
        "runs": runs,
        "failures": failures,
        "refused": refused,
        "tables": {metric: make_table(results, metric).markdown() for metric in _metrics(results, metrics)},
    }
    if (own := table_for(results)) is not None and (made := own.make(results)) is not None:
        summary["tables"][own.name] = made.markdown()
    return summary if results.students is None else {**summary, "students": _summary(results.students, metrics)}


def _complain(results: Results, failures: Mapping[Labels, str], total: int, as_json: bool) -> None:
    """A line for every experiment that failed (with --json they are in the object), and a sentence to end with."""
    if not as_json:
        axes = [*(results.students or results).axes]
        for cell, error in failures.items():
            labels = called(dict(zip(axes, cell, strict=False)))
            errors.print(f"failed: {labels or results.study}: {error}", soft_wrap=True)
    raise RunError(f"{len(failures)} of {total} experiments failed: see to the reason, then add --retry-failed")
