"""What findings and sentences are written from: the evidence, looked up, and the words given so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from fedstill.audit.comparisons import holm
from fedstill.audit.evidence_lookup import Book
from fedstill.audit.outlying_seeds import OutlyingSeed
from fedstill.audit.statistics import APART, LEVEL, t_tail
from fedstill.audit.teacher_verdicts import FAR, cannot_tell, is_collapsed, is_partly_broken
from fedstill.audit.verdicts import NOT_ASSESSABLE, Interval, ObjectiveVerdict, PairVerdict, TeacherVerdict

LEADERS = 12
SURE = 3.0  # standard errors on the test samples by which a student must be above its teacher
LITTLE = 0.55  # of its student's accuracy: a teacher with less does not explain it
JUDGED = ("masked", "faithful", "inconclusive")


@dataclass(frozen=True)
class Case:
    """Everything that was judged, before it is put into sentences."""

    book: Book
    delta: float
    teachers: tuple[TeacherVerdict, ...]
    pairs: tuple[PairVerdict, ...]
    objectives: tuple[ObjectiveVerdict, ...]
    outlying: tuple[OutlyingSeed, ...] = ()

    @property
    def collapsed(self) -> dict[str, TeacherVerdict]:
        """Teachers that are no better than chance, by name."""
        return {one.teacher: one for one in self.teachers if is_collapsed(one, self.book.chance, self.delta)}

    @property
    def untold(self) -> list[TeacherVerdict]:
        """Teachers that cannot be told from chance, and may be far above it."""
        return [one for one in self.teachers if cannot_tell(one, self.book.chance, self.delta)]

    @property
    def partly_broken(self) -> list[TeacherVerdict]:
        """Teachers whose outputs are not finite in some seeds, and are in others."""
        return [one for one in self.teachers if is_partly_broken(one)]

    def reads_labels(self, pair: PairVerdict) -> bool:
        """False only where the objective is known to give labels no weight, and no control shows otherwise."""
        return self.book.weight(pair.objective) != 0 or pair.word == "masked"

    @property
    def judged(self) -> list[PairVerdict]:
        """Pairs that masking can be looked for in: their objective reads labels, and they have a control."""
        return [pair for pair in self.pairs if pair.word in JUDGED and self.reads_labels(pair)]

    @property
    def masked_by_pattern(self) -> list[ObjectiveVerdict]:
        """Objectives that show the pattern, and have no control with an interval that would say it better."""
        judged = {
            pair.objective
            for pair in self.pairs
            if pair.word in JUDGED and (has_interval(pair) or self.book.own_control((pair.teacher, pair.objective)))
        }
        return [one for one in self.objectives if one.pattern == "masked by pattern" and one.objective not in judged]

    def surely(self, pairs: Sequence[PairVerdict], gain: bool = False) -> list[PairVerdict]:
        """Of these pairs, those masked (or with a gain that is not 0) after Holm's correction for their number."""
        tails = [_tail(pair.gain_interval, pair.gain, 0.0, 2) if gain else self._masking_tail(pair) for pair in pairs]
        return [
            pair for pair, p in zip(pairs, holm(tails), strict=True) if p < (1 - LEVEL if gain else (1 - LEVEL) / 2)
        ]

    def _masking_tail(self, pair: PairVerdict) -> float:
        return _tail(pair.interval, pair.masking, self.delta, 1)

    def above_teachers(self) -> list[PairVerdict]:
        """Pairs whose label-free student is above its teacher, after Holm's correction; the farthest first."""
        known = [pair for pair in self.pairs if pair.excess is not None and pair.word != NOT_ASSESSABLE]
        tails = [_tail(pair.excess_interval, pair.excess, 0.0, 1) for pair in known]
        sure = [pair for pair, p in zip(known, holm(tails), strict=True) if p < (1 - LEVEL) / 2]
        return sorted(sure, key=lambda pair: -(pair.excess or 0.0))

    @property
    def judged_are(self) -> str:
        """What tells the pairs that are judged from the others, to be said after their number."""
        reading = [pair for pair in self.pairs if self.reads_labels(pair)]
        said = ["whose objective reads labels"] if len(reading) < len(self.pairs) else []
        said += ["that could be judged"] if len(self.judged) < len(reading) else []
        return " and ".join(said) or "of teacher and objective"

    def recovered(self) -> list[PairVerdict]:
        """Students with labels far above a teacher that does not explain them, the farthest first."""
        found = [pair for pair in self.pairs if self.reads_labels(pair) and self._is_unexplained(pair)]
        return sorted(found, key=lambda pair: -(pair.recovery or 0.0))

    def _is_unexplained(self, pair: PairVerdict) -> bool:
        """Whether the teacher is no better than chance, or knows little more than half of what its student does."""
        if pair.recovery is None or pair.labelled is None or pair.recovery <= FAR * self.delta:
            return False
        taught = pair.labelled - pair.recovery
        if pair.recovery <= SURE * self._noise_of(taught, pair.labelled, pair.seeds):
            return False
        return pair.teacher in self.collapsed or (taught < LITTLE * pair.labelled and pair.word != "faithful")

    def _noise_of(self, first: float, second: float, seeds: int) -> float:
        """How far two means are apart because of the test samples; 0 where their number is not known."""
        if not self.book.samples:
            return 0.0
        independent = (first * (1 - first) + second * (1 - second)) / self.book.samples
        return sqrt(independent * (APART + (1 - APART) / max(seeds, 1)))

    def crowned(self) -> tuple[list[PairVerdict], list[PairVerdict]]:
        """The best students, and those among them whose teachers are no better than chance; none of a few pairs."""
        top = leaders([pair for pair in self.pairs if pair.recovery is not None])
        fallen = [pair for pair in top if pair.teacher in self.collapsed]
        return top, fallen if len(self.pairs) > LEADERS else []


def has_interval(pair: PairVerdict) -> bool:
    """Whether something is known of how exact the masking is."""
    return pair.interval is not None and pair.interval.how != "none"


def _tail(interval: Interval | None, value: float | None, limit: float, sides: int) -> float:
    """The probability of such a value if the limit were the truth; one-sided: of such a value or more."""
    if interval is None or value is None or interval.error is None or interval.freedom is None:
        return 1.0
    if not interval.error:  # equal seeds, and nothing is known of the test set
        return float(value <= limit if sides == 1 else value == limit)
    away = (value - limit) / interval.error
    return sides * t_tail(abs(away) if sides == 2 else away, interval.freedom)


def leaders(pairs: Sequence[PairVerdict]) -> list[PairVerdict]:
    """The best labelled students: as many as may lead without parting equals, and at least all of the best."""
    ranked = sorted((pair for pair in pairs if pair.labelled is not None), key=lambda pair: -(pair.labelled or 0.0))
    groups: list[list[PairVerdict]] = []
    for pair in ranked:
        if groups and abs((groups[-1][0].labelled or 0.0) - (pair.labelled or 0.0)) < 1e-9:
            groups[-1].append(pair)
        else:
            groups.append([pair])
    chosen: list[PairVerdict] = []
    for group in groups:
        if chosen and len(chosen) + len(group) > LEADERS:
            break
        chosen += group
    return chosen
