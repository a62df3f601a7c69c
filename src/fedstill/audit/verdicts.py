"""What an audit says: a word for every teacher and every student, figures for every objective, and findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from math import isfinite
from typing import Any, Final, Literal

from fedstill.audit.audit_panel import audit_panel
from fedstill.audit.evidence import Evidence
from fedstill.core.numbers import count, listed

TeacherWord = Literal["non-finite", "constant", "below-chance", "chance", "stale", "sound"]
StudentWord = Literal["masked", "faithful", "inconclusive", "not assessable", "no control", "no student"]
PatternWord = Literal["masked by pattern", "tracks its teacher", "unclear"]
# Also what a student without a score says, where there can be no label-free control.
NOT_ASSESSABLE: Final = "not assessable"
Severity = Literal["serious", "warning", "note"]
_LEFT_OUT = ("correct", "unit", "run")  # of a score as JSON: every test sample, how it was printed, where its run is
SEVERITIES: tuple[Severity, ...] = ("serious", "warning", "note")


@dataclass(frozen=True)
class Interval:
    """A 95 % interval, and what it includes: variation of seeds, of test samples, of both, or nothing."""

    low: float
    high: float
    how: Literal["both", "seeds", "samples", "none"]
    note: str = ""  # what a reader should know of it
    error: float | None = None  # standard error of a difference
    freedom: float | None = None  # its degrees of freedom; infinite (null as JSON): normal


@dataclass(frozen=True)
class TeacherVerdict:
    """One teacher over its seeds."""

    teacher: str
    word: TeacherWord
    accuracy: float | None  # mean over seeds
    interval: Interval | None
    why: str  # a sentence


@dataclass(frozen=True)
class PairVerdict:
    """One teacher with one objective, means over seeds; `masking` is labelled minus free."""

    teacher: str
    objective: str
    word: StudentWord
    labelled: float | None
    free: float | None
    masking: float | None
    interval: Interval | None  # of the masking
    ceiling: float | None  # that the teacher's outputs predict for the labelled student
    synergy: float | None  # labelled student minus the better of teacher and labels-only student
    recovery: float | None  # labelled student minus teacher
    seeds: int
    gain: float | None = None  # labelled student minus labels-only student
    gain_interval: Interval | None = None
    excess: float | None = None  # label-free student minus teacher
    excess_interval: Interval | None = None


@dataclass(frozen=True)
class ObjectiveVerdict:
    """One objective over all teachers: how much its students vary, and whether with their teachers."""

    objective: str
    hard_label_weight: float | None
    mean: float | None  # of the labelled students
    correlation: float | None  # Pearson's r of labelled student and teacher, over seed means; four teachers or more
    range: float | None  # largest minus smallest mean over teachers
    free_correlation: float | None  # the same for the label-free control
    free_range: float | None
    pattern: PatternWord
    steady_range: float | None = None  # the range without seeds that failed, where there are such
    correlation_interval: tuple[float, float] | None = None  # Fisher's, 95 %
    free_correlation_interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class Finding:
    """Something a reader should know: what, the evidence, and what to do about it."""

    severity: Severity
    topic: str  # a short fixed name, for tests and for --fail-on
    title: str
    evidence: str
    advice: str


@dataclass(frozen=True)
class Audit:
    """The whole verdict, with the evidence it rests on."""

    evidence: Evidence
    delta: float  # the threshold, as a share
    chance: float | None  # the largest class share of the test set
    teachers: tuple[TeacherVerdict, ...]
    pairs: tuple[PairVerdict, ...]
    objectives: tuple[ObjectiveVerdict, ...]
    findings: tuple[Finding, ...]
    summary: tuple[str, ...]  # what was found, in sentences; the first is the most important

    def __repr__(self) -> str:
        found = [f"{number} {word}" for word, number in Counter(one.severity for one in self.findings).items()]
        what = f"{count(len(self.teachers), 'teacher')}, {count(len(self.objectives), 'objective')}"
        return f"Audit({what}, findings: {listed(found) if found else 'none'})"

    def _repr_html_(self) -> str:
        return audit_panel(self)

    def to_markdown(self) -> str:
        """One page for a reviewer: what was found, the figures, and how to repeat it."""
        from fedstill.audit.reviewer_summary import reviewer_summary  # which is made from these

        return reviewer_summary(self)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the test samples one by one, as JSON can say it."""
        content: dict[str, Any] = _plain(self)
        return content


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {part.name: _plain(getattr(value, part.name)) for part in fields(value) if part.name not in _LEFT_OUT}
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, frozenset):
        return sorted(_plain(part) for part in value)
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not isfinite(value) else value
