"""Findings about students: labels that hide a teacher, students that should not be that good, or that bad."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from fedstill.audit.case import JUDGED, LEADERS, Case
from fedstill.audit.phrases import NAMED, among_best, called, named, part
from fedstill.audit.teacher_verdicts import FAR, accuracy_interval
from fedstill.audit.verdicts import NOT_ASSESSABLE, Finding, PairVerdict
from fedstill.core.numbers import capital, count, points, share

WITHOUT_LABELS = "Report students that were distilled without labels (`labels: no-ce` or `withhold`)"


def student_findings(case: Case) -> Iterator[Finding]:
    yield from _masked(case)
    yield from _masked_by_pattern(case)
    yield from _recovered(case)
    yield from _crowned(case)
    yield from _too_good(case)
    yield from _stuck(case)
    yield from _outvoted(case)
    yield from _absent(case)


def _masked(case: Case) -> Iterator[Finding]:
    judged = case.judged
    masked = sorted((pair for pair in judged if pair.word == "masked"), key=lambda pair: -(pair.masking or 0.0))
    if masked:
        worst = masked[0]
        yield Finding(
            "serious",
            "masked",
            "Labels hide what the teacher is worth",
            f"In {part(len(masked), len(judged), 'pair')} {case.judged_are} the labels added more than"
            f" {points(case.delta)}: {named([called(pair) for pair in masked])}. Most with {called(worst)}:"
            f" {share(worst.labelled)} with labels, {share(worst.free)} without.",
            f"{WITHOUT_LABELS}, or show both side by side.",
        )


def _masked_by_pattern(case: Case) -> Iterator[Finding]:
    """Only where no control could say it better."""
    judged = {pair.objective for pair in case.pairs if pair.word in JUDGED}
    flat = [one for one in case.objectives if one.pattern == "masked by pattern" and one.objective not in judged]
    if flat:
        widest = max(one.range or 0.0 for one in flat)
        yield Finding(
            "serious",
            "masked",
            "Students do not depend on their teachers",
            f"With {named([one.objective for one in flat], 10)} students of all teachers end within {points(widest)} of"
            " each other, far above teachers that differ by much more.",
            f"{WITHOUT_LABELS}: this table has no such control, so the pattern is all there is.",
        )


def _recovered(case: Case) -> Iterator[Finding]:
    found = list(case.recovered())
    if found:
        worst = found[0]
        yield Finding(
            "serious",
            "recovery",
            "Students recover from teachers that are no better than chance",
            f"{capital(count(len(found), 'student'))}: {called(worst)} reaches {share(worst.labelled)}, its teacher"
            f" {share(case.collapsed[worst.teacher].accuracy)}, {points(worst.recovery or 0.0)} less.",
            "The teacher's answers do not explain such accuracies, the proxy data's labels do: leave them out of any"
            " claim about the teacher.",
        )


def _crowned(case: Case) -> Iterator[Finding]:
    """A ranking by student accuracy may put the worst teachers first."""
    top, fallen = case.crowned()
    if fallen:
        yield Finding(
            "serious",
            "leaderboard",
            "The ranking crowns teachers that are no better than chance",
            f"{capital(among_best(fallen, top))} had such a teacher:"
            f" {named([called(pair) for pair in fallen], LEADERS)}.",
            "Rank by label-free students, or by the teachers themselves.",
        )


def _too_good(case: Case) -> Iterator[Finding]:
    """A student that saw no labels cannot be expected to be far above its teacher."""
    far = FAR * case.delta
    found = [
        (pair, pair.free - taught)
        for pair in case.pairs
        if pair.free is not None
        and pair.word != NOT_ASSESSABLE
        and (taught := case.book.teacher_mean(pair.teacher)) is not None
        and pair.free - taught > far
    ]
    if found:
        found.sort(key=lambda item: -item[1])
        worst, gap = found[0]
        yield Finding(
            "serious" if any(pair.teacher in case.collapsed for pair, _ in found) else "warning",
            "label-leak",
            "Label-free students are far above their teachers",
            f"{named([called(pair) for pair, _ in found])}; most with {called(worst)}: {points(gap)} above its teacher."
            " Either the control saw labels, or the teacher's outputs hold more than its accuracy says.",
            "Distil with labels withheld and compare; an objective like DKD must take the teacher's own class for its"
            " target; measure the teacher's BatchNorm statistics anew.",
        )


def _stuck(case: Case) -> Iterator[Finding]:
    """Students at one class's share: a fault where a cross-entropy was trained, no surprise where none was."""
    stuck: list[PairVerdict] = []
    flat: list[PairVerdict] = []
    for pair in case.pairs:
        if case.book.weight(pair.objective):
            if _at_chance(case, pair) and not _foreseen(case, pair):
                stuck.append(pair)
        elif _one_class(case, pair):
            flat.append(pair)
    if stuck:
        accuracies = sorted({share(pair.labelled) for pair in stuck})
        exactly = [called(pair) for pair in stuck if _one_class(case, pair)]
        which = "" if len(exactly) == len(stuck) else f" with {named(exactly, 10)}" if exactly else ""
        told = f" It is exactly one class's share in every seed{which}." if exactly else ""
        yield Finding(
            "serious",
            "stuck-student",
            "Students stay at the chance level despite their labels",
            f"{named([called(pair) for pair in stuck], 10)}: accuracy {named(accuracies)}, although the objective"
            f" trains on the labels, too.{told}",
            "Look at the loss of these runs: perhaps the teacher's outputs made it non-finite, or they broke off. Do"
            " not read them as a method's result.",
        )
    if flat:
        yield Finding(
            "note",
            "constant-student",
            "Students answer one class",
            f"{named([called(pair) for pair in flat], 10)}: accuracy equal to one class's share in every seed.",
            "Expected of a teacher that answers one class; else look at the run.",
        )


