"""`fedstill study`: a grid of experiments, from its plan to its table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedstill.cli.options import (
    Device,
    DryRun,
    Json,
    Out,
    Plugin,
    Preset,
    Quiet,
    Root,
    Set,
    Track,
    Variant,
    named,
    one_of,
)
from fedstill.cli.screen import CANNOT_RUN, console, errors, print_json, print_table, table
from fedstill.core.errors import InputError, RunError
from fedstill.core.files import write_atomically
from fedstill.core.numbers import count, duration

if TYPE_CHECKING:  # help need not wait for torch
    from fedstill.studies import Results, Study, Table
    from fedstill.studies.results import Labels
    from fedstill.studies.study_progress import StudyProgress

_OF_RESULTS = {"recipe", "metric", "table", "quiet", "json"}  # options that count where a results file is drawn again


@dataclass(frozen=True)
class StudyOutput:
    """What a study should leave behind: tables of which metrics, and files.

    Without a metric it is accuracy; of clients' queries there is a table of their own, with or without others.
    """

    metrics: Sequence[str]
    table: Path | None
    results: Path | None
    as_json: bool
    quiet: bool
    prints: bool = True


def study(
    context: typer.Context,
    recipe: Annotated[
        str,
        typer.Argument(
            help="A recipe, a recipe file, or a results file (.json) to show again.", autocompletion=named("studies")
        ),
    ],
    seed: Annotated[list[int] | None, typer.Option(help="Seed to use instead of the recipe's; repeatable.")] = None,
    set_: Set = None,
    out: Out = Path("runs"),
    workers: Annotated[
        int | None, typer.Option(help="Number of worker processes, at most one per core; default: 1, on Ray all cores.")
    ] = None,
    executor: Annotated[
        str, typer.Option(help="local, or ray for several machines.", autocompletion=one_of("local", "ray"))
    ] = "local",
    address: Annotated[str | None, typer.Option(help="Ray cluster: HOST:PORT or auto; default: start one.")] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            help="Metric in the table, e.g. accuracy, best or personal; repeatable.", autocompletion=named("metrics")
        ),
    ] = None,
    table: Annotated[Path | None, typer.Option(help="File for the table, as Markdown.")] = None,
    results: Annotated[Path | None, typer.Option(help="File for all figures (.json); extended if it exists.")] = None,
    data_root: Root = None,
    device: Device = "cpu",
    preset: Preset = None,
    variant: Variant = None,
    plugin: Plugin = None,
    track: Track = None,
    dry_run: DryRun = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Repeat the runs that failed before.")] = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Run a grid of experiments, or resume it, and show its table."""
    output = StudyOutput(metric or [], table, results, json, quiet)
    if recipe.endswith(".json"):
        _refuse_unused(context)
        _show_results(Path(recipe), output)
        return
    from fedstill.runtime.assemble import assignments
    from fedstill.runtime.tracked import check_track
    from fedstill.studies import Study

    settings = [*(set_ or []), *([f"seed={list(seed)}"] if seed else [])]
    made = Study(
        recipe,
        dict(assignments(settings)),  # a list in JSON replaces all values of an axis
        preset=preset,
        variant=variant,
        plugins=plugin or [],
        data_root=data_root,
        device=device,
    )
    if dry_run:
        check_track(track)
        _show_plan(made, out, workers, retry_failed, output, executor, address)
    else:
        run_and_show(made, out, workers, retry_failed, output, executor, address, track)


def _refuse_unused(context: typer.Context) -> None:
    """Refuse options that would change nothing where a results file is drawn again."""
    for one in context.command.params:
        source = context.get_parameter_source(one.name or "")
        if one.name not in _OF_RESULTS and source is not None and source.name == "COMMANDLINE":
            raise InputError(f"a results file is only drawn again: leave {one.opts[0]} out, or name the recipe")


