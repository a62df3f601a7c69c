"""What findings and sentences are written from: the evidence, looked up, and the words given so far."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fedstill.audit.book import Book
from fedstill.audit.verdicts import ObjectiveVerdict, PairVerdict, TeacherVerdict

NO_BETTER = ("non-finite", "constant", "chance")
FAR = 3  # so many times the threshold is far
LEADERS = 12
NAMED = 4  # how many examples a sentence gives


@dataclass(frozen=True)
class Case:
    """Everything that was judged, before it is put into sentences."""

    book: Book
    delta: float
    teachers: tuple[TeacherVerdict, ...]
    pairs: tuple[PairVerdict, ...]
    objectives: tuple[ObjectiveVerdict, ...]

    @property
    def collapsed(self) -> dict[str, TeacherVerdict]:
        """Teachers that are no better than chance, by name."""
        return {one.teacher: one for one in self.teachers if one.word in NO_BETTER}

    def reads_labels(self, pair: PairVerdict) -> bool:
        """False only where the objective is known to give labels no weight."""
        return self.book.weight(pair.objective) != 0

    def recovered(self) -> Iterator[PairVerdict]:
        """Students with labels that are far above a teacher that is no better than chance, the farthest first."""
        gaps = {
            (pair.teacher, pair.objective): pair.recovery
            for pair in self.pairs
            if pair.teacher in self.collapsed and self.reads_labels(pair) and pair.recovery is not None
        }
        known = {(pair.teacher, pair.objective): pair for pair in self.pairs}
        ordered = sorted(gaps, key=lambda name: -gaps[name])
        return (known[name] for name in ordered if gaps[name] > FAR * self.delta)


def leaders(pairs: Sequence[PairVerdict], size: int = LEADERS) -> list[PairVerdict]:
    """The best labelled students: as many as fit in `size` without parting equals, and at least all of the best."""
    ranked = sorted((pair for pair in pairs if pair.labelled is not None), key=lambda pair: -(pair.labelled or 0.0))
    groups: list[list[PairVerdict]] = []
    for pair in ranked:
        if groups and abs((groups[-1][0].labelled or 0.0) - (pair.labelled or 0.0)) < 1e-9:
            groups[-1].append(pair)
        else:
            groups.append([pair])
    chosen: list[PairVerdict] = []
    for group in groups:
        if chosen and len(chosen) + len(group) > size:
            break
        chosen += group
    return chosen


def named(names: Sequence[str], most: int = NAMED) -> str:
    """The first few of a list, and how many more there are.

    >>> named(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    if len(names) <= most:
        return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return f"{', '.join(names[:most])} and {len(names) - most} more"


def called(pair: PairVerdict) -> str:
    return f"{pair.teacher} with {pair.objective}"
