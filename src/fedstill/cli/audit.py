"""`fedstill audit`: what an audit found, in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedstill.cli.completion import named, one_of, runs
from fedstill.cli.options import Device, Html, Json, OneData, Plugin, Quiet, Root

if TYPE_CHECKING:
    from fedstill.audit.evidence import Evidence
    from fedstill.audit.verdicts import Audit

CONDITION_MET = 3  # exit code: the audit was done, and found what --fail-on names


def audit(
    source: Annotated[
        Path,
        typer.Argument(
            help="A study's results (.json) or folder, a run's folder, or a table made elsewhere (.csv).",
            metavar="SOURCE",
            autocompletion=runs,
        ),
    ],
    delta: Annotated[float, typer.Option(help="Points of accuracy that are of no account.")] = 5.0,
    class_counts: Annotated[
        str | None, typer.Option(help="Of a table's test set: 100,50,20 or a CSV file with a column count.")
    ] = None,
    classes: Annotated[int | None, typer.Option(help="Or how many classes, all of one size.")] = None,
    unit: Annotated[
        str,
        typer.Option(
            help="Of a table's accuracies: percent or share; else told by the values.",
            autocompletion=one_of("auto", "percent", "share"),
        ),
    ] = "auto",
    fail_on: Annotated[
        list[str] | None,
        typer.Option(
            help="Exit code 3 on this: masked, serious, warning, or a topic; repeatable.",
            autocompletion=named("findings"),
        ),
    ] = None,
    html: Html = None,
    data: OneData = None,
    data_root: Root = None,
    device: Device = "cpu",
    plugin: Plugin = None,
    quiet: Quiet = False,
    every: Annotated[bool, typer.Option("--all", help="Show every pair, not only those that stand out.")] = False,
    json: Json = False,
) -> None:
    """Is a student's accuracy really its teacher's?"""
    from fedstill.audit.conditions import checked_conditions, met
    from fedstill.audit.verdict_rules import judge
    from fedstill.core.errors import InputError

    conditions = checked_conditions(fail_on or [])
    if html is not None:
        from fedstill.report.writer import checked_page

        checked_page(html)
    if source.suffix.lower() == ".csv":
        if data is not None or data_root is not None or plugin or device != "cpu":
            raise InputError("--data, --data-root, --plugin and --device are for runs: a table has its figures only")
        evidence = _from_table(source, class_counts, classes, unit)
    else:
        if class_counts is not None or classes is not None or unit != "auto":
            raise InputError("--class-counts, --classes and --unit are for tables: runs know their test data")
        evidence = _from_runs(source, data, data_root, device, plugin or [], quiet or json)
    verdict = judge(evidence, delta / 100)
    if html is not None:
        from fedstill.report.study.study_page import write_audit_report

        write_audit_report(verdict, html)
    if json:
        from fedstill.cli.screen import print_json

        print_json(verdict.to_dict())
    else:
        show(verdict, every)
        if html is not None:
            from fedstill.cli.screen import console, print_page

            console.print()
            print_page(html, as_json=False)
    found = met(verdict, conditions)
    if found:
        from fedstill.cli.screen import errors

        errors.print(f"found: {', '.join(found)}")
        raise typer.Exit(CONDITION_MET)


def _from_table(table: Path, class_counts: str | None, classes: int | None, unit: str) -> Evidence:
    from fedstill.audit.counts import read_counts
    from fedstill.audit.evidence_table import checked_unit, read_table

    return read_table(table, read_counts(class_counts, classes), checked_unit(unit))


def _from_runs(
    source: Path, data: str | None, data_root: Path | None, device: str, plugins: Sequence[Path], quiet: bool
) -> Evidence:
    from fedstill.audit.inputs import evidence_of
    from fedstill.cli.progress import Display
    from fedstill.core.plugins import use_plugins

    use_plugins(plugins)
    display = Display(quiet)
    try:
        return evidence_of(source, data_root, device, observers=[display], data=data)
    finally:
        display.close()


def show(audit: Audit, every: bool) -> None:
    from fedstill.audit.verdicts import SEVERITIES
    from fedstill.cli import audit_tables
    from fedstill.cli.screen import console

    console.print(f"{audit.evidence.name}\n", style="bold")
    for sentence in audit.summary:
        console.print(sentence)
    for draw in (audit_tables.teachers, audit_tables.objectives):
        draw(audit)
    audit_tables.pairs(audit, every)
    audit_tables.ceilings(audit)
    for severity in SEVERITIES:
        for finding in (one for one in audit.findings if one.severity == severity):
            console.print(f"\n{severity}: {finding.title} ({finding.topic})", style="bold")
            console.print(f"{finding.evidence}\n{finding.advice}")
