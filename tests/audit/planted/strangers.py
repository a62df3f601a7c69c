"""A fourth set of tables, written from the documentation alone: other worlds, names, sizes, units and copies.

Here all models find mostly the same test samples hard, so their accuracies vary together; students follow their
teachers less than fully, and each teacher's seeds differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import sqrt
from statistics import fmean

import numpy as np

from .worlds import Table

Draw = np.random.Generator
Line = dict[str, float | str]
SHOWN = ("accuracy", "teacher_accuracy", "free_accuracy", "labels_only_accuracy")
OBJECTIVES = ("Hinton et al.", "FitNet", "AT (2017)", "ours", "baseline", "distill++", "RKD", "VID", "pkt", "nst")


@dataclass
class CorrelatedWorld:
    """Lines of a table as numbers; models share the difficulty of the test set."""

    draw: Draw
    samples: int
    levels: Sequence[float]
    objectives: int = 2
    seeds: int = 3
    classes: int = 10
    free: bool = True
    alone: float | None = None
    spread: float = 0.006
    digits: int = 2
    unit: str = "percent"  # or share, or sign: with a percent sign
    lines: list[Line] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.together, self.common = self.draw.uniform(0.3, 0.7), self.draw.normal()
        self.teachers = [f"site {chr(65 + number % 26)}{number // 26 or ''}" for number in range(len(self.levels))]
        self.names = [str(name) for name in self.draw.permutation(OBJECTIVES)[: self.objectives]]
        self.numbers = [str(number) for number in self.draw.choice(9999, self.seeds, replace=False)]
        alone = {seed: self.score(self.alone) for seed in self.numbers} if self.alone is not None else {}
        follow = dict(zip(self.names, self.draw.uniform(0.92, 0.98, len(self.names)), strict=True))
        for teacher, level in zip(self.teachers, self.levels, strict=True):
            for seed in self.numbers:
                skill = level + self.spread * self.draw.normal()
                taught = self.score(skill, 0)
                for name in self.names:
                    reached = 1 / self.classes + (skill - 1 / self.classes) * follow[name]
                    line: Line = {"teacher": teacher, "objective": name, "seed": seed}
                    line |= {"accuracy": self.score(reached + 0.01), "teacher_accuracy": taught}
                    line |= {"free_accuracy": self.score(reached)} if self.free else {}
                    line |= {"labels_only_accuracy": alone[seed]} if alone else {}
                    self.lines.append(line)

    def score(self, skill: float, spread: float | None = None) -> float:
        skill += (self.spread if spread is None else spread) * self.draw.normal()
        skill = float(np.clip(skill, 0.001, 0.9995))
        noise = sqrt(self.together) * self.common + sqrt(1 - self.together) * self.draw.normal()
        right = round(self.samples * skill + sqrt(self.samples * skill * (1 - skill)) * noise)
        return min(max(right, 0), self.samples) / self.samples

    def of(self, **where: str) -> Iterator[Line]:
        return (line for line in self.lines if all(line[name] == value for name, value in where.items()))

    def set(self, column: str, value: Callable[[Line], float | str], **where: str) -> CorrelatedWorld:
        for line in self.of(**where):
            line[column] = value(line)
        return self

    def copy(self, here: dict[str, str], there: dict[str, str], *columns: str) -> None:
        """Values of the lines here into those there, which have the same in all other places."""
        for line in self.of(**here):
            places = {name: str(line[name]) for name in ("teacher", "objective", "seed")} | there
            for other in self.of(**places):
                other |= {name: line[name] for name in columns or SHOWN[:3] if name in line}

    def methods(self) -> CorrelatedWorld:
        """Teachers alone, as methods."""
        single = {(line["teacher"], line["seed"]): line["teacher_accuracy"] for line in self.lines}
        self.lines = [{"method": one, "seed": seed, "accuracy": value} for (one, seed), value in single.items()]
        return self

    def table(self, *expected: str, counts: bool = True, allowed: Sequence[str] = ()) -> Table:
        each, rest = divmod(self.samples, self.classes)
        sizes = tuple(each + (number < rest) for number in range(self.classes))
        rows = [{name: self._print(name, value) for name, value in line.items()} for line in self.lines]
        return Table(rows, sizes if counts else (), frozenset(expected), allowed=frozenset(allowed))

    def _print(self, name: str, value: float | str) -> str:
        if isinstance(value, str) or name not in SHOWN:
            return str(value)
        if self.unit == "share":
            return f"{value:.{self.digits + 2}f}"
        return f"{100 * value:.{self.digits}f}{'%' if self.unit == 'sign' else ''}"


def spread_out(draw: Draw, least: int = 5, most: int = 12) -> list[float]:
    return list(np.linspace(0.4, draw.uniform(0.75, 0.9), int(draw.integers(least, most))))


def grid(draw: Draw, samples: Sequence[int] = (1000, 2500, 5000), seeds: int = 3, free: bool = True) -> CorrelatedWorld:
    unit = str(draw.choice(["percent", "share", "sign"]))
    objectives = int(draw.integers(2, 6))
    return CorrelatedWorld(draw, int(draw.choice(samples)), spread_out(draw), objectives, seeds, unit=unit, free=free)


def controls_of_other_seeds(draw: Draw) -> Table:
    world = grid(draw)
    after = dict(zip(world.numbers, [*world.numbers[1:], world.numbers[0]], strict=True))
    for seed, other in after.items():
        for line in world.of(seed=other):
            (match,) = world.of(teacher=str(line["teacher"]), objective=str(line["objective"]), seed=seed)
            match["free_accuracy"] = line["accuracy"]
    return world.table("copied-control")


def controls_of_the_next_teacher(draw: Draw) -> Table:
    world = grid(draw)
    for teacher, other in zip(world.teachers, [*world.teachers[1:], world.teachers[0]], strict=True):
        for line in world.of(teacher=other):
            (match,) = world.of(teacher=teacher, objective=str(line["objective"]), seed=str(line["seed"]))
            match["free_accuracy"] = line["accuracy"]
    return world.table("copied-control")


def controls_printed_with_fewer_digits(draw: Draw) -> Table:
    world = grid(draw, samples=(5000, 10_000))
    world.unit = "percent"
    return world.set("free_accuracy", lambda line: f"{100 * float(line['accuracy']):.1f}").table("copied-control")


def controls_of_one_objective_copied(draw: Draw) -> Table:
    world = grid(draw)
    return world.set("free_accuracy", lambda line: line["accuracy"], objective=world.names[-1]).table("copied-control")


def two_of_forty_teachers(draw: Draw) -> Table:
    world = CorrelatedWorld(draw, 5000, list(np.linspace(0.3, 0.85, 40)), objectives=3)
    world.copy({"teacher": world.teachers[7]}, {"teacher": world.teachers[31]})
    return world.table("duplicate-teachers")


def two_of_ten_objectives(draw: Draw) -> Table:
    world = CorrelatedWorld(draw, 2000, spread_out(draw), objectives=10, seeds=2)
    world.copy({"objective": world.names[2]}, {"objective": world.names[8]})
    return world.table("duplicate-objectives")


def methods_equal_in_three_seeds(draw: Draw) -> Table:
    """A test set of four hundred: that three accuracies agree by chance is rare, though not impossible."""
    world = CorrelatedWorld(draw, 400, list(draw.uniform(0.55, 0.8, 6)), classes=4).methods()
    for line in list(world.of(method=world.teachers[1])):
        world.set("accuracy", lambda _, value=line["accuracy"]: value, method=world.teachers[4], seed=str(line["seed"]))
    return world.table("duplicate-teachers")


def methods_equal_without_counts(draw: Draw) -> Table:
    world = CorrelatedWorld(draw, 10_000, list(draw.uniform(0.55, 0.85, 6))).methods()
    for line in list(world.of(method=world.teachers[0])):
        world.set("accuracy", lambda _, value=line["accuracy"]: value, method=world.teachers[2], seed=str(line["seed"]))
    return world.table("duplicate-teachers", counts=False)


def two_of_ten_seeds(draw: Draw) -> Table:
    world = CorrelatedWorld(draw, 1500, spread_out(draw, 4, 6), seeds=10, free=False)
    world.copy({"seed": world.numbers[0]}, {"seed": world.numbers[7]})
    return world.table("identical-seeds")


def students_of_one_seed(draw: Draw) -> Table:
    """Teachers differ over seeds, students do not."""
    world = grid(draw)
    for seed in world.numbers[1:]:
        world.copy({"seed": world.numbers[0]}, {"seed": seed}, "accuracy", "free_accuracy")
    return world.table("identical-seeds")


def checkpoints_of_some_teachers(draw: Draw) -> Table:
    world = grid(draw, seeds=5)
    for teacher in world.teachers[:2]:
        kept = next(world.of(teacher=teacher))["teacher_accuracy"]
        world.set("teacher_accuracy", lambda _, value=kept: value, teacher=teacher)
    return world.table("one-checkpoint")


def a_teacher_without_a_figure(draw: Draw) -> Table:
    world = grid(draw)
    return world.set("teacher_accuracy", lambda _: "", teacher=world.teachers[0], seed=world.numbers[1]).table(
        "missing"
    )


def a_seed_that_makes_the_winner(draw: Draw) -> Table:
    world = CorrelatedWorld(draw, 2000, [0.5, 0.55, 0.58, 0.6, 0.61, 0.6])
    for name in world.names:
        lucky = next(world.of(teacher=world.teachers[3], objective=name))
        lucky["accuracy"] = round((float(lucky["accuracy"]) + 0.15) * 2000) / 2000
    return world.table("unstable")


def a_figure_of_no_test_set(draw: Draw) -> Table:
    """Shares with four digits on 360 samples: two neighbours of a possible one are impossible."""
    world = CorrelatedWorld(draw, 360, list(draw.uniform(0.6, 0.8, 5)), seeds=4, unit="share").methods()
    line = world.lines[int(draw.integers(len(world.lines)))]
    line["accuracy"] = f"{float(line['accuracy']) + 0.0012:.4f}"
    return world.table("impossible-accuracy")


def teachers_that_differ_by_luck(draw: Draw) -> Table:
    """Equal teachers whose seeds vary by six points; half of what their means differ by is taken back."""
    world = CorrelatedWorld(draw, 2000, [0.7] * 8, seeds=5, spread=0.06)
    for name in world.teachers:
        off = fmean(float(line["teacher_accuracy"]) for line in world.of(teacher=name)) - 0.7
        world.set("teacher_accuracy", lambda line, off=off: float(line["teacher_accuracy"]) - off / 2, teacher=name)
    return world.table("narrow-teachers", counts=False)


def a_leak_that_follows(draw: Draw) -> Table:
    world = CorrelatedWorld(draw, 2000, list(np.linspace(0.3, 0.65, 8)))
    world.set("free_accuracy", lambda line: world.score(float(line["teacher_accuracy"]) + 0.2))
    return world.set("accuracy", lambda line: world.score(float(line["teacher_accuracy"]) + 0.21)).table("label-leak")


def harm_to_one_architecture(draw: Draw) -> Table:
    world = CorrelatedWorld(draw, 10_000, [0.74, 0.76, 0.78], objectives=1, classes=100, free=False, spread=0.003)
    levels, lines = {"shuffle": 0.68, "vgg8": 0.7}, []
    alone = {(name, seed): world.score(level) for name, level in levels.items() for seed in world.numbers}
    for line in world.lines:
        for name, level in levels.items():
            reached = world.score(level + (-0.06 if name == "vgg8" else 0.03))
            own = {"student": name, "accuracy": reached, "labels_only_accuracy": alone[name, str(line["seed"])]}
            lines.append(line | own)
    world.lines = lines
    return world.table("harmful-teacher")


def recovery_without_counts(draw: Draw) -> Table:
    world = CorrelatedWorld(draw, 1000, [0.3, 0.6, 0.85, 0.9], free=False)
    return world.set("accuracy", lambda _: world.score(0.88)).table("recovery", counts=False)


def a_correlation_of_the_best_teacher(draw: Draw) -> Table:
    world = CorrelatedWorld(draw, 5000, [0.4, 0.41, 0.415, 0.42, 0.43, 0.8], free=False, spread=0.003)
    levels = dict(zip(world.teachers, [0.45, 0.4, 0.44, 0.39, 0.42, 0.78], strict=True))
    return world.set("accuracy", lambda line: world.score(levels[str(line["teacher"])])).table("leverage", counts=False)


STRANGERS = (
    controls_of_other_seeds,
    controls_of_the_next_teacher,
    controls_printed_with_fewer_digits,
    controls_of_one_objective_copied,
    two_of_forty_teachers,
    two_of_ten_objectives,
    methods_equal_in_three_seeds,
    methods_equal_without_counts,
    two_of_ten_seeds,
    students_of_one_seed,
    checkpoints_of_some_teachers,
    a_teacher_without_a_figure,
    a_seed_that_makes_the_winner,
    a_figure_of_no_test_set,
    teachers_that_differ_by_luck,
    a_leak_that_follows,
    harm_to_one_architecture,
    recovery_without_counts,
    a_correlation_of_the_best_teacher,
)


def a_grid_of_any_size(draw: Draw) -> Table:
    return grid(draw, samples=(480, 1000, 10_000), seeds=int(draw.integers(2, 6))).table()


def many_pairs_on_few_samples(draw: Draw) -> Table:
    return CorrelatedWorld(draw, 100, list(np.linspace(0.5, 0.9, 12)), objectives=8, classes=5, digits=1).table()


def ten_seeds_on_few_samples(draw: Draw) -> Table:
    return CorrelatedWorld(draw, 120, list(np.linspace(0.6, 0.9, 6)), objectives=3, seeds=10, classes=3).table()


def teachers_at_the_ceiling(draw: Draw) -> Table:
    levels = list(draw.uniform(0.992, 0.997, 8))
    return CorrelatedWorld(draw, 10_000, levels, objectives=3, spread=0.0004).table(allowed=["narrow-teachers"])


def born_again(draw: Draw) -> Table:
    """Label-free students that are better than their teachers by half a point, as noise has it."""
    world = CorrelatedWorld(draw, 5000, list(np.linspace(0.6, 0.88, 6)), spread=0.004)
    world.set("free_accuracy", lambda line: world.score(float(line["teacher_accuracy"]) + 0.004))
    return world.set("accuracy", lambda line: world.score(float(line["teacher_accuracy"]) + 0.008)).table()


def self_distillation(draw: Draw) -> Table:
    """Teachers are as good as labels alone, and students better than both."""
    world = CorrelatedWorld(draw, 10_000, [0.78] * 3, seeds=5, classes=20, free=False, alone=0.78, spread=0.003)
    return world.set("accuracy", lambda _: world.score(0.8)).table(allowed=["narrow-teachers"])


def classic_gains(draw: Draw) -> Table:
    """Labels alone 69 %, students 73 %, teachers 75.6 %."""
    world = CorrelatedWorld(draw, 10_000, [0.756] * 3, classes=100, free=False, alone=0.69, spread=0.003)
    return world.set("accuracy", lambda _: world.score(0.73)).table(allowed=["narrow-teachers"])


def many_equal_methods(draw: Draw) -> Table:
    return CorrelatedWorld(draw, 1000, [0.7] * 15, seeds=5).methods().table()


KINDLY = (
    a_grid_of_any_size,
    many_pairs_on_few_samples,
    ten_seeds_on_few_samples,
    teachers_at_the_ceiling,
    born_again,
    self_distillation,
    classic_gains,
    many_equal_methods,
)