def _outvoted(case: Case) -> Iterator[Finding]:
    """Labels do not mask a teacher that is sure of the wrong class: the masking ceiling says so beforehand."""
    found = [pair for pair in case.pairs if pair.ceiling is not None and pair.ceiling < 1 - FAR * case.delta]
    if found:
        told = [
            f"{called(pair)}: at most {share(pair.ceiling)} of the labels can win, the student reaches"
            f" {share(pair.labelled)}"
            for pair in sorted(found, key=lambda pair: pair.ceiling or 0.0)
        ]
        yield Finding(
            "note",
            "outvoted-labels",
            "Some teachers are so sure of wrong answers that labels cannot mask them",
            f"{'; '.join(told[:NAMED])}.",
            "Known before any student was trained, from the teacher's outputs on the proxy data: look at that teacher"
            " first.",
        )


def _foreseen(case: Case, pair: PairVerdict) -> bool:
    """Whether the teacher's outputs explain that the student did not learn the labels."""
    if pair.ceiling is None or pair.labelled is None:
        return False
    return pair.ceiling < 1 - FAR * case.delta and pair.labelled >= pair.ceiling - FAR * case.delta


def _one_class(case: Case, pair: PairVerdict) -> bool:
    return case.book.equals_a_class(case.book.labelled_scores((pair.teacher, pair.objective)).values())


def _at_chance(case: Case, pair: PairVerdict) -> bool:
    """The interval reaches chance; a wide one because one seed failed is another matter: see `unstable`."""
    scores = list(case.book.labelled_scores((pair.teacher, pair.objective)).values())
    interval = accuracy_interval(scores, case.book.samples)
    if interval is None or case.book.chance is None:
        return False
    best = max(score.accuracy for score in scores)
    return interval.low <= case.book.chance and best <= case.book.chance + FAR * case.delta


def _absent(case: Case) -> Iterator[Finding]:
    bare = [pair for pair in case.pairs if pair.word == "no control"]
    if bare:
        told = part(len(bare), len(case.pairs), "pair")
        yield Finding(
            "warning",
            "no-control",
            "There is no label-free control",
            f"{capital(told)} cannot be judged{' one by one' if len(bare) > 1 else ''}.",
            "Distil the same teachers once more with `labels: no-ce`.",
        )
    beyond = list(dict.fromkeys(pair.objective for pair in case.pairs if pair.word == NOT_ASSESSABLE))
    if beyond:
        yield Finding(
            "note",
            "not-assessable",
            f"{capital(named(beyond))} cannot be judged",
            "Without labels nothing trains the classifier, so there is no control to compare with.",
            "Use an objective with soft targets beside it, e.g. `crd+kl`.",
        )
    yield from _missing(case)


def _missing(case: Case) -> Iterator[Finding]:
    lost = [one for one in case.book.evidence.students if one.score is None and one.missing != NOT_ASSESSABLE]
    if lost:
        reasons = list(dict.fromkeys(one.missing or "no reason given" for one in lost))
        places = [f"{one.teacher} with {one.objective}, seed {one.seed}" for one in lost]
        yield Finding(
            "warning",
            "missing",
            "Some students are missing",
            f"{capital(count(len(lost), 'student'))}: {named(places)} ({named(reasons, 2)}).",
            "Means are over those that are there; run the others before comparing.",
        )


def unstable_findings(case: Case) -> Iterator[Finding]:
    """A mean over seeds hides a seed that failed."""
    wild = [(pair, seeds) for pair in case.pairs if (seeds := _spread(case, pair)) is not None]
    if wild:
        pair, values = max(wild, key=lambda item: max(item[1]) - min(item[1]))
        yield Finding(
            "warning",
            "unstable",
            "Some seeds failed",
            f"{named([called(one) for one, _ in wild])}: seeds differ by more than {points(FAR * case.delta)}, although"
            f" their labels are the same. Most with {called(pair)}: from {share(min(values), 1)} to"
            f" {share(max(values), 1)}, mean {share(fmean(values), 1)}.",
            "Show seeds, not only means, and look at the runs that fell behind.",
        )


def _spread(case: Case, pair: PairVerdict) -> Sequence[float] | None:
    """Accuracies of students that labels hold up, where seeds are far apart all the same."""
    if not case.book.weight(pair.objective):
        return None
    values = [score.accuracy for score in case.book.labelled_scores((pair.teacher, pair.objective)).values()]
    return values if len(values) > 1 and max(values) - min(values) > FAR * case.delta else None
