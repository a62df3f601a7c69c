"""Bars: teachers by rank, the leaderboard, and recovery from the worst teacher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedstill.audit.phrases import be
from fedstill.audit.verdicts import PairVerdict
from fedstill.core.numbers import capital, count, points, share
from fedstill.report.figure import QUIET, Figure, Key, axis, label, level, names_axis
from fedstill.report.study.marks import STUDENTS, TEACHERS, Mark, fills, student_keys, teacher_keys
from fedstill.report.study.view import View, spread

_BOARD = 12  # places that are drawn; the table has all
_ROW = 27
_LETTER = 6.6  # pixels that one takes beside a bar
_ALONE, _TEACHER, _CHANCE = "var(--alarm)", "var(--accent)", QUIET


@dataclass(frozen=True)
class _Bar:
    name: str
    value: float
    mark: Mark
    word: str
    spread: float | None
    hover: str

    @property
    def text(self) -> str:
        return f"{100 * self.value:.1f} {self.mark.sign} {self.word}"


def _end(bars: Sequence[_Bar]) -> float:
    """Where the axis ends and the words begin: beyond 100 %, and beyond the longest whisker."""
    return max(1.0, *(bar.value + (bar.spread or 0.0) for bar in bars)) + 0.02


def _drawn(bars: Sequence[_Bar]) -> list[dict[str, Any]]:
    """Bars with whiskers, and at the right, in a trace of their own, the numbers and words.

    They stand below each other in the margin, where no upright line, whisker or marker runs through them.
    """
    names = [label(bar.name) for bar in bars]
    trace: dict[str, Any] = {
        "type": "bar",
        "orientation": "h",
        "x": [bar.value for bar in bars],
        "y": names,
        "customdata": [label(bar.hover) for bar in bars],
        "marker": fills([bar.mark for bar in bars]),
        "hovertemplate": "%{y}: %{x:.2%}, %{customdata}<extra></extra>",
    }
    if any(bar.spread for bar in bars):
        trace["error_x"] = {
            "type": "data",
            "array": [bar.spread or 0.0 for bar in bars],
            "color": "var(--ink)",
            "thickness": 1.5,
            "width": 4,
        }
    words = {
        "type": "scatter",
        "mode": "text",
        "x": [_end(bars)] * len(bars),
        "y": names,
        "text": [bar.text for bar in bars],
        "textposition": "middle right",
        "textfont": {"color": "var(--ink)", "size": 11.5},
        "hoverinfo": "skip",
        "cliponaxis": False,
    }
    return [trace, words]


def _layout(bars: Sequence[_Bar], shapes: Sequence[dict[str, Any]], what: str) -> dict[str, Any]:
    return {
        "height": 75 + _ROW * len(bars),
        "margin": {"r": 8 + round(_LETTER * max(len(bar.text) for bar in bars))},
        "bargap": 0.25,
        "xaxis": axis(what, tickformat=".0%", range=[0, _end(bars)], tickvals=[0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        "yaxis": names_axis(range=[len(bars) - 0.5, -0.5]),
        "shapes": list(shapes),
    }


def _lines(view: View, teacher: float | None = None) -> tuple[list[dict[str, Any]], list[Key]]:
    """Upright lines to read bars by: chance, labels alone, and a teacher's own accuracy."""
    known = [
        (view.audit.chance, "chance", _CHANCE, "dot", "2 3"),
        (view.alone, "labels only, no teacher", _ALONE, "dash", "7 4"),
        (teacher, "the teacher", _TEACHER, "dashdot", "7 3 2 3"),
    ]
    shapes = [level(at, colour, dash, upright=True) for at, _, colour, dash, _ in known if at is not None]
    keys = [Key(f"{name} ({share(at, 1)})", colour, dash=svg) for at, name, colour, _, svg in known if at is not None]
    return shapes, keys


def teachers(view: View) -> list[Figure]:
    """Teachers by rank, with the spread of their seeds."""
    known = [(name, verdict, verdict.accuracy) for name, verdict in view.teacher.items()]
    scored = [(name, verdict, accuracy) for name, verdict, accuracy in known if accuracy is not None]
    if not scored:
        return []
    shapes, keys = _lines(view)
    broken = [name for name, _, accuracy in known if accuracy is None]
    bars = [
        _Bar(
            name,
            accuracy,
            TEACHERS[verdict.word],
            verdict.word,
            spread(view.teacher_scores(name).values()),
            verdict.word,
        )
        for name, verdict, accuracy in scored
    ]
    absent = f" Not drawn, since their outputs are not finite: {', '.join(broken)}." if broken else ""
    told = ", ".join(f"{name} {share(accuracy, 1)} ({verdict.word})" for name, verdict, accuracy in scored)
    return [
        Figure(
            "teachers",
            "Teachers by rank",
            f"Test accuracy of teachers: {told}.{absent}",
            f"Test accuracy of the models that taught, mean over seeds.{_whiskers(view)}{absent}",
            _drawn(bars),
            _layout(bars, shapes, "test accuracy"),
            [*teacher_keys(verdict.word for _, verdict, _ in scored), *keys],
            width=420,
        )
    ]


