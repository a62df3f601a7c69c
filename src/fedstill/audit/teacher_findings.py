"""Findings about teachers: what broke them, when, and what left their clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from fedstill.audit.case import Case
from fedstill.audit.evidence import RoundFacts, Student, Teacher
from fedstill.audit.evidence_lookup import TINY
from fedstill.audit.phrases import named, part
from fedstill.audit.teacher_verdicts import before_and_anew, is_partly_broken, recalibration_gain
from fedstill.audit.verdicts import Finding, Severity
from fedstill.core.numbers import capital, count, points, share

MEASURE_ANEW = (
    "Set `buffers: recalibrate`, which measures the merged model's statistics on the clients, or at least"
    " `buffers: average`; then train this teacher again."
)


def teacher_findings(case: Case) -> Iterator[Finding]:
    for name, by_seed in case.book.teachers.items():
        seeds = list(by_seed.values())
        yield from _broken(case, name, seeds)
        yield from _broken_rounds(name, seeds)
        yield from _stale(case, name, seeds)
    yield from _chosen_on_test_data(case)
    yield from _said_to_be_chosen(case)
    yield from _egress(case)


def _broken(case: Case, name: str, seeds: Sequence[Teacher]) -> Iterator[Finding]:
    verdict = next(one for one in case.teachers if one.teacher == name)
    titles: dict[str, tuple[Severity, str, str]] = {
        "non-finite": ("serious", "does not give finite outputs", "A student cannot learn from it."),
        "constant": (
            "serious",
            "answers one and the same class",
            "Its answers tell nothing apart; whether its soft outputs do, only label-free students show.",
        ),
        "below-chance": (
            "serious",
            "is below the chance level",
            "A model that learnt nothing scores more, so its classes are probably swapped: compare the order of classes"
            " in training and evaluation.",
        ),
        "chance": ("warning", "is at the chance level", "Do not read anything into its students."),
    }
    if verdict.word not in titles:
        return
    severity, what, so = titles[verdict.word]
    if verdict in case.untold:
        severity, what = "note", "cannot be told from the chance level"
        so = "Its mean says little; look at every seed by itself."
    if is_partly_broken(verdict):
        what += f" in {part(sum(one.score is None for one in seeds), len(seeds), 'seed')}"
        so = "Its mean is over the other seeds, and no student can learn from it in these."
    if verdict.word == "constant" and all(one.constant is None for one in seeds):
        what = "seems to answer one and the same class"
    told = "" if verdict.accuracy is None else f" Accuracy {share(verdict.accuracy)}."
    reason = _reason(seeds)
    yield Finding(
        severity,
        f"{verdict.word}-teacher",
        f"Teacher {name} {what}",
        f"{verdict.why}{told}{reason}",
        f"{so} {MEASURE_ANEW if reason else 'Find out why before using it.'}",
    )


def _reason(seeds: Sequence[Teacher]) -> str:
    """BatchNorm, where the journal shows it."""
    rounds = [facts for one in seeds for facts in one.rounds]
    negative = [facts for facts in rounds if facts.negative_variances > 0]
    through = [one for one in seeds if one.buffers == "as-parameters"]
    told = f" Running variances were negative in {part(len(negative), len(rounds), 'round')}." if negative else ""
    if through:
        told += " BatchNorm's running statistics went through the server's rule (`buffers: as-parameters`)."
    return told


def _broken_rounds(name: str, seeds: Sequence[Teacher]) -> Iterator[Finding]:
    """Rounds before the last, too: a curve with holes is no curve."""
    every = [(one, facts) for one in seeds for facts in one.rounds]
    bad = [(one, facts) for one, facts in every if not facts.finite]
    if bad:
        yield Finding(
            "serious" if _at_the_end(bad) else "warning",
            "non-finite-rounds",
            f"Teacher {name} was not finite in some rounds",
            f"{_rounds(bad, len(every), len(seeds))}.{_reason(seeds)} Such rounds score exactly what one class would.",
            MEASURE_ANEW if _reason(seeds) else "Lower the learning rate or clip updates, and look at the losses.",
        )
    flat = [(one, facts) for one, facts in every if facts.finite and (facts.constant or 0.0) >= 1 - TINY]
    if flat:
        # A first round that answers one class is how training begins, not a fault.
        severity: Severity = "warning" if _at_the_end(flat) or 2 * len(flat) > len(every) else "note"
        yield Finding(
            severity,
            "constant-rounds",
            f"Teacher {name} answered a single class in some rounds",
            f"{_rounds(flat, len(every), len(seeds))}.{_reason(seeds)}",
            MEASURE_ANEW if _reason(seeds) else "Look at its curve: is it the beginning, or a collapse?",
        )


def _rounds(bad: Sequence[tuple[Teacher, RoundFacts]], total: int, seeds: int) -> str:
    teacher, facts = bad[0]
    where = f"round {facts.round}" + (f" of seed {teacher.seed}" if seeds > 1 else "")
    if total == 1:
        return f"It has one round only, {where}"
    return f"{capital(part(len(bad), total, 'round'))}{f': {where}' if len(bad) == 1 else f', first in {where}'}"


def _at_the_end(bad: Sequence[tuple[Teacher, RoundFacts]]) -> bool:
    return any(facts.round == one.rounds[-1].round for one, facts in bad)


def _stale(case: Case, name: str, seeds: Sequence[Teacher]) -> Iterator[Finding]:
    gain = recalibration_gain(seeds)
    if gain is None or gain <= case.delta:
        return
    anew = fmean(after for _, after in before_and_anew(seeds))
    yield Finding(
        "warning",
        "stale-teacher",
        f"Teacher {name} is better than it seems",
        f"With BatchNorm's statistics measured anew, same weights, it reaches {share(anew)}: {points(gain)} more."
        f"{_reason(seeds)}",
        MEASURE_ANEW,
    )


def _chosen_on_test_data(case: Case) -> Iterator[Finding]:
    """`best` is the round that did best on the very data that accuracies are reported on."""
    evidence = case.book.evidence
    teachers = [
        (one.name, one.accuracies) for one in evidence.teachers if one.which == "best" and one.score is not None
    ]
    students = [(one.objective, one.accuracies) for one in evidence.students if one.score is not None]
    if not any(_reports_its_best(one) for one in evidence.students):
        students = []
    for what, chosen in (("teacher", teachers), ("student", students)):
        if chosen:
            names = named(list(dict.fromkeys(name for name, _ in chosen)))
            told = list(_gaps([accuracies for _, accuracies in chosen]))
            yield Finding(
                "warning",
                "chosen-on-test-data",
                f"{capital(what)}s were chosen by their test accuracy",
                f"What counts is the best round on the test data ({names}){': ' + '; '.join(told) if told else ''}."
                " Such an accuracy is no estimate of what other data would give.",
                "Set a `validation` share and take the `selected` model, or take the last one.",
            )


def _said_to_be_chosen(case: Case) -> Iterator[Finding]:
    """A table of other software has a column that says how the reported models were selected."""
    chosen = case.book.evidence.chosen_on_test
    if chosen:
        yield Finding(
            "warning",
            "chosen-on-test-data",
            "Models were chosen by their test accuracy",
            f"The column selection says so of {count(len(chosen), 'row')}: {named(list(chosen))}. The best of several"
            " test accuracies is no estimate of what other data would give.",
            "Choose on validation data, or report the last model; do not compare such rows with others.",
        )


def _reports_its_best(student: Student) -> bool:
    best, last = (student.accuracies.get(which) for which in ("best", "last"))
    return student.score is not None and best is not None and student.score.accuracy == best and best != last


def _gaps(accuracies: Sequence[Mapping[str, float]]) -> Iterator[str]:
    for other in ("last", "selected"):
        gaps = [one["best"] - one[other] for one in accuracies if "best" in one and other in one]
        if gaps:
            yield f"{points(fmean(gaps))} above the {other} model on average, at most {points(max(gaps))}"


def _egress(case: Case) -> Iterator[Finding]:
    kinds: tuple[tuple[str, Severity, str], ...] = (
        ("inputs", "serious", "the data itself"),
        ("labels", "serious", "labels"),
        ("features", "warning", "features, from which inputs can often be rebuilt,"),
    )
    for kind, severity, what in kinds:
        names = list(dict.fromkeys(one.name for one in case.book.evidence.teachers if kind in one.egress))
        if names:
            yield Finding(
                severity,
                f"egress-{kind}",
                f"{capital(kind)} leave the clients",
                f"In the training of {named(names)}, {what} were sent to the server.",
                "Look at `fedstill egress`; what is sent cannot be called private.",
            )
