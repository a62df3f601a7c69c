"""Tables of results drawn at random: whole numbers of right answers on a test set, printed as papers print them.

A world is honest as long as nobody changes it: teachers have skills, label-free students follow their teachers, and
labels add little. Generators of planted tables draw a world and spoil it in one way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

Cell = tuple[str, str, str]
METHODS = ("fedavg", "fedprox", "scaffold", "fednova", "feddyn", "moon", "ditto", "fedbn", "fedmedian", "fedavgm")
LOSSES = ("vanilla", "self", "cosine", "logit-mse", "dkd", "soft targets", "hints", "ours", "kd+at", "relations")


@dataclass(frozen=True)
class Table:
    """Rows as a CSV has them, what an auditor knows beside them, and what the audit must find."""

    rows: list[dict[str, str]]
    counts: tuple[int, ...] = ()
    expected: frozenset[str] = frozenset()  # topics of findings
    refused: tuple[str, ...] = ()  # what the sentence of a refusal contains
    allowed: frozenset[str] = frozenset()  # of an honest table: what is true of it
    unit: str = "auto"

    def csv(self, separator: str = ",") -> str:
        header = list(self.rows[0])
        return "\n".join(
            separator.join(line) for line in (header, *([row[name] for name in header] for row in self.rows))
        )


Generator = Callable[[np.random.Generator], Table]


@dataclass
class World:
    """Right answers by cell; a generator changes them, and then has them printed."""

    draw: np.random.Generator
    samples: int
    classes: int
    seeds: Sequence[str] = ("7", "42", "123")
    percent: bool = True
    digits: int = 2
    weight: float | None = None
    taught: dict[tuple[str, str], float] = field(default_factory=dict)  # teachers
    labelled: dict[Cell, float] = field(default_factory=dict)
    free: dict[Cell, float] = field(default_factory=dict)
    alone: dict[str, float] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    extra: dict[str, str] = field(default_factory=dict)  # further columns, the same text in each row
    form: Callable[[float], str] | None = None

    @property
    def counts(self) -> tuple[int, ...]:
        each, rest = divmod(self.samples, self.classes)
        return tuple(each + (number < rest) for number in range(self.classes))

    @property
    def teachers(self) -> list[str]:
        return list(dict.fromkeys(name for name, _ in self.taught))

    @property
    def objectives(self) -> list[str]:
        return list(dict.fromkeys(name for _, name, _ in self.labelled))

    def score(self, skill: float, spread: float = 0.006) -> float:
        """The share of right answers of one trained model: training varies, and so does the test set."""
        truth = float(np.clip(skill + self.draw.normal(0, spread), 0.002, 0.998))
        return self.draw.binomial(self.samples, truth) / self.samples

    def teach(self, skills: Sequence[float], spread: float = 0.008, names: Sequence[str] = METHODS) -> World:
        for name, skill in zip(names, skills, strict=False):
            for seed in self.seeds:
                self.taught[name, seed] = self.score(skill, spread)
        return self

    def distil(self, objective: str, student: Callable[[float], float], spread: float = 0.006) -> World:
        """Students whose skill depends on their teacher's."""
        for (name, seed), skill in self.taught.items():
            self.labelled[name, objective, seed] = self.score(student(skill), spread)
        return self

    def control(self, objective: str, student: Callable[[float], float], spread: float = 0.006) -> World:
        for (name, seed), skill in self.taught.items():
            self.free[name, objective, seed] = self.score(student(skill), spread)
        return self

    def label(self, skill: float, spread: float = 0.006) -> World:
        self.alone = {seed: self.score(skill, spread) for seed in self.seeds}
        return self

    def print(self, share: float) -> str:
        if self.form is not None:
            return self.form(share)
        return f"{share * (100 if self.percent else 1):.{self.digits}f}"

    def rows(self) -> list[dict[str, str]]:
        if not self.labelled:
            return [
                {"teacher": name, "seed": seed, "teacher_accuracy": self.print(value), **self.extra}
                for (name, seed), value in self.taught.items()
            ]
        return [self._row(cell, value) for cell, value in self.labelled.items()]

    def _row(self, cell: Cell, value: float) -> dict[str, str]:
        teacher, objective, seed = cell
        row = {"teacher": teacher, "objective": objective, "seed": seed, "accuracy": self.print(value)}
        if self.taught:
            row["teacher_accuracy"] = self.print(self.taught[teacher, seed])
        if self.free:
            row["free_accuracy"] = self.print(self.free[cell]) if cell in self.free else ""
        if self.alone:
            row["labels_only_accuracy"] = self.print(self.alone[seed])
        if self.weights:
            row["hard_label_weight"] = f"{self.weights[objective]:g}"
        return {**row, **self.extra}

    def table(self, *expected: str, counts: bool = True, allowed: Sequence[str] = ()) -> Table:
        known = self.counts if counts else ()
        return Table(self.rows(), known, frozenset(expected), allowed=frozenset(allowed))


def follows(share: float = 0.97, gain: float = 0.0) -> Callable[[float], float]:
    """A student that reaches a share of its teacher's accuracy, and labels that add some."""
    return lambda skill: skill * share + gain


def level(skill: float) -> Callable[[float], float]:
    """A student that is as good as this with every teacher."""
    return lambda _: skill


def apart(draw: np.random.Generator, number: int, lowest: float, highest: float) -> list[float]:
    """Skills that differ clearly, in random order."""
    steps = np.linspace(lowest, highest, number) + draw.uniform(-0.01, 0.01, number)
    return [float(value) for value in draw.permutation(steps)]


def honest_world(
    draw: np.random.Generator,
    samples: int = 2000,
    classes: int = 10,
    teachers: int = 4,
    objectives: int = 2,
    **options: object,
) -> World:
    """A grid with controls and labels-only students in which nothing is wrong: every teacher helps."""
    world = World(draw, samples, classes, **options)  # type: ignore[arg-type]
    world.teach(apart(draw, teachers, 0.62, 0.86))
    for name in LOSSES[:objectives]:
        share = float(draw.uniform(0.955, 0.985))
        world.distil(name, follows(share, 0.012)).control(name, follows(share))
    return world.label(0.52)