def leaderboard(view: View) -> list[Figure]:
    """The best pairs as a benchmark would rank them, each with its verdict."""
    board = view.ranked[:_BOARD]
    if not board:
        return []
    shapes, keys = _lines(view)
    bars = [_student(view, pair, f"{pair.teacher} + {pair.objective}", _teacher_words(view, pair)) for pair in board]
    masked = sum(pair.word == "masked" for pair in board)
    counted = f"{masked} of these {len(board)} {be(masked)}" if len(board) > 1 else "it is"
    whose = "its" if masked == 1 else "their"
    moral = f" {capital(counted)} masked: {whose} place says more about the labels than about the teacher."
    moral = moral if masked else ""
    return [
        Figure(
            "leaderboard",
            f"The {len(board)} highest places" if len(board) < len(view.ranked) else "All places",
            f"Leaderboard of {count(len(board), 'pair')} by accuracy with labels, {masked} of them masked. First is"
            f" {board[0].teacher} with {board[0].objective}, {share(board[0].labelled, 1)}, {board[0].word}.",
            f"As a benchmark would rank them: by accuracy of the labelled student.{_whiskers(view)}{moral}",
            _drawn(bars),
            _layout(bars, shapes, "accuracy of the student with labels"),
            [*student_keys(pair.word for pair in board), *keys],
            width=460,
        )
    ]


def recovery(view: View) -> list[Figure]:
    """Students of the worst teacher: one far above it learned from another source."""
    worst = view.worst
    if worst is None or worst.accuracy is None or len(view.teacher) < 2:
        return []
    pairs = [pair for pair in view.ranked if pair.teacher == worst.teacher]
    shapes, keys = _lines(view, worst.accuracy)
    bars = [_student(view, pair, pair.objective, _recovered(pair)) for pair in pairs]
    data = _drawn(bars)
    free = [(pair.objective, pair.free) for pair in pairs if pair.free is not None]
    if free:
        keys.append(Key("the same without labels", "var(--ink)", (len(data),), shape="open", symbol="diamond"))
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "without labels",
                "x": [value for _, value in free],
                "y": [label(name) for name, _ in free],
                "marker": {"symbol": "diamond-open", "size": 10, "color": "var(--ink)", "line": {"width": 2}},
                "hovertemplate": "%{y} without labels: %{x:.2%}<extra></extra>",
            }
        )
    top = pairs[0]
    return [
        Figure(
            "recovery",
            f"Recovery from the worst teacher, {worst.teacher}",
            f"Students of {worst.teacher} ({share(worst.accuracy, 1)}, {worst.word}), by accuracy: "
            + ", ".join(f"{pair.objective} {share(pair.labelled, 1)} ({pair.word})" for pair in pairs)
            + ".",
            f"{worst.teacher} gets {share(worst.accuracy, 1)} of the test set right ({worst.word}). Its best student,"
            f" by {top.objective}, gets {share(top.labelled, 1)}.{_whiskers(view)}",
            data,
            _layout(bars, shapes, "accuracy of the student"),
            [*student_keys(pair.word for pair in pairs), *keys],
            width=420,
        )
    ]


def _whiskers(view: View) -> str:
    return " Whiskers are one standard deviation over seeds." if len(view.seeds) > 1 else ""


def _student(view: View, pair: PairVerdict, name: str, hover: str) -> _Bar:
    seeds = view.student_scores(pair.teacher, pair.objective, False)
    return _Bar(name, pair.labelled or 0.0, STUDENTS[pair.word], pair.word, spread(seeds.values()), hover)


def _recovered(pair: PairVerdict) -> str:
    gained = pair.recovery or 0.0
    return f"{points(gained)} {'above' if gained >= 0 else 'below'} its teacher"


def _teacher_words(view: View, pair: PairVerdict) -> str:
    verdict = view.teacher.get(pair.teacher)
    if verdict is None:
        return pair.word
    return f"{pair.word}; its teacher is {verdict.word} ({share(verdict.accuracy, 1)})"
