"""How verdicts look: each word has a mark, a hatch and a colour, so that none of them hangs on colour alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fedstill.audit.verdicts import PatternWord, Severity, StudentWord, TeacherWord
from fedstill.core.numbers import MISSING
from fedstill.report.figure import Key

TIMES = "\u00d7"


@dataclass(frozen=True)
class Mark:
    sign: str
    colour: str
    hatch: str = ""  # Plotly's pattern of a bar
    style: str = ""  # a class of the style sheet, in tables


STUDENTS: dict[StudentWord, Mark] = {
    "masked": Mark("▲", "var(--masked)", "/", "bad"),
    "faithful": Mark("●", "var(--faithful)", "", "good"),
    "inconclusive": Mark("?", "var(--unsure)", ".", "unsure"),
    "not assessable": Mark(MISSING, "var(--unsure)", "x", "unsure"),
    "no control": Mark("○", "var(--unsure)", "-", "unsure"),
    "no student": Mark(TIMES, "var(--unsure)", "", "unsure"),
}
TEACHERS: dict[TeacherWord, Mark] = {
    "non-finite": Mark(TIMES, "var(--masked)", "x", "bad"),
    "constant": Mark("■", "var(--masked)", "/", "bad"),
    "below-chance": Mark("▽", "var(--masked)", "+", "bad"),
    "chance": Mark("▼", "var(--masked)", "\\", "bad"),
    "stale": Mark("◆", "var(--unsure)", ".", "unsure"),
    "sound": Mark("●", "var(--faithful)", "", "good"),
}
PATTERNS: dict[PatternWord, Mark] = {
    "masked by pattern": Mark("▲", "var(--masked)", style="bad"),
    "tracks its teacher": Mark("●", "var(--faithful)", style="good"),
    "unclear": Mark("?", "var(--unsure)", style="unsure"),
}
SEVERITIES: dict[Severity, str] = {"serious": "▲", "warning": "◆", "note": "●"}


def student_keys(words: Iterable[StudentWord]) -> list[Key]:
    """A key to the verdicts that occur, as bars show them."""
    found = set(words)
    return [_key(word, mark) for word, mark in STUDENTS.items() if word in found]


def teacher_keys(words: Iterable[TeacherWord]) -> list[Key]:
    found = set(words)
    return [_key(word, mark) for word, mark in TEACHERS.items() if word in found]


def _key(word: str, mark: Mark) -> Key:
    name = f"{mark.sign} {word}"
    if mark.hatch:
        return Key(name, mark.colour, shape="hatched", symbol=mark.hatch)
    return Key(name, mark.colour, shape="box")


def fills(marks: Sequence[Mark]) -> dict[str, Any]:
    """The look of bars. (Other colours for the hatch than the bar's own make Plotly complain in the console.)"""
    pattern = {"shape": [mark.hatch for mark in marks], "size": 7, "solidity": 0.35}
    return {"color": [mark.colour for mark in marks], "pattern": pattern}
