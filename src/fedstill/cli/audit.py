"""`fedstill audit`: an audit's tables and findings, narrow enough for 80 columns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING, Annotated

import typer

from fedstill.cli.options import Device, Html, Json, OneData, Plugin, Quiet, Root, named, one_of, run_folders
from fedstill.cli.screen import console, errors, print_json, print_page, table
from fedstill.core.errors import InputError
from fedstill.core.numbers import MISSING

if TYPE_CHECKING:  # help need not wait for these
    from fedstill.audit.evidence import Evidence
    from fedstill.audit.verdicts import Audit, Interval, PairVerdict

DELTA_POINTS = 5.0
CONDITION_MET = 3  # exit code: the audit was done, and found what --fail-on names
FEW = 16  # pairs that are shown without --all
SHORT = {"masked by pattern": "masked", "tracks its teacher": "tracks", "unclear": "unclear"}
HOW = {"both": "", "seeds": "+", "samples": "*", "none": "?"}


def audit(
    source: Annotated[
        Path,
        typer.Argument(
            help="A study's results (.json) or folder, a run's folder, or a table of other software (.csv or .json).",
            metavar="SOURCE",
            autocompletion=run_folders,
        ),
    ],
    delta: Annotated[
        float, typer.Option(help="Differences below this many percentage points are ignored.")
    ] = DELTA_POINTS,
    class_counts: Annotated[
        str | None, typer.Option(help="Test samples per class, e.g. 100,50,20, or a CSV file with a column count.")
    ] = None,
    classes: Annotated[int | None, typer.Option(help="Number of classes, if all have the same size.")] = None,
    unit: Annotated[
        str,
        typer.Option(
            help="Unit of a table's accuracies: percent, share, or auto (by their values).",
            autocompletion=one_of("auto", "percent", "share"),
        ),
    ] = "auto",
    fail_on: Annotated[
        list[str] | None,
        typer.Option(
            help="Exit with code 3 if found: masked, serious, warning, or a topic; repeatable.",
            autocompletion=named("findings"),
        ),
    ] = None,
    html: Html = None,
    summary: Annotated[Path | None, typer.Option(help="Also write one page for a reviewer, in Markdown (.md).")] = None,
    data: OneData = None,
    data_root: Root = None,
    device: Device = "cpu",
    plugin: Plugin = None,
    quiet: Quiet = False,
    every: Annotated[bool, typer.Option("--all", help="Show all pairs, not only the most conspicuous ones.")] = False,
    json: Json = False,
) -> None:
    """Test whether accuracy comes from the teacher or the labels."""
    from fedstill.audit.conditions import checked_conditions, met
    from fedstill.audit.evidence_table import is_table
    from fedstill.audit.verdict_rules import judge

    conditions = checked_conditions(fail_on or [])
    if summary is not None:
        from fedstill.audit.reviewer_summary import checked_summary

        checked_summary(summary)
    if html is not None:
        from fedstill.report.writer import checked_page

        checked_page(html)
    if is_table(source):
        if data is not None or data_root is not None or plugin or device != "cpu":
            raise InputError("--data, --data-root, --plugin and --device are for runs: a table has its figures only")
        evidence = _from_table(source, class_counts, classes, unit)
    else:
        if class_counts is not None or classes is not None or unit != "auto":
            raise InputError("--class-counts, --classes and --unit are for tables: runs know their test data")
        evidence = _from_runs(source, data, data_root, device, plugin or [], quiet or json)
    verdict = judge(evidence, delta / 100)
    if html is not None:
        from fedstill.report.study.audit_page import write_audit_report

        write_audit_report(verdict, html)
    if summary is not None:
        from fedstill.audit.reviewer_summary import write_summary

        write_summary(verdict, summary, _command(source, delta, class_counts, classes, unit))
    if json:
        print_json(verdict.to_dict())
    else:
        _show(verdict, every)
        if html is not None:
            console.print()
            print_page(html, as_json=False)
    if stale := evidence.settings.get("stale"):
        errors.print(stale)
    found = met(verdict, conditions)
    if found:
        errors.print(f"found: {', '.join(found)}")
        raise typer.Exit(CONDITION_MET)


def _command(source: Path, delta: float, class_counts: str | None, classes: int | None, unit: str) -> str:
    """What repeats this audit; options at their defaults are left out."""
    given = {
        "--delta": None if delta == DELTA_POINTS else f"{delta:g}",
        "--class-counts": class_counts,
        "--classes": None if classes is None else str(classes),
        "--unit": None if unit == "auto" else unit,
    }
    return join(["fedstill", "audit", str(source), *(part for one in given.items() if one[1] for part in one if part)])


def _from_table(table: Path, class_counts: str | None, classes: int | None, unit: str) -> Evidence:
    from fedstill.audit.counts import read_counts
    from fedstill.audit.evidence_table import read_table
    from fedstill.audit.table_units import checked_unit

    return read_table(table, read_counts(class_counts, classes), checked_unit(unit))


def _from_runs(
    source: Path, data: str | None, data_root: Path | None, device: str, plugins: Sequence[Path], quiet: bool
) -> Evidence:
    from fedstill.audit.audit_inputs import evidence_of
    from fedstill.cli.progress import RunDisplay
    from fedstill.core.plugins import use_plugins

    use_plugins(plugins)
    display = RunDisplay(quiet)
    try:
        return evidence_of(source, data_root, device, observers=[display], data=data)
    finally:
        display.close()


def _show(audit: Audit, every: bool) -> None:
    from fedstill.audit.verdict_rules import TEST_SAMPLES
    from fedstill.audit.verdicts import SEVERITIES

    console.print(f"{audit.evidence.name}\n", style="bold")
    for sentence in audit.summary:
        console.print(sentence)
    if told := audit.evidence.settings.get(TEST_SAMPLES):
        console.print(f"Test samples: {told}.")
    _teachers_table(audit)
    _objectives_table(audit)
    _pairs_table(audit, every)
    _gains_table(audit, every)
    _ceilings_table(audit)
    for severity in SEVERITIES:
        for finding in (one for one in audit.findings if one.severity == severity):
            console.print(f"\n{severity}: {finding.title} ({finding.topic})", style="bold")
            console.print(f"{finding.evidence}\n{finding.advice}")


def _teachers_table(audit: Audit) -> None:
    if not audit.teachers:
        return
    rows = [(one.teacher, _percent(one.accuracy), _interval(one.interval), one.word) for one in audit.teachers]
    chance = "" if audit.chance is None else f" (chance level {_percent(audit.chance)})"
    _heading(f"{'Teachers' if audit.pairs else 'Methods'}, accuracy in %{chance}")
    table("", ("teacher", "accuracy", "95 % interval", "verdict"), rows, right=(1, 2))
    _legend([one.interval for one in audit.teachers])


def _objectives_table(audit: Audit) -> None:
    if not audit.objectives:
        return
    rows = [
        (
            one.objective,
            _number(one.hard_label_weight, "{:g}"),
            _percent(one.mean),
            _percent(one.range),
            _percent(one.free_range),
            SHORT[one.pattern],
        )
        for one in audit.objectives
    ]
    _heading("Objectives over teachers: weight of labels, mean and range in %")
    columns = ("objective", "labels", "mean", "range", "free range", "pattern")
    table("", columns, rows, right=range(1, 5))
    _correlations_table(audit)


def _correlations_table(audit: Audit) -> None:
    """r with its interval; nothing where it would say nothing."""
    rows = [
        (
            one.objective,
            _number(one.correlation, "{:+.2f}"),
            _r_span(one.correlation_interval),
            _number(one.free_correlation, "{:+.2f}"),
            _r_span(one.free_correlation_interval),
        )
        for one in audit.objectives
        if one.correlation is not None or one.free_correlation is not None
    ]
    if rows:
        _heading("Correlation r of students and teachers, with labels and without")
        columns = ("objective", "r", "95 % interval", "free r", "95 % interval")
        table("", columns, rows, right=range(1, 5))


def _r_span(span: tuple[float, float] | None) -> str:
    return MISSING if span is None else f"{span[0]:+.2f} to {span[1]:+.2f}"


def _pairs_table(audit: Audit, every: bool) -> None:
    """Those with the largest masking first; where there are many, only these."""
    ranked = sorted(audit.pairs, key=lambda pair: -(pair.masking if pair.masking is not None else -2.0))
    shown = ranked if every else [pair for pair in ranked if _worth_a_line(pair)][:FEW]
    if not shown:
        return
    rows = [
        (
            pair.teacher,
            pair.objective,
            _percent(pair.labelled, 1),
            _percent(pair.free, 1),
            _points(pair.masking),
            _interval(pair.interval, 1),
            pair.word,
        )
        for pair in shown
    ]
    _heading("Students in %, with and without labels; masking: what the labels added, in points")
    columns = ("teacher", "objective", "labels", "free", "masking", "95 % interval", "verdict")
    table("", columns, rows, right=range(2, 6))
    _legend([pair.interval for pair in shown])
    if len(shown) < len(audit.pairs):
        console.print(f"{len(shown)} of {len(audit.pairs)} pairs; --all shows every one")


def _gains_table(audit: Audit, every: bool) -> None:
    """What distillation is about: students beside labels-only students; the largest gains first."""
    known = sorted((pair for pair in audit.pairs if pair.gain is not None), key=lambda pair: -(pair.gain or 0.0))
    if not known:
        return
    shown = known if every else known[:FEW]
    rows = [
        (
            pair.teacher,
            pair.objective,
            _percent(pair.labelled, 1),
            _percent((pair.labelled or 0.0) - (pair.gain or 0.0), 1),
            _points(pair.gain),
            _interval(pair.gain_interval, 1),
        )
        for pair in shown
    ]
    _heading("Students in %, beside students of labels alone; gain in points")
    table("", ("teacher", "objective", "student", "labels only", "gain", "95 % interval"), rows, right=range(2, 6))
    _legend([pair.gain_interval for pair in shown])
    if len(shown) < len(known):
        console.print(f"{len(shown)} of {len(known)} pairs; --all shows every one")


def _ceilings_table(audit: Audit) -> None:
    """What the teacher's outputs predicted, beside what the students with labels reached."""
    rows = [
        (pair.teacher, pair.objective, _percent(pair.ceiling), _percent(pair.labelled))
        for pair in audit.pairs
        if pair.ceiling is not None
    ]
    if rows:
        _heading("Masking ceiling, predicted before any student was trained, in %")
        table("", ("teacher", "objective", "ceiling", "reached"), rows, right=(2, 3))


def _worth_a_line(pair: PairVerdict) -> bool:
    """There is a control, and it is another student."""
    own = pair.interval is not None and pair.interval.how == "none" and pair.labelled == pair.free
    return pair.masking is not None and not own


def _heading(text: str) -> None:
    console.print(f"\n{text}")


def _legend(intervals: list[Interval | None]) -> None:
    marks = {HOW[interval.how] for interval in intervals if interval is not None} - {""}
    legend = {"*": "* over test samples, not seeds", "+": "+ over seeds, not test samples", "?": "? no interval"}
    if marks:
        console.print(", ".join(legend[mark] for mark in sorted(marks)))


def _percent(value: float | None, digits: int = 2) -> str:
    return MISSING if value is None else f"{100 * value:.{digits}f}"


def _points(value: float | None) -> str:
    return MISSING if value is None else f"{100 * value:+.1f}"


def _number(value: float | None, form: str) -> str:
    return MISSING if value is None else form.format(value)


def _interval(interval: Interval | None, digits: int = 2) -> str:
    if interval is None:
        return MISSING
    if interval.how == "none":
        return HOW["none"]
    return f"{100 * interval.low:.{digits}f} to {100 * interval.high:.{digits}f}{HOW[interval.how]}"
