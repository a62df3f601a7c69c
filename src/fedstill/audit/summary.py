"""What was found, in a few sentences that change when the results do; the first is the most important."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from fedstill.audit.case import Case, has_interval
from fedstill.audit.gain_findings import gain_told, includes_nothing, signed
from fedstill.audit.objectives import TRACKS
from fedstill.audit.phrases import among_best, be, called, every, named, part
from fedstill.audit.statistics import seed_noise
from fedstill.audit.student_findings import flat_range
from fedstill.audit.verdicts import Finding, ObjectiveVerdict, PairVerdict
from fedstill.core.numbers import capital, count, points, share

# Findings that a good word for these results would contradict.
DOUBTS = (
    "edited",
    "stale",
    "impossible-accuracy",
    "copied-control",
    "copied-teacher",
    "label-leak",
    "labels-alone",
    "harmful-teacher",
    "recovery",
    "masked",
    "flat-students",
    "stuck-student",
    "duplicate-teachers",
    "duplicate-objectives",
    "identical-seeds",
    "below-chance-teacher",
)
# Findings that do not contradict it, but make it less certain.
RESERVATIONS = (
    "one-checkpoint",
    "missing",
    "chosen-on-test-data",
    "unstable",
    "narrow-teachers",
    "leverage",
    "labels-alone",
)
CORRELATIONS = ("narrow-teachers", "leverage")
# Of a table of methods alone: what makes a ranking less than it seems.
METHOD_RESERVATIONS = (*RESERVATIONS, "non-finite-teacher", "constant-teacher", "chance-teacher")
CONTROL_FAULTS = ("copied-control", "label-leak")
INTEGRITY = ("edited", "stale")

Tone = Literal["good", "hedged", "bad"]


def summary(case: Case, findings: Sequence[Finding]) -> tuple[str, ...]:
    told = [
        *_integrity(findings),
        _headline(case, findings),
        *_gains(case),
        *_teachers(case),
        *_following(case, findings),
        *_ranking(case),
        *_synergy(case),
        *_others(findings),
    ]
    return tuple(told)


def _integrity(findings: Sequence[Finding]) -> Iterator[str]:
    """Before anything else: whether these are the results that were computed."""
    for finding in findings:
        if finding.topic in INTEGRITY:
            yield f"{finding.title}: {finding.evidence[:1].lower()}{finding.evidence[1:]}"


def _headline(case: Case, findings: Sequence[Finding]) -> str:
    """The most important sentence; a good one only where nothing that was found speaks against it."""
    if not case.pairs:
        return _methods_alone(case, findings)
    sentence, tone = _with_controls(case) if case.judged and not _flat(case) else _without_controls(case)
    faults = [one for one in findings if one.topic in CONTROL_FAULTS]
    doubts = faults or [one for one in findings if _contradicts(one)]
    if not doubts or (tone == "bad" and (not faults or _is_masked(case))):
        above = case.above_teachers() if tone != "bad" else []
        return _above_their_teachers(case, above) if above else _with_reservations(sentence, tone, findings)
    what = "The label-free controls cannot be trusted" if faults else "These results cannot be taken as they stand"
    return f"{what}: {'; '.join(one.title[:1].lower() + one.title[1:] for one in doubts[:3])}. {doubts[0].evidence}"


def _contradicts(finding: Finding) -> bool:
    """A note of single pairs without a gain is a reservation."""
    return finding.topic in DOUBTS and finding.severity != "note"


def _methods_alone(case: Case, findings: Sequence[Finding]) -> str:
    """Of a table without students: who leads, whether that is shown, and how much seeds vary."""
    ranked = sorted((one for one in case.teachers if one.accuracy is not None), key=lambda one: -(one.accuracy or 0.0))
    if not ranked:
        return "There are no students here, and no method has a result."
    first = ranked[0]
    seeds = max(len(case.book.teachers[one.teacher]) for one in ranked)
    sentence = (
        f"There are no students here: {count(len(ranked), 'method')} with up to {count(seeds, 'seed')}."
        f" {first.teacher} is first with {share(first.accuracy)}"
    )
    topics = {one.topic for one in findings}
    if len(ranked) > 1:
        unknown = topics & {"noise-teachers", "one-seed-teachers"}
        sentence += "; that it is the best is not shown" if unknown else ", clearly before the second"
    noise = seed_noise([case.book.teacher_scores(one.teacher) for one in ranked])
    sentence += "." if noise is None else f". Seeds of one method vary by {points(noise)} (standard deviation)."
    doubts = [one for one in findings if _contradicts(one)]
    if not doubts:
        return _with_reservations(sentence, "hedged", findings, METHOD_RESERVATIONS)
    told = "; ".join(one.title[:1].lower() + one.title[1:] for one in doubts[:3])
    return f"These results cannot be taken as they stand: {told}. {doubts[0].evidence} {sentence}"


def _with_reservations(
    sentence: str, tone: Tone, findings: Sequence[Finding], topics: Sequence[str] = RESERVATIONS
) -> str:
    """A good sentence, with what makes it less certain: before it, or behind one that is careful already."""
    found = [one for one in findings if one.topic in topics]
    titles = "; ".join(one.title[:1].lower() + one.title[1:] for one in found)
    if not titles or tone == "bad":
        return sentence
    # A gain over labels alone does not rest on a correlation with teachers.
    aside = sentence.startswith("Distillation helped") and all(one.topic in CORRELATIONS for one in found)
    if tone == "hedged" or aside:
        return f"{sentence} Reservations: {titles}."
    return f"With reservations ({titles}): {sentence[:1].lower()}{sentence[1:]}"


def _above_their_teachers(case: Case, above: Sequence[PairVerdict]) -> str:
    """Instead of a good word: a student without labels knows more than its teacher showed."""
    most, known = above[0], sum(pair.excess is not None for pair in case.pairs)
    interval = most.excess_interval
    span = "" if interval is None else f", 95 % interval {signed(interval.low)} to {signed(interval.high)}"
    return (
        f"Label-free students are above their teachers in {part(len(above), known, 'pair')}, most with {called(most)}"
        f" ({signed(most.excess or 0.0)}\u00a0points{span}): unless such students are known to do this, make sure that"
        " no labels reached them."
    )


def _is_masked(case: Case) -> bool:
    return any(pair.word == "masked" for pair in case.judged) or bool(_flat(case))


def _flat(case: Case) -> list[ObjectiveVerdict]:
    if any(has_interval(pair) for pair in case.judged):
        return []
    return [one for one in case.objectives if one.pattern == "masked by pattern"]


def _with_controls(case: Case) -> tuple[str, Tone]:
    """What the controls say, and how good it is."""
    judged, which = case.judged, case.judged_are
    masked = [pair for pair in judged if pair.word == "masked"]
    unsure = sum(pair.word == "inconclusive" for pair in judged)
    rest = (
        f" In {part(unsure, len(judged), 'pair')} the seeds or test samples do not suffice to tell." if unsure else ""
    )
    if masked and not case.surely(judged):
        return (
            f"Masking is possible and not shown: {part(len(masked), len(judged), 'pair')} {which} {be(len(masked))}"
            f" above {points(case.delta)}, none after Holm's correction for {len(judged):,} comparisons.{rest}"
        ), "bad"
    if masked:
        worst = max(masked, key=lambda pair: pair.masking or 0.0)
        return (
            f"Labels hide the teacher: in {part(len(masked), len(judged), 'pair')} {which} the"
            f" student owes them more than {points(case.delta)}; {called(worst)} reaches {share(worst.labelled)}"
            f" with labels and {share(worst.free)} without.{rest}"
        ), "bad"
    if unsure:
        faithful = len(judged) - unsure
        if not faithful:
            told = every(len(judged), "pair")
            return (
                f"Neither masking nor the lack of it was shown: in {told} {which} the seeds or test samples do not"
                " suffice to tell."
            ), "bad"
        told = f"{part(faithful, len(judged), 'pair')} {which} {be(faithful)}"
        return f"No masking was shown, and {told} faithful to the teacher.{rest}", "hedged"
    return (
        f"Students are what their teachers made them: in {every(len(judged), 'pair')} {which} the"
        f" labels added no more than {points(case.delta)}."
    ), "good"


def _without_controls(case: Case) -> tuple[str, Tone]:
    flat = _flat(case)
    if flat:
        widest = max(flat_range(one) for one in flat)
        return (
            f"Labels hide the teacher, by the pattern: with {named([one.objective for one in flat], 10)} students end"
            f" within {points(widest)} of each other whichever teacher they had."
            + (
                " The label-free controls have no interval that would prove it."
                if case.judged
                else " There is no label-free control to prove it."
            )
        ), "bad"
    found = case.recovered()
    if found:
        best = found[0]
        return (
            f"Teachers do not explain their students: {called(best)} reaches {share(best.labelled)}, although the"
            f" teacher is at {share(case.book.teacher_mean(best.teacher))}. There is no label-free control that"
            " would tell how much of the others is their labels'."
        ), "bad"
    if all(pair.word == "no student" for pair in case.pairs):
        return "No student was trained to the end: nothing can be said of them.", "bad"
    if all(not case.reads_labels(pair) for pair in case.pairs):
        return (
            "None of these objectives gives labels any weight: what students know, they have from their teachers."
        ), "good"
    return _by_gain(case) or (
        "Without a label-free control nothing can be said of single students, and no objective shows the pattern.",
        "bad",
    )


def _by_gain(case: Case) -> tuple[str, Tone] | None:
    """What students gain over labels alone; None where no gain is shown, or a student is worse."""
    known = [pair for pair in case.pairs if pair.labelled is not None]
    better = [pair for pair in known if pair.gain is not None and pair.gain > 0 and not includes_nothing(pair)]
    worse = [pair for pair in known if (pair.gain or 0.0) < 0 and not includes_nothing(pair)]
    gained = [pair for pair in better if _above_alone(case, pair) > 0]
    best = max(gained or better, key=lambda pair: pair.gain or 0.0, default=None)
    if best is None:
        return None
    most = f", most with {called(best)} ({gain_told(best)})" if len(known) > 1 else f" ({gain_told(best)})"
    if len(gained) == len(known):
        return (
            f"Distillation helped: in {every(len(gained), 'pair')} of teacher and objective the student gains over the"
            f" labels-only student{most}, and its teacher is better than labels alone."
        ), "good"
    sure = {id(pair) for pair in case.surely(known, gain=True)}
    if worse or not all(id(pair) in sure for pair in better):
        return None
    if gained and len(gained) == len(better):
        return (
            f"Distillation helped in {part(len(gained), len(known), 'pair')} of teacher and objective: the student"
            f" gains over the labels-only student{most}, and its teacher is better than labels alone. In the others no"
            " gain is shown."
        ), "hedged"
    if len(better) == len(known) and all(_above_alone(case, pair) > -case.delta for pair in known):
        return (
            f"Students gain over the labels-only student in {every(len(known), 'pair')}{most}, but not all teachers are"
            " better than labels alone: where they are not, as in self-distillation, the gain is the training's and"
            " not the teacher's knowledge."
        ), "hedged"
    return None


def _above_alone(case: Case, pair: PairVerdict) -> float:
    """How far a teacher is above the labels-only student; far below where either is not known."""
    alone, taught = case.book.alone((pair.teacher, pair.objective)), case.book.teacher_mean(pair.teacher)
    return -1.0 if alone is None or taught is None else taught - alone


def _gains(case: Case) -> Iterator[str]:
    """What distillation is about: the gain over the student that saw labels alone."""
    known = [pair for pair in case.pairs if pair.gain is not None]
    if not known:
        return
    better = [pair for pair in known if (pair.gain or 0.0) > 0 and not includes_nothing(pair)]
    worse = [pair for pair in known if (pair.gain or 0.0) < 0 and not includes_nothing(pair)]
    best = max(known, key=lambda pair: pair.gain or 0.0)
    told = f"{part(len(better), len(known), 'pair')} {be(len(better))} better (95 % interval above 0)"
    told += f" and {len(worse)} worse" if worse else ""
    if len(known) > 1 and (better or worse):
        sure = len(case.surely(known, gain=True))
        told += f"; {sure or 'none'} of these after Holm's correction for {len(known):,} comparisons"
    yield f"Against the labels-only student, {told}; the largest gain is {gain_told(best)} ({called(best)})."


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
            f" {share(case.book.chance)}, although {so} above it."
        )
    if partly:
        verb = "does" if len(partly) == 1 else "do"
        yield f"{named([one.teacher for one in partly], 6)} {verb} not give finite outputs in some seeds."
    stale = [one.teacher for one in case.teachers if one.word == "stale"]
    if stale:
        yield f"BatchNorm's statistics are stale in {named(stale, 6)}: measured anew, the same weights do better."


def _following(case: Case, findings: Sequence[Finding]) -> Iterator[str]:
    """Whether students without labels follow their teachers, beside those with labels; not where r says nothing."""
    topics = {finding.topic for finding in findings}
    if topics & {"narrow-teachers", "leverage"}:
        return
    free = [one.free_correlation for one in case.objectives if one.free_correlation is not None]
    with_labels = [
        one.correlation for one in case.objectives if one.correlation is not None and one.hard_label_weight != 0
    ]
    if free and (min(free) < TRACKS or not topics & set(CONTROL_FAULTS)):
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
    told_already = {"masked", "recovery", "leaderboard", *INTEGRITY, *CONTROL_FAULTS}
    told_already |= {"constant-teacher", "chance-teacher", "below-chance-teacher", "non-finite-teacher"}
    others = [one for one in findings if one.severity == "serious" and one.topic not in told_already]
    if others:
        yield f"Also serious: {'; '.join(one.title[:1].lower() + one.title[1:] for one in others)}."
