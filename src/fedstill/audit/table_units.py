"""Whether a table's accuracies are percentages or shares; a table that has both is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, sqrt
from pathlib import Path
from statistics import median, mode
from typing import Literal, cast, get_args

from fedstill.core.errors import InputError, did_you_mean
from fedstill.core.numbers import listed

Unit = Literal["auto", "percent", "share"]
NEAR_CHANCE = 0.8  # of the chance level: what a collapsed model may still score
REACH = 3  # standard errors below chance that such a model may score
SMALL, UNLIKE = 5.0, 2.5  # among percentages up to 5 a share would differ from them by no such factor
FITS = 3  # times the largest percentage: up to so much a share, in percent, would be one of them
SHOWN = 8  # lines that a refusal names


@dataclass(frozen=True)
class WrittenAccuracy:
    """One accuracy as the table has it."""

    line: int
    column: str
    value: float
    digits: int  # behind the point
    signed: bool  # a percent sign stands behind it, or in the head of its column
    teacher: str = ""


def checked_unit(name: str) -> Unit:
    for unit in get_args(Unit):
        if name == unit:
            return cast(Unit, unit)
    raise InputError(f"unknown unit {name!r}: {did_you_mean(name, get_args(Unit))}")


def scale_of(
    path: Path, written: Sequence[WrittenAccuracy], unit: Unit, chance: float | None, samples: int = 0
) -> float:
    """What to divide accuracies by: 100 or 1. `chance` and the test samples tell a small percentage from a share."""
    signed = any(one.signed for one in written)
    if signed and unit == "share":
        raise InputError(f"the table {path} writes accuracies with a percent sign, so they cannot be shares")
    if unit == "auto":
        _refuse_mixed_columns(path, written)
        _refuse_mixed_rows(path, written, chance, samples)
    percent = signed or unit == "percent" or (unit == "auto" and any(one.value > 1 for one in written))
    scale = 100.0 if percent else 1.0
    for one in written:
        if one.value > scale:
            raise InputError(f"{path}, line {one.line}: {one.column} is {one.value:g}, and cannot be above {scale:g}")
    return scale


def _refuse_mixed_columns(path: Path, written: Sequence[WrittenAccuracy]) -> None:
    """A column of shares beside one of percentages would make every teacher in it look hopeless."""
    columns: dict[str, list[float]] = {}
    for one in written:
        if not one.signed and one.value:
            columns.setdefault(one.column, []).append(one.value)
    largest = {name: max(values) for name, values in columns.items()}
    shares = next((name for name, value in largest.items() if value <= 1), None)
    percent = next((name for name, values in columns.items() if min(values) > 1), None)
    if shares and percent:
        lines = [one.line for one in written if one.column == shares]
        raise InputError(
            f"the table {path} has {percent} up to {largest[percent]:g}, as percentages are, and {shares} up to"
            f" {largest[shares]:g}, as shares are ({_lines(lines)}): write both alike, or say --unit percent if they"
            " are"
        )


def _refuse_mixed_rows(path: Path, written: Sequence[WrittenAccuracy], chance: float | None, samples: int) -> None:
    """Rows of the one kind among rows of the other; the fewer are named."""
    percent = [one for one in written if one.signed or one.value > 1]
    if not percent:
        return
    usual, largest = mode(one.digits for one in percent), max(one.value for one in percent)
    beside: dict[tuple[str, str], list[float]] = {}  # percentages of the same teacher in the same column
    for one in percent:
        beside.setdefault((one.teacher, one.column), []).append(one.value)
    shares = [
        one
        for one in written
        if not one.signed
        and 0 < 100 * one.value <= min(FITS * largest, 100)
        and not _is_collapsed_percentage(one, usual, chance, samples, beside.get((one.teacher, one.column), []))
    ]
    if not shares:
        return
    fewer, others, kind = (shares, percent, "shares") if len(shares) <= len(percent) else (percent, shares, "percent")
    values = [f"{one.value:g}" for one in sorted(fewer, key=lambda one: one.line)]
    among = f"{min(one.value for one in others):g} to {max(one.value for one in others):g}"
    looks = "shares among percentages" if kind == "shares" else "percentages among shares"
    raise InputError(
        f"the table {path} has {looks}: {_lines([one.line for one in fewer])} with {listed(values[:3])}, where others"
        f" have {among}: write all alike, or say --unit percent if they are"
    )


def _is_collapsed_percentage(
    one: WrittenAccuracy, usual: int, chance: float | None, samples: int, beside: Sequence[float]
) -> bool:
    """With a hundred classes a model that learnt nothing scores about 1 %, printed with as many digits as the others.

    It is near the chance level, as far as so many test samples tell, or nearer to other figures of the same teacher as
    a percentage than as a share.
    """
    if one.digits > usual:
        return False
    if chance is not None:
        near = chance - REACH * sqrt(chance * (1 - chance) / samples) if samples else NEAR_CHANCE * chance
        if 100 * min(near, NEAR_CHANCE * chance) <= one.value:
            return True
    if not beside:
        return False
    others = median(beside)
    as_share, as_percent = abs(log(100 * one.value / others)), abs(log(one.value / others))
    return as_percent < as_share or (others <= SMALL and as_share > log(UNLIKE))


def _lines(numbers: Sequence[int]) -> str:
    """Lines of a file by number.

    >>> _lines([4, 2]), _lines([3])
    ('lines 2 and 4', 'line 3')
    """
    found = sorted(set(numbers))
    shown = [str(number) for number in found[:SHOWN]]
    if len(found) > SHOWN:
        return f"lines {', '.join(shown)} and {len(found) - SHOWN} more"
    return f"line{'' if len(found) == 1 else 's'} {listed(shown)}"