def run_and_show(
    study: Study,
    out: Path,
    workers: int | None,
    retry_failed: bool,
    output: StudyOutput,
    executor: str = "local",
    address: str | None = None,
    track: Sequence[str] | None = None,
) -> None:
    """Run a study with live progress, write its files, and print its tables."""
    from fedstill.cli.progress import StudyDisplay

    older = _check(output)
    if older is not None:
        study.results(out).extended(older, *study.identities(out))  # refused now if they do not belong together
    display = StudyDisplay(output.quiet or output.as_json)
    if not display.quiet:
        _show_estimate(study, out)
    try:
        results = study.execute(
            out,
            [display],
            workers=workers,
            retry_failed=retry_failed,
            executor=executor,
            address=address,
            track=track,
            tell=display.warn,
        )
    finally:
        display.close()
    _write_and_print(study, results, older, out, output)
    failures = {**results.failures, **(results.students.failures if results.students else {})}
    if failures:
        _report_failures(results, failures, len(study.expand()), output.as_json)


def _show_estimate(study: Study, out: Path) -> None:
    """Of the runs that are left; a step that was not measured yet is where somebody looks at a terminal."""
    from fedstill.cli.measuring_bar import measuring_bar
    from fedstill.studies.status import RunStatus
    from fedstill.studies.study_estimate import estimate_of

    if study.study_plan.missing:
        return
    status = RunStatus(out)
    left = [job for job in study.study_plan.jobs if status.run(job) is None]
    with measuring_bar() as tell:
        estimate = estimate_of(study.study_plan, measure=errors.is_terminal, tell=tell)
    if text := estimate.text(left):
        errors.print(text, soft_wrap=True)


def _show_results(file: Path, output: StudyOutput) -> None:
    """Draw the tables of a results file again, without any runs."""
    from fedstill.studies import load_results

    _check(replace(output, results=None))
    _print_tables(load_results(file), output)


def _show_plan(
    study: Study,
    out: Path,
    workers: int | None,
    retry_failed: bool,
    output: StudyOutput,
    executor: str,
    address: str | None,
) -> None:
    """What would be run; missing data is reported and is no error. Nothing is written.

    A cluster is not asked for its size: without `workers` the time left is that of this machine's cores.
    """
    from fedstill.cli.measuring_bar import measuring_bar
    from fedstill.studies.executor import check_executor, executor_size
    from fedstill.studies.status import RunStatus
    from fedstill.studies.study_estimate import estimate_of
    from fedstill.studies.study_progress import StudyProgress

    check_executor(executor, address, study.device)
    size = executor_size(workers, executor, cores=workers if address else None)
    _check(output)
    missing = study.study_plan.missing
    with measuring_bar() as tell:
        estimate = estimate_of(study.study_plan, measure=True, tell=tell)
    progress = StudyProgress(RunStatus(out), study.study_plan.jobs, size, retry_failed, estimate.seconds)
    left_to_do = [*progress.waiting]
    if output.as_json:
        cells = [
            {"cell": cell.labels, "experiment": cell.experiment.model_dump(mode="json")} for cell in study.expand()
        ]
        left = progress.seconds_left()
        counts = _counts(study, progress)
        known = [estimate.seconds[job] for job in left_to_do if job in estimate.seconds]
        costs = {"core_seconds": sum(known) if known else None, "memory": estimate.memory or None}
        costs["not_estimated"] = len(left_to_do) - len(known)
        about = {"seconds_left": left, "estimate": costs, "missing": missing, "cells": cells}
        print_json({"study": study.recipe.name, **counts, **about})
    else:
        _print_plan(study, progress, size)
        if text := estimate.text(left_to_do):
            console.print(text, soft_wrap=True)
    if missing:
        raise typer.Exit(2)


def _counts(study: Study, progress: StudyProgress) -> dict[str, int]:
    return {
        "experiments": len(study.study_plan.cells),
        "runs": progress.total,
        "done": progress.done,
        "failed": len(progress.failures),
    }


def _print_plan(study: Study, progress: StudyProgress, workers: int) -> None:
    axes = {**study.axes, **study.student_axes}
    rows = [(axis, str(len(values)), ", ".join(v.label for v in values)) for axis, values in axes.items()]
    table("", ("varied", "values", ""), rows, right=(1,))
    counts = _counts(study, progress)
    parts = [f"{counts['experiments']} experiments"] if counts["experiments"] - counts["runs"] else []
    if study.students:
        taught = sum(job.teacher is not None for job in study.study_plan.jobs)
        parts.append(f"{counts['runs'] - taught} runs without a teacher and {taught} students")
    parts += [f"{counts['runs']} runs", f"{counts['done']} done", f"{counts['failed']} failed"]
    console.print(f"\n{study.recipe.name}: {', '.join(parts)}")
    left = progress.seconds_left()
    if left is not None and progress.waiting:
        console.print(f"about {duration(left)} left with {count(workers, 'worker')}")
    for sentence in study.study_plan.missing.values():
        console.print(f"{CANNOT_RUN}: {sentence}")


