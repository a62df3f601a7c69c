"""The audit's tables: verdicts by objective, by teacher and by pair, and what every seed said."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fedstill.audit.evidence import Seed
from fedstill.audit.term_magnitudes import parts
from fedstill.audit.verdicts import Interval, ObjectiveVerdict, PairVerdict, TeacherVerdict
from fedstill.core.numbers import MISSING
from fedstill.core.table import Cell, Column, Table, make_table, percent, text, whole
from fedstill.report.page_file import link_below
from fedstill.report.study.marks import PATTERNS, STUDENTS, TEACHERS, Mark
from fedstill.report.study.term_figures import term_sizes
from fedstill.report.study.view import Scores, View, folders, mean, spread

_MINUS = "\u2212"


def _word(word: str, mark: Mark) -> Cell:
    return Cell(f"{mark.sign} {word}", word, mark.style)


def _points(value: float | None) -> Cell:
    """A difference with its sign; its value is in points too, as the column says."""
    if value is None:
        return Cell(MISSING, None)
    shown = f"{abs(100 * value):.1f}"
    sign = "" if shown == "0.0" else "+" if value > 0 else _MINUS
    return Cell(sign + shown, round(100 * value, 6))


def _decimal(value: float | None) -> Cell:
    return Cell(MISSING, None) if value is None else Cell(f"{value:.2f}".replace("-", _MINUS), value)


def _low(interval: Interval | None, show: Callable[[float | None], Cell]) -> Cell:
    return show(interval.low if interval else None)


def _high(interval: Interval | None, show: Callable[[float | None], Cell]) -> Cell:
    return show(interval.high if interval else None)


def _known(interval: Interval | None) -> Interval | None:
    """Nothing where seeds and samples do not give an interval."""
    return None if interval is None or interval.how == "none" else interval


def _how(interval: Interval | None) -> Cell:
    if interval is None:
        return Cell(MISSING, None)
    over = {"both": ["over seeds and test samples"], "samples": ["over test samples"]}
    words = [*over.get(interval.how, []), interval.note]
    said = "; ".join(filter(None, words))
    return _prose(said)


def _r_span(span: tuple[float, float] | None) -> Cell:
    return Cell(MISSING, None) if span is None else text(f"{span[0]:+.2f} to {span[1]:+.2f}")


def objectives_table(view: View) -> Table:
    columns: tuple[Column[ObjectiveVerdict], ...] = (
        Column("Objective", "objective", lambda row: text(row.objective), right=False),
        Column("Pattern", "pattern", lambda row: _word(row.pattern, PATTERNS[row.pattern]), right=False),
        Column("Weight of labels", "hard_label_weight", lambda row: _decimal(row.hard_label_weight), always=False),
        Column("Masked teachers", "masked", lambda row: whole(_masked(view, row.objective))),
        Column("Mean with labels", "mean_labelled", lambda row: percent(row.mean)),
        Column("Mean without", "mean_free", lambda row: percent(_mean_free(view, row.objective)), always=False),
        Column("r with teacher", "r_labelled", lambda row: _decimal(row.correlation)),
        Column("95 % interval of r", "r_interval", lambda row: _r_span(row.correlation_interval), always=False),
        Column("Range (points)", "range_labelled", lambda row: _points_plain(row.range)),
        Column("r without labels", "r_free", lambda row: _decimal(row.free_correlation), always=False),
        Column("95 % interval", "r_free_interval", lambda row: _r_span(row.free_correlation_interval), always=False),
        Column("Range without (points)", "range_free", lambda row: _points_plain(row.free_range), always=False),
    )
    return make_table(
        "objectives",
        "Objectives over all teachers",
        columns,
        list(view.objective.values()),
        "r is Pearson's correlation of student and teacher over four or more teachers that differ by more than the"
        " threshold, with Fisher's interval; the range is the largest minus the smallest"
        " accuracy of students. A student that learns from its teacher has r near 1.",
    )


def teachers_table(view: View) -> Table:
    columns: tuple[Column[TeacherVerdict], ...] = (
        Column("Teacher", "teacher", lambda row: text(row.teacher), right=False),
        Column("Verdict", "verdict", lambda row: _word(row.word, TEACHERS[row.word]), right=False),
        Column("Accuracy", "accuracy", lambda row: percent(row.accuracy)),
        Column("95 % from", "low", lambda row: _low(row.interval, percent), always=False),
        Column("to", "high", lambda row: _high(row.interval, percent), always=False),
        Column("Best round", "accuracy_best", lambda row: percent(_of(view, row.teacher, "best")), always=False),
        Column("Selected", "accuracy_selected", lambda row: percent(_of(view, row.teacher, "selected")), always=False),
        Column("Recalibrated", "recalibrated", lambda row: percent(_recalibrated(view, row.teacher)), always=False),
        Column("Seeds", "seeds", lambda row: whole(len(view.trained[row.teacher]))),
        Column("Why", "why", lambda row: _prose(row.why), right=False, always=False),
    )
    return make_table("teachers", "Teachers", columns, list(view.teacher.values()))


def pairs_table(view: View) -> Table:
    ranked = view.ranked
    order = {(pair.teacher, pair.objective): rank for rank, pair in enumerate(ranked, 1)}
    rest = [pair for pair in view.audit.pairs if pair.labelled is None]

    def rank(pair: PairVerdict) -> Cell:
        place = order.get((pair.teacher, pair.objective))
        return Cell(MISSING, None) if place is None else whole(place)

    columns: tuple[Column[PairVerdict], ...] = (
        Column("Teacher", "teacher", lambda row: text(row.teacher), right=False),
        Column("Objective", "objective", lambda row: text(row.objective), right=False),
        Column("Place", "place", rank),
        Column("Verdict", "verdict", lambda row: _word(row.word, STUDENTS[row.word]), right=False),
        Column("Its teacher", "teacher_verdict", lambda row: _teacher(view, row), right=False),
        Column("Teacher's accuracy", "teacher_accuracy", lambda row: percent(view.accuracy(row.teacher))),
        Column("With labels", "labelled", lambda row: percent(row.labelled)),
        Column("Without labels", "free", lambda row: percent(row.free), always=False),
        Column("Masking (points)", "masking", lambda row: _points(row.masking), always=False),
        Column("95 % from", "masking_low", lambda row: _low(row.interval, _points), always=False),
        Column("to", "masking_high", lambda row: _high(row.interval, _points), always=False),
        Column("Interval is", "interval_of", lambda row: _how(row.interval), right=False, always=False),
        Column("Gain over labels only (points)", "gain", lambda row: _points(row.gain), always=False),
        Column("95 % from", "gain_low", lambda row: _low(_known(row.gain_interval), _points), always=False),
        Column("to", "gain_high", lambda row: _high(_known(row.gain_interval), _points), always=False),
        Column("Ceiling", "ceiling", lambda row: percent(row.ceiling), always=False),
        Column("Recovery (points)", "recovery", lambda row: _points(row.recovery), always=False),
        Column("Synergy (points)", "synergy", lambda row: _points(row.synergy), always=False),
        Column("Seeds", "seeds", lambda row: whole(row.seeds)),
    )
    return make_table(
        "pairs",
        "Leaderboard: every pair of teacher and objective",
        columns,
        [*ranked, *rest],
        "Ranked by the accuracy of the labelled student, as benchmarks do; the verdict says what a place is worth.",
    )


@dataclass(frozen=True)
class _Line:
    name: str
    objective: str
    kind: str
    scores: Scores
    runs: Mapping[Seed, Path]


def seeds_table(view: View, page: Path) -> Table:
    """What every seed said: teachers, students, and students of labels alone; linked to runs that lie below `page`."""
    rows = [_Line(name, "", "teacher", view.teacher_scores(name), folders(view.trained[name])) for name in view.teacher]
    for teacher in view.teachers:
        for objective in view.objective:
            for free, kind in ((False, "with labels"), (True, "without labels")):
                if taught := view.taught.get((teacher, objective, free)):
                    scores = view.student_scores(teacher, objective, free)
                    rows.append(_Line(teacher, objective, kind, scores, folders(taught)))
    rows += _labels_only(view)

    def of(seed: Seed) -> Column[_Line]:
        def cell(row: _Line) -> Cell:
            return replace(percent(row.scores.get(seed)), link=link_below(page, row.runs.get(seed)))

        return Column(f"Seed {seed}", f"seed_{seed}", cell)

    columns: list[Column[_Line]] = [
        Column("Teacher", "teacher", lambda row: text(row.name), right=False),
        Column("Objective", "objective", lambda row: _name(row.objective), right=False),
        Column("Kind", "kind", lambda row: text(row.kind), right=False),
        *(of(seed) for seed in view.seeds),
        Column("Mean", "mean", lambda row: percent(mean(row.scores.values()))),
        Column("Standard deviation", "std", lambda row: _points_plain(spread(row.scores.values())), always=False),
    ]
    linked = "Figures lead to the folders of their runs." if any(row.runs for row in rows) else ""
    return make_table("seeds", "Accuracy by seed", columns, rows, linked)


def _labels_only(view: View) -> list[_Line]:
    """One line for all, or where students have labels-only students of their own, one for whatever tells them apart."""
    if view.alone is not None:
        shared = {seed: score.run for seed, score in view.audit.evidence.alone.items() if score.run is not None}
        return [_Line("(none)", "", "labels only", view.alone_scores, shared)]
    rows = []
    for objective in view.objective:
        own = {teacher: scores for teacher in view.teachers if (scores := view.held_against(teacher, objective))}
        if own and all(scores == next(iter(own.values())) for scores in own.values()):
            own = {"(none)": next(iter(own.values()))}
        rows += [_Line(teacher, objective, "labels only", scores, {}) for teacher, scores in own.items()]
    return rows


@dataclass(frozen=True)
class _Term:
    objective: str
    name: str
    size: float
    part: float


def terms_table(view: View) -> list[Table]:
    rows = [
        _Term(objective, name, sizes[name], part)
        for objective, sizes in term_sizes(view).items()
        for name, part in parts(sizes).items()
    ]
    columns: tuple[Column[_Term], ...] = (
        Column("Objective", "objective", lambda row: text(row.objective), right=False),
        Column("Term", "term", lambda row: text(row.name), right=False),
        Column("Mean size", "mean_size", lambda row: Cell(f"{row.size:.3g}", row.size)),
        Column("Of the largest", "share_of_largest", lambda row: percent(row.part)),
    )
    return [make_table("terms", "Sizes of terms", columns, rows)] if rows else []


def _prose(said: str) -> Cell:
    """Text that may take several lines."""
    return Cell(said or MISSING, said or None, "words")


def _name(name: str) -> Cell:
    return Cell(name or MISSING, name or None)


def _points_plain(value: float | None) -> Cell:
    return Cell(MISSING, None) if value is None else Cell(f"{100 * value:.1f}", round(100 * value, 6))


def _masked(view: View, objective: str) -> int:
    return sum(pair.objective == objective and pair.word == "masked" for pair in view.audit.pairs)


def _mean_free(view: View, objective: str) -> float | None:
    return mean(pair.free for pair in view.audit.pairs if pair.objective == objective)


def _of(view: View, teacher: str, which: str) -> float | None:
    return mean(one.accuracies.get(which) for one in view.trained[teacher])


def _recalibrated(view: View, teacher: str) -> float | None:
    return mean(one.recalibrated for one in view.trained[teacher])


def _teacher(view: View, pair: PairVerdict) -> Cell:
    verdict = view.teacher.get(pair.teacher)
    return Cell(MISSING, None) if verdict is None else _word(verdict.word, TEACHERS[verdict.word])
