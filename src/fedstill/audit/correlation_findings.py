"""Findings about correlations: read from one teacher, or from teachers that hardly differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import fmean, variance

from fedstill.audit.case import Case
from fedstill.audit.objectives import LOST
from fedstill.audit.phrases import NAMED
from fedstill.audit.statistics import FEWEST_POINTS, correlation, r_interval, seed_noise
from fedstill.audit.verdicts import Finding
from fedstill.core.numbers import count, points

HIGH = 0.8  # r from which on somebody will read it as following
CARRIES = 0.85  # of the largest part of the teachers' sum of squares that one can have: far from all others
UNLIKE = 0.01  # level of the F test by which teachers differ more than their seeds


def correlation_findings(case: Case) -> Iterator[Finding]:
    narrow = list(narrow_teachers(case))
    yield from narrow
    if not narrow:
        yield from _leverage(case)


def narrow_teachers(case: Case) -> Iterator[Finding]:
    """Teachers within the threshold of each other, of which someone may read a correlation."""
    means = _taught(case)
    read = [sum(pair.objective == one.objective for pair in case.pairs) for one in case.objectives]
    if len(means) < 3 or max(read, default=0) < 3:
        return
    wide, noise = max(means.values()) - min(means.values()), _noise(case)
    if wide > case.delta and _differ(case, means, noise):
        return
    beside = f", and seeds of one teacher vary by {points(noise)} (standard deviation)" if noise else ""
    yield Finding(
        "warning",
        "narrow-teachers",
        "Teachers hardly differ",
        f"The means of {count(len(means), 'teacher')} lie within {points(wide)}{beside}: whether students follow their"
        " teachers cannot be read from a correlation.",
        "Add teachers that are clearly worse, or judge by label-free controls alone.",
    )


def _differ(case: Case, means: Mapping[str, float], noise: float) -> bool:
    """Whether teachers differ more than equal ones with such seeds would (an F test); true where there is one seed."""
    from scipy.special import fdtrc  # type: ignore[import-untyped]  # here, because it takes half a second

    seeds = [len(case.book.teacher_scores(name)) for name in means]
    if not noise:
        return True
    ratio = variance(means.values()) * fmean(seeds) / noise**2
    return bool(fdtrc(len(means) - 1, sum(seeds) - len(seeds), ratio) < UNLIKE)


def _taught(case: Case) -> dict[str, float]:
    """The means of teachers that have students."""
    names = dict.fromkeys(pair.teacher for pair in case.pairs)
    return {name: mean for name in names if (mean := case.book.teacher_mean(name)) is not None}


def _noise(case: Case) -> float:
    return seed_noise([case.book.teacher_scores(name) for name in _taught(case)]) or 0.0


def _leverage(case: Case) -> Iterator[Finding]:
    """A high correlation that is gone once one teacher is left out."""
    told: dict[str, str] = {}
    for pair_kind in ("labelled", "free"):
        for one in case.objectives:
            reached = {
                pair.teacher: value
                for pair in case.pairs
                if pair.objective == one.objective and (value := getattr(pair, pair_kind)) is not None
            }
            found = carried_by(_taught(case), reached)
            if found is not None and one.objective not in told:
                teacher, whole, without, number = found
                span = r_interval(without, number - 1)
                interval = f", 95 % interval {span[0]:.2f} to {span[1]:.2f}" if span else ""
                side = " without labels" if pair_kind == "free" and one.free_correlation != one.correlation else ""
                told[one.objective] = (
                    f"{one.objective}{side}: r = {whole:.2f} over {number} teachers, {without:.2f} without"
                    f" {teacher}{interval}"
                )
    if told:
        yield Finding(
            "warning",
            "leverage",
            "A correlation rests on one teacher",
            f"{'; '.join(list(told.values())[:NAMED])}.",
            "Do not read it as following: among the other teachers students do not follow. Add teachers in between.",
        )


def carried_by(taught: Mapping[str, float], reached: Mapping[str, float]) -> tuple[str, float, float, int] | None:
    """The teacher without which a high correlation is lost, r with and without it, and the number of teachers.

    Of teachers that are spread evenly any one may change r by accident: the one that is left out must be far from the
    others.
    """
    names = [name for name in reached if name in taught]
    whole = correlation([taught[name] for name in names], [reached[name] for name in names])
    if whole is None or whole < HIGH or len(names) < FEWEST_POINTS:
        return None
    left: dict[str, float] = {}
    for name in names:
        others = [other for other in names if other != name]
        without = correlation([taught[other] for other in others], [reached[other] for other in others])
        left[name] = 0.0 if without is None else without
    weakest = min(left, key=lambda name: left[name])
    middle = fmean(taught[name] for name in names)
    squares = {name: (taught[name] - middle) ** 2 for name in names}
    if squares[weakest] < CARRIES * (1 - 1 / len(names)) * sum(squares.values()):
        return None
    return (weakest, whole, left[weakest], len(names)) if left[weakest] < LOST else None
