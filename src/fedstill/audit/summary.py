"""What was found, in a few sentences that change when the results do; the first is the most important."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fedstill.audit.case import Case
from fedstill.audit.objectives import TRACKS
from fedstill.audit.phrases import among_best, be, called, every, named, part
from fedstill.audit.verdicts import Finding
from fedstill.core.numbers import capital, count, points, share


def summary(case: Case, findings: Sequence[Finding]) -> tuple[str, ...]:
    told = [_headline(case), *_teachers(case), *_following(case), *_ranking(case), *_synergy(case), *_others(findings)]
    return tuple(told)


def _headline(case: Case) -> str:
    if not case.pairs:
        return "There are no students here: only teachers were looked at."
    return _with_controls(case) if case.judged else _without_controls(case)


def _with_controls(case: Case) -> str:
    judged, which = case.judged, case.judged_are
    masked = [pair for pair in judged if pair.word == "masked"]
    unsure = sum(pair.word == "inconclusive" for pair in judged)
    rest = (
        f" In {part(unsure, len(judged), 'pair')} the seeds or test samples do not suffice to tell." if unsure else ""
    )
    if masked:
        worst = max(masked, key=lambda pair: pair.masking or 0.0)
        return (
            f"Labels hide the teacher: in {part(len(masked), len(judged), 'pair')} {which} the"
            f" student owes them more than {points(case.delta)}; {called(worst)} reaches {share(worst.labelled)}"
            f" with labels and {share(worst.free)} without.{rest}"
        )
    if unsure:
        faithful = len(judged) - unsure
        if not faithful:
            told = every(len(judged), "pair")
            return (
                f"Neither masking nor the lack of it was shown: in {told} {which} the seeds or test samples do not"
                " suffice to tell."
            )
        told = f"{part(faithful, len(judged), 'pair')} {which} {be(faithful)}"
        return f"No masking was shown, and {told} faithful to the teacher.{rest}"
    return (
        f"Students are what their teachers made them: in {every(len(judged), 'pair')} {which} the"
        f" labels added no more than {points(case.delta)}."
    )


def _without_controls(case: Case) -> str:
    flat = [one for one in case.objectives if one.pattern == "masked by pattern"]
    if flat:
        widest = max(one.range or 0.0 for one in flat)
        return (
            f"Labels hide the teacher, by the pattern: with {named([one.objective for one in flat], 10)} students end"
            f" within {points(widest)} of each other whoever taught them. There is no label-free control to prove it."
        )
    found = list(case.recovered())
    if found:
        best = found[0]
        return (
            f"Teachers do not explain their students: {called(best)} reaches {share(best.labelled)}, although the"
            f" teacher is at {share(case.collapsed[best.teacher].accuracy)}. There is no label-free control that"
            " would tell how much of the others is their labels'."
        )
    if all(pair.word == "no student" for pair in case.pairs):
        return "No student was trained to the end: nothing can be said of them."
    if all(not case.reads_labels(pair) for pair in case.pairs):
        return "None of these objectives gives labels any weight: what students know, they have from their teachers."
    return "Without a label-free control nothing can be said of single students, and no objective shows the pattern."


def _teachers(case: Case) -> Iterator[str]:
    if not case.teachers:
        yield "Nothing is known of the teachers themselves."
        return
    bad, untold, partly = case.collapsed.values(), case.untold, case.partly_broken
    if bad:
        listed = [f"{one.teacher} ({one.word})" for one in bad]
        told = f"{part(len(bad), len(case.teachers), 'teacher')} {be(len(bad))}"
        yield f"{capital(told)} no better than chance: {named(listed, 6)}."
    elif case.book.chance is not None and not untold and not partly:
        total = count(len(case.teachers), "teacher")
        yield f"No teacher is at the chance level of {share(case.book.chance)} ({total})."
    if untold:
        so = "its mean is" if len(untold) == 1 else "their means are"
        yield (
            f"{named([one.teacher for one in untold], 6)} cannot be told from the chance level of"
            f" {share(case.book.chance)}, although {so} far above it."
        )
    if partly:
        verb = "does" if len(partly) == 1 else "do"
        yield f"{named([one.teacher for one in partly], 6)} {verb} not give finite outputs in some seeds."
    stale = [one.teacher for one in case.teachers if one.word == "stale"]
    if stale:
        yield f"BatchNorm's statistics are stale in {named(stale, 6)}: measured anew, the same weights do better."


def _following(case: Case) -> Iterator[str]:
    """Whether students without labels follow their teachers, beside those with labels."""
    free = [one.free_correlation for one in case.objectives if one.free_correlation is not None]
    with_labels = [
        one.correlation for one in case.objectives if one.correlation is not None and one.hard_label_weight != 0
    ]
    if free:
        how = "follow their teachers" if min(free) >= TRACKS else "do not all follow their teachers"
        yield f"Students without labels {how}: r {_span(free)}" + (
            f"; with labels r {_span(with_labels)}." if with_labels else "."
        )


def _span(values: Sequence[float]) -> str:
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return f"= {low}" if low == high else f"from {low} to {high}"


def _ranking(case: Case) -> Iterator[str]:
    top, fallen = case.crowned()
    if fallen:
        told = named([called(pair) for pair in fallen])
        yield f"{capital(among_best(fallen, top))} had a teacher no better than chance: {told}."


def _synergy(case: Case) -> Iterator[str]:
    """Against the better of the two parts that a pipeline is made of."""
    known = [pair for pair in case.pairs if pair.synergy is not None]
    if not known:
        return
    best = max(known, key=lambda pair: pair.synergy or 0.0)
    if (best.synergy or 0.0) > 0:
        yield (
            f"The most that teacher and labels gained together is {points(best.synergy or 0.0)} over the better of the"
            f" two ({called(best)})."
        )
    else:
        yield "No student is better than the better of its teacher and a student that saw labels alone."


def _others(findings: Sequence[Finding]) -> Iterator[str]:
    told_already = {"masked", "recovery", "leaderboard", "constant-teacher", "chance-teacher", "non-finite-teacher"}
    others = [one for one in findings if one.severity == "serious" and one.topic not in told_already]
    if others:
        yield f"Also serious: {'; '.join(one.title[:1].lower() + one.title[1:] for one in others)}."
