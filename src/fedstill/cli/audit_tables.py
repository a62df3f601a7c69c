"""An audit's tables, narrow enough for 80 columns."""

from __future__ import annotations

from fedstill.audit.verdicts import Audit, Interval, PairVerdict
from fedstill.cli.screen import console, table
from fedstill.core.numbers import MISSING

FEW = 16  # pairs that are shown without being asked for
SHORT = {"masked by pattern": "masked", "tracks its teacher": "tracks", "unclear": "unclear"}
HOW = {"seeds": "", "samples": "*", "none": "?"}


def teachers(audit: Audit) -> None:
    if not audit.teachers:
        return
    rows = [(one.teacher, _percent(one.accuracy), _interval(one.interval), one.word) for one in audit.teachers]
    told = "" if audit.chance is None else f" (chance level {_percent(audit.chance)})"
    _heading(f"Teachers, accuracy in %{told}")
    table("", ("teacher", "accuracy", "95 % interval", "verdict"), rows, right=(1, 2))
    _legend([one.interval for one in audit.teachers])


def objectives(audit: Audit) -> None:
    if not audit.objectives:
        return
    rows = [
        (
            one.objective,
            _number(one.hard_label_weight, "{:g}"),
            _percent(one.mean),
            _percent(one.range),
            _number(one.correlation, "{:+.2f}"),
            _percent(one.free_range),
            _number(one.free_correlation, "{:+.2f}"),
            SHORT[one.pattern],
        )
        for one in audit.objectives
    ]
    _heading("Objectives over teachers: weight of labels, mean and range in %, r with teachers")
    columns = ("objective", "labels", "mean", "range", "r", "free range", "free r", "pattern")
    table("", columns, rows, right=range(1, 7))


def pairs(audit: Audit, every: bool) -> None:
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


def ceilings(audit: Audit) -> None:
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
    told = {"*": "* over test samples, not seeds", "?": "? no interval"}
    if marks:
        console.print(", ".join(told[mark] for mark in sorted(marks)))


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
