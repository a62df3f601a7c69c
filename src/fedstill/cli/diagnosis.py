"""`fedstill doctor`: what a check-up found, as lines to act on."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import typer

from fedstill.cli.doctor import Finding, check_up
from fedstill.cli.screen import console, print_json
from fedstill.core.numbers import count

BROKEN = 1  # exit code: something must be mended
_STYLES = {"ok": "green", "look": "yellow", "problem": "bold red"}


def doctor(out: Path, data_root: Path | None, as_json: bool) -> None:
    """Exit code 0 if nothing is broken, 1 if something is; what is worth a look breaks nothing."""
    findings = check_up(out, data_root)
    problems = sum(one.state == "problem" for one in findings)
    if as_json:
        print_json({"ok": not problems, "findings": [asdict(one) for one in findings]})
    else:
        for one in findings:
            _show(one)
        looks = sum(one.state == "look" for one in findings)
        told = f"{count(problems, 'problem')}" if problems else "nothing is broken"
        console.print(f"\n{told}{f', {looks} worth a look' if looks else ''}")
    if problems:
        raise typer.Exit(BROKEN)


def _show(one: Finding) -> None:
    console.print(f"{one.state:8}", style=_STYLES[one.state], end="")
    console.print(f"{one.topic}: {one.says}", soft_wrap=True)
    if one.advice:
        console.print(f"{'':8}→ {one.advice}", soft_wrap=True)
