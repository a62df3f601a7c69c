"""Findings about students: labels that hide a teacher, students that should not be that good, or that bad."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fedstill.audit.case import LEADERS, Case
from fedstill.audit.objectives import depends_on_none, pattern
from fedstill.audit.phrases import NAMED, among_best, be, called, named, part
from fedstill.audit.teacher_verdicts import FAR, accuracy_interval
from fedstill.audit.verdicts import NOT_ASSESSABLE, Finding, ObjectiveVerdict, PairVerdict
from fedstill.core.numbers import capital, count, points, share

SURE = 3.0  # standard errors by which a single label-free student must be above its teacher
OFTEN = 0.2  # of the pairs: so many are not there by accident
WITHOUT_LABELS = "Report students that were distilled without labels (`labels: no-ce` or `withhold`)"


def student_findings(case: Case) -> Iterator[Finding]:
    yield from _masked(case)
    yield from _masked_by_pattern(case)
    yield from _flat(case)
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
        sure = case.surely(judged)
        yield Finding(
            "serious" if sure else "warning",
            "masked",
            "Labels hide what the teacher is worth" if sure else "Labels may hide what some teachers are worth",
            f"In {part(len(masked), len(judged), 'pair')} {case.judged_are} the labels added more than"
            f" {points(case.delta)}: {named([called(pair) for pair in masked])}. Most with {called(worst)}:"
            f" {share(worst.labelled)} with labels, {share(worst.free)} without.{_corrected(len(sure), len(judged))}",
            f"{WITHOUT_LABELS}, or show both side by side.",
        )


def _corrected(sure: int, comparisons: int) -> str:
    """What is left once the number of comparisons is allowed for."""
    if comparisons < 2:
        return ""
    return f" After Holm's correction for {comparisons:,} comparisons {sure or 'none'} of them {be(sure)} masked."


def _masked_by_pattern(case: Case) -> Iterator[Finding]:
    """Only where no control could say it better."""
    flat = case.masked_by_pattern
    if flat:
        widest = max(flat_range(one) for one in flat)
        failed = " Single seeds that failed are left out." if any(one.steady_range for one in flat) else ""
        yield Finding(
            "serious",
            "masked",
            "Students do not depend on their teachers",
            f"With {named([one.objective for one in flat], 10)} students of all teachers end within {points(widest)} of"
            f" each other, far above teachers that differ by much more.{failed}",
            f"{WITHOUT_LABELS}: {_controls_lack(case, flat)}, so the pattern is all there is.",
        )


def _controls_lack(case: Case, flat: Sequence[ObjectiveVerdict]) -> str:
    """Why no control says it."""
    names = {one.objective for one in flat}
    if any(pair.objective in names and pair.free is not None for pair in case.pairs):
        return "seeds are too few for an interval of its controls, and the number of test samples is not known"
    return "this table has no such control"


def _flat(case: Case) -> Iterator[Finding]:
    """Students that do not follow their teachers, although nothing shows that labels hide these."""
    taught = {name: mean for name in case.book.teachers if (mean := case.book.teacher_mean(name)) is not None}
    flat = []
    for one in case.objectives:
        reached = {
            pair.teacher: pair.labelled
            for pair in case.pairs
            if pair.objective == one.objective and pair.labelled is not None
        }
        if one.pattern == "unclear" and depends_on_none(taught, reached, case.delta):
            flat.append(one)
    if flat:
        widest = max(one.range or 0.0 for one in flat)
        wide = max(taught.values()) - min(taught.values())
        yield Finding(
            "warning",
            "flat-students",
            "Students hardly depend on their teachers",
            f"With {named([one.objective for one in flat], 10)} students of all teachers end within {points(widest)} of"
            f" each other, and not in the order of their teachers, which range over {points(wide)}.",
            "Do not credit single teachers with these accuracies: find out what limits the students (their size, their"
            " training), or what else they learnt from.",
        )


def flat_range(one: ObjectiveVerdict) -> float:
    """The range of students that do not depend on their teachers, without seeds that failed."""
    return one.steady_range if one.steady_range is not None else one.range or 0.0


def _recovered(case: Case) -> Iterator[Finding]:
    found = case.recovered()
    if found:
        worst = found[0]
        fallen = all(pair.teacher in case.collapsed for pair in found)
        teachers = "teachers that are no better than chance" if fallen else "teachers that do not explain them"
        yield Finding(
            "serious",
            "recovery",
            f"Students recover from {teachers}",
            f"{capital(count(len(found), 'student'))}: {called(worst)} reaches {share(worst.labelled)}, its teacher"
            f" {share(case.book.teacher_mean(worst.teacher))}, {points(worst.recovery or 0.0)} less.",
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
    """A student without labels cannot be expected to be far above its teacher, nor equally good with every teacher."""
    gaps = {
        (pair.teacher, pair.objective): pair.free - taught
        for pair in case.pairs
        if pair.free is not None
        and pair.word != NOT_ASSESSABLE
        and (taught := case.book.teacher_mean(pair.teacher)) is not None
    }
    flat = [name for name in case.book.objectives if _free_is_flat(case, name)]
    above = {(pair.teacher, pair.objective) for pair in case.above_teachers()}
    far = [pair for pair in case.pairs if gaps.get((pair.teacher, pair.objective), 0.0) > FAR * case.delta]
    doubtful = {(pair.teacher, pair.objective) for pair in far if not _is_sure(pair)}
    if len(far) > max(OFTEN * len(gaps), 1):  # noise puts single students that far above their teachers, and not many
        doubtful = set()
    found = [
        (f"{teacher} with {objective}", gap, teacher)
        for (teacher, objective), gap in gaps.items()
        if (gap > FAR * case.delta and (teacher, objective) not in doubtful)
        or (gap > case.delta and (objective in flat or (teacher, objective) in above))
    ]
    if found:
        found.sort(key=lambda item: -item[1])
        worst, gap, _ = found[0]
        nothing = any(gap > 2 * case.delta and teacher in case.collapsed for _, gap, teacher in found)
        serious = flat or nothing or gap > 2 * FAR * case.delta
        alike = f" With {named(flat)} they do not depend on their teachers at all." if flat else ""
        declared = any(case.book.weight(name) == 0 for name in case.book.objectives)
        yield Finding(
            "serious" if serious else "warning",
            "label-leak",
            f"Label-free students are {'far ' if gap > FAR * case.delta else ''}above their teachers",
            f"{named([name for name, *_ in found])}; most with {worst}: {points(gap)} above its teacher.{alike}"
            " Either the control saw labels, or the teacher's outputs hold more than its accuracy says.",
            "Distil with labels withheld and compare; an objective like DKD must take the teacher's own class for its"
            " target; measure the teacher's BatchNorm statistics anew."
            + (" Check that a declared label weight of 0 is the one that was used." if declared else ""),
        )


def _is_sure(pair: PairVerdict) -> bool:
    """Whether the test samples and seeds, as far as they are known, do not explain that a student is so far above."""
    error = None if pair.excess_interval is None else pair.excess_interval.error
    return not error or (pair.excess or 0.0) > SURE * error


def _free_is_flat(case: Case, objective: str) -> bool:
    """Whether students without labels show the pattern of students that learn from labels."""
    free = {pair.teacher: pair.free for pair in case.pairs if pair.objective == objective and pair.free is not None}
    taught = {name: mean for name in free if (mean := case.book.teacher_mean(name)) is not None}
    return pattern(taught, free, case.delta) == "masked by pattern"


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