def _check(output: StudyOutput) -> Results | None:
    """Refuse what could not be written at the end; gives the results that the file holds already."""
    from fedstill.studies import load_results
    from fedstill.studies.results_table import check_metric

    for metric in output.metrics:
        check_metric(metric)
    for path in (output.table, output.results):
        if path is not None and (path.is_dir() or not _folder_above(path).is_dir()):
            raise InputError(f"cannot write {path}: it is a folder, or below something that is none")
    return load_results(output.results) if output.results is not None and output.results.exists() else None


def _folder_above(path: Path) -> Path:
    """The nearest folder above that exists."""
    return next(parent for parent in path.absolute().parents if parent.exists())


def _write_and_print(
    study: Study,
    results: Results,
    older: Results | None,
    out: Path,
    output: StudyOutput,
) -> None:
    from fedstill.studies.extensions import table_for

    kept = [out / f"{study.title}.json"] if results.students is not None or table_for(results) else []
    for file in kept:
        results.save(file)  # what an audit and a report are made from
    if output.results is not None:
        if older is not None:
            results = results.extended(older, *study.identities(out))
        results.save(output.results)
        kept.append(output.results)
    _print_tables(results, output)
    if output.prints and not output.as_json:
        written = [*kept, *([] if output.table is None else [output.table])]
        where = f"; written: {', '.join(map(str, written))}" if written else ""
        console.print(f"the runs are in {out}{where}", soft_wrap=True)


def _print_tables(results: Results, output: StudyOutput) -> None:
    from fedstill.studies import make_table
    from fedstill.studies.extensions import table_for

    stages = [stage for stage in (results, results.students) if stage is not None]
    chosen = [(stage, metric) for stage in stages for metric in _metrics(stage, output.metrics)]
    tables = [make_table(stage, metric) for stage, metric in chosen]
    own = table_for(results)
    answers = None if own is None else own.make(results)
    if output.table is not None:
        text = "\n".join(made.markdown() for made in [*tables, *([] if answers is None else [answers])])
        output.table.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(output.table, text.encode())
    if not output.prints:
        return
    if output.as_json:
        print_json(_summary(results, output.metrics))
        return
    for made, (stage, metric) in zip(tables, chosen, strict=True):
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
    if made.note:
        console.print(f"\n{made.note}", soft_wrap=True)
    console.print()


def _metrics(stage: Results, chosen: Sequence[str]) -> Sequence[str]:
    from fedstill.studies.extensions import table_for

    return chosen or ([] if table_for(stage) else ["accuracy"])


def _summary(results: Results, metrics: Sequence[str]) -> dict[str, Any]:
    from fedstill.studies import make_table
    from fedstill.studies.extensions import table_for

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
        "joint_errors": [
            {"cell": dict(zip(axes, cell, strict=True)), "error": error} for cell, error in results.joint_errors.items()
        ],
        "tables": {metric: make_table(results, metric).markdown() for metric in _metrics(results, metrics)},
    }
    if (own := table_for(results)) is not None and (made := own.make(results)) is not None:
        summary["tables"][own.name] = made.markdown()
    return summary if results.students is None else {**summary, "students": _summary(results.students, metrics)}


def _report_failures(results: Results, failures: Mapping[Labels, str], total: int, as_json: bool) -> None:
    """A line for every experiment that failed (with --json they are in the object), and a sentence to end with."""
    from fedstill.studies.grid import called

    if not as_json:
        axes = [*(results.students or results).axes]
        for cell, error in failures.items():
            labels = called(dict(zip(axes, cell, strict=False)))
            errors.print(f"failed: {labels or results.study}: {error}", soft_wrap=True)
    raise RunError(f"{len(failures)} of {total} experiments failed: see to the reason, then add --retry-failed")
