"""Findings about what a teacher added: students that are what labels alone make, or less."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from statistics import fmean, variance

from fedstill.audit.case import Case
from fedstill.audit.evidence import Score
from fedstill.audit.evidence_lookup import Pair
from fedstill.audit.phrases import NAMED, called, named, part
from fedstill.audit.statistics import item_variance, over_both, t_quantile
from fedstill.audit.teacher_verdicts import FAR
from fedstill.audit.ties import ScoreAgreement, agreement, noise_of_siblings
from fedstill.audit.verdicts import Finding, Interval, PairVerdict
from fedstill.core.numbers import capital, share

NOTHING = 0.2  # of the threshold: a gain below this is none
SMALL = 0.6  # of the threshold: a gain that cannot be larger is as good as none
HARMLESS = 0.005  # probability that any student of a table loses so much without harm
KINDS_OF_GROUPS = 3  # all pairs, those of an objective, those of a teacher
SEEDS_VARY = 0.3  # of the threshold: standard deviation of seeds, where there is only one


@dataclass(frozen=True)
class GainNoise:
    """How much a gain varies between seeds."""

    variance: float
    freedom: float


def gain_findings(case: Case) -> Iterator[Finding]:
    spread = _noise_of_gains(case)
    yield from _labels_alone(case, spread)
    yield from _harmful(case, spread)


def signed(difference: float) -> str:
    """A difference in points, with its sign.

    >>> signed(0.0402), signed(-0.002)
    ('+4.0', '-0.2')
    """
    return f"{100 * difference:+.1f}"


def gain_told(pair: PairVerdict) -> str:
    """A gain with its interval, for the end of a sentence."""
    interval = pair.gain_interval
    known = interval is not None and interval.how != "none"
    span = f", 95 % interval {_span(interval)}" if known and interval is not None else ""
    return f"{signed(pair.gain or 0.0)}\u00a0points{span}"


def _span(interval: Interval) -> str:
    return f"{signed(interval.low)} to {signed(interval.high)}"


def includes_nothing(pair: PairVerdict) -> bool:
    """Whether the interval of the gain includes 0; without an interval nothing is excluded."""
    interval = pair.gain_interval
    return interval is None or interval.how == "none" or interval.low <= 0 <= interval.high


def _labels_alone(case: Case, spread: GainNoise) -> Iterator[Finding]:
    copied = _copied(case)
    same = [pair for pair in case.pairs if case.reads_labels(pair) and _shows_no_gain(case, pair, spread)]
    if not same and not copied:
        return
    worst = min(same, key=lambda pair: abs(pair.gain or 0.0), default=None)
    show = "shows" if len(same) == 1 else "show"
    told = [f"{part(len(same), len(case.pairs), 'pair')} {show} no gain over the labels-only student"] if same else []
    if worst is not None:
        alone = case.book.alone((worst.teacher, worst.objective))
        every = f"{named([called(pair) for pair in same])}; " if len(same) > 1 else ""
        told[0] += (
            f": {every}{called(worst)} reaches {share(worst.labelled)}, labels alone {share(alone)}"
            f" ({gain_told(worst)})"
        )
    told += [
        f"{which} {how.agreeing} of {how.of} accuracies are those of the labels-only student"
        for which, how in list(copied.items())[:NAMED]
    ]
    yield Finding(
        "serious" if copied else "note" if _says_little(case, same) else "warning",
        "labels-alone",
        "Some students are copies of the labels-only student"
        if copied
        else "Some students show no gain over labels alone",
        f"{capital('; '.join(told))}.",
        "Do not credit the teacher with these accuracies: a student that never met it is as accurate."
        + (" Check that these students were distilled at all." if copied else ""),
    )


def _says_little(case: Case, same: Sequence[PairVerdict]) -> bool:
    """Whether these are single pairs among others that gain (less than half of any teacher's or objective's), or labels
    alone leave nothing to gain."""

    def outnumbered(which: Callable[[PairVerdict], str]) -> bool:
        groups = Counter(which(pair) for pair in case.pairs if pair.gain is not None)
        return all(2 * number < groups[name] for name, number in Counter(map(which, same)).items())

    alone = [case.book.alone((pair.teacher, pair.objective)) for pair in same]
    ceiling = all((level or 0.0) > 1 - SMALL * case.delta for level in alone)
    return ceiling or outnumbered(lambda pair: pair.teacher) or outnumbered(lambda pair: pair.objective)


def _shows_no_gain(case: Case, pair: PairVerdict, spread: GainNoise) -> bool:
    """The gain is next to nothing, and seeds and test samples suffice to say so, or something else explains it."""
    if pair.gain is None or not includes_nothing(pair):
        return False
    far = pair.recovery is not None and pair.recovery > FAR * case.delta
    if (pair.word == "masked" or far) and abs(pair.gain) <= case.delta:
        return True
    others = [one for one in case.pairs if one.objective == pair.objective and one.gain is not None]
    all_alike = len(others) > 1 and all(abs(one.gain or 0.0) <= NOTHING * case.delta for one in others)
    reach = 2 * case.delta if all_alike else SMALL * case.delta
    return abs(pair.gain) <= NOTHING * case.delta and pair.gain + 2 * _error(case, pair, spread)[0] <= reach


def _error(case: Case, pair: PairVerdict, spread: GainNoise) -> tuple[float, float]:
    """The standard error of a gain over seeds and over test samples, and its degrees of freedom."""
    samples = case.book.least_samples
    by_sample = item_variance(pair.labelled or 0.0, (pair.labelled or 0.0) - (pair.gain or 0.0), samples)
    return over_both(spread.variance / max(pair.seeds, 1), spread.freedom + 1, by_sample, samples)


def _copied(case: Case) -> dict[str, ScoreAgreement]:
    """Objectives, else teachers, else single pairs, whose students are, seed by seed, the labels-only student."""
    names: tuple[Callable[[Pair], str], ...] = (
        lambda pair: f"with {pair[1]}",
        lambda pair: f"from {pair[0]}",
        lambda pair: f"from {pair[0]} with {pair[1]}",
    )
    for name in names:
        groups: dict[str, list[Pair]] = {}
        for pair in case.book.pairs:
            groups.setdefault(name(pair), []).append(pair)
        agreements = {which: _are_alone(case, pairs, len(groups)) for which, pairs in groups.items()}
        found = {which: how for which, how in agreements.items() if how is not None}
        if found:
            return found
    return {}


def _are_alone(case: Case, pairs: Sequence[Pair], comparisons: int) -> ScoreAgreement | None:
    ours: dict[Hashable, Score] = {
        (pair, seed): score for pair in pairs for seed, score in case.book.labelled_scores(pair).items()
    }
    theirs: dict[Hashable, Score] = {
        (pair, seed): score for pair in pairs for seed, score in case.book.alone_scores(pair).items()
    }
    return agreement(ours, theirs, noise_of_siblings(case.book), 3 * comparisons)


def _harmful(case: Case, spread: GainNoise) -> Iterator[Finding]:
    """Below the labels-only student by more than seeds and test samples explain."""
    known = [pair for pair in case.pairs if pair.gain is not None and case.reads_labels(pair)]
    together = {id(pair) for pair in _harmed_together(case, known, spread)}
    found = [pair for pair in known if id(pair) in together or _is_harmed(case, pair, spread, len(known))]
    if not found:
        return
    found.sort(key=lambda pair: pair.gain or 0.0)
    worst = found[0]
    alone, taught = case.book.alone((worst.teacher, worst.objective)), case.book.teacher_mean(worst.teacher)
    weaker = taught is not None and alone is not None and taught < alone
    because = f"; its teacher is at {share(taught)}" if taught is not None else ""
    yield Finding(
        "serious" if (worst.gain or 0.0) < -case.delta else "warning",
        "harmful-teacher",
        "Some students are worse than with labels alone",
        f"{named([called(pair) for pair in found])}: most with {called(worst)}, which reaches {share(worst.labelled)}"
        f" where labels alone reach {share(alone)} ({gain_told(worst)}){because}.",
        (
            "The teacher is worse than labels alone and pulls its student down: leave it out, or lower its weight."
            if weaker
            else "Distillation costs accuracy here: look at the weight of the teacher's term and at the temperature."
        ),
    )


def _harmed_together(case: Case, known: Sequence[PairVerdict], spread: GainNoise) -> Iterator[PairVerdict]:
    """Pairs of which one says too little, while all of an objective, of a teacher or of the table lose."""
    kinds: tuple[Callable[[PairVerdict], str], ...] = (
        lambda pair: "",
        lambda pair: pair.objective,
        lambda pair: pair.teacher,
    )
    for which in kinds:
        groups: dict[str, list[PairVerdict]] = {}
        for pair in known:
            groups.setdefault(which(pair), []).append(pair)
        several = [pairs for pairs in groups.values() if len(pairs) > 1]
        for pairs in several:
            if _loses(case, pairs, spread, KINDS_OF_GROUPS * len(several)):
                yield from (pair for pair in pairs if (pair.gain or 0.0) < -NOTHING * case.delta)


def _loses(case: Case, pairs: Sequence[PairVerdict], spread: GainNoise, comparisons: int) -> bool:
    """Whether the mean gain of these pairs is below 0. Of its variance over seeds half, the labels-only student's, is
    common to all pairs, and half is their own."""
    gain = fmean(pair.gain or 0.0 for pair in pairs)
    level = fmean(pair.labelled or 0.0 for pair in pairs)
    seeds = min(pair.seeds for pair in pairs)
    by_sample = item_variance(level, level - gain, case.book.least_samples)
    by_seed = spread.variance * (1 + 1 / len(pairs)) / 2
    error, freedom = over_both(by_seed / max(seeds, 1), spread.freedom + 1, by_sample, case.book.least_samples)
    return gain < -max(NOTHING * case.delta, error * t_quantile(1 - HARMLESS / comparisons, freedom))


def _is_harmed(case: Case, pair: PairVerdict, spread: GainNoise, comparisons: int) -> bool:
    error, freedom = _error(case, pair, spread)
    reach = error * t_quantile(1 - HARMLESS / comparisons, freedom)
    return (pair.gain or 0.0) < -max(NOTHING * case.delta, reach)


def _noise_of_gains(case: Case) -> GainNoise:
    """Between seeds, pooled over pairs: one pair's three seeds say little of it.

    All gains share the labels-only student, so that their variance hides its part where seeds are few: it is at least
    twice that of single students, which is known from all of them. Of one seed it is assumed.
    """
    book = case.book
    gains, students, freedom = [], [], 0
    for pair in book.pairs:
        ours, theirs = book.labelled_scores(pair), book.alone_scores(pair)
        differences = [ours[seed].accuracy - theirs[seed].accuracy for seed in ours if seed in theirs]
        if len(differences) > 1:
            gains.append(variance(differences))
            students.append(variance([score.accuracy for score in ours.values()]))
            freedom += len(differences) - 1
    if not gains:
        return GainNoise(2 * (SEEDS_VARY * case.delta) ** 2, inf)
    return GainNoise(max(fmean(gains), 2 * fmean(students)), freedom)
