"""A fifth set of tables: a world of single answers, where every model meets the same hard samples.

Students make part of their teacher's errors. How much models share, how seeds vary, the size of the test set and of the
grid, units and digits are all drawn. Written from the issue's names of findings alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from .worlds import Table

Draw = np.random.Generator
Array = npt.NDArray[np.float64]
NORMAL = NormalDist()
TRUE = frozenset({"narrow-teachers", "leverage", "labels-alone"})  # what small grids may truly be told


@dataclass
class AnswerWorld:
    """Accuracies by teacher, objective and seed, of models that answered the same test samples."""

    draw: Draw
    samples: int
    classes: int
    teachers: int
    objectives: int
    seeds: int
    unit: str = "percent"
    digits: int = 2
    known: bool = True  # the size of the test set
    spread: float = 0.006
    taught: Array = field(init=False)
    labelled: Array = field(init=False)
    free: Array | None = None
    alone: Array | None = None

    def __post_init__(self) -> None:
        self.hard = self.draw.standard_normal(self.samples)
        self.shared = self.draw.uniform(0.5, 0.8)

    def model(self, level: float, errors: Array | None = None, like: float = 0.5) -> tuple[float, Array]:
        """The accuracy of a new training, and what its errors depend on beside the samples; `errors` of its teacher."""
        own = self.draw.standard_normal(self.samples)
        mine = own if errors is None else np.sqrt(like) * errors + np.sqrt(1 - like) * own
        level = float(np.clip(level + self.draw.normal(0, self.spread), 0.002, 0.998))
        latent = np.sqrt(self.shared) * self.hard + np.sqrt(1 - self.shared) * mine
        return float(np.mean(latent < NORMAL.inv_cdf(level))), mine

    def train(
        self,
        levels: Sequence[float],
        labelled: Callable[[float], float],
        free: Callable[[float], float] | None = None,
        alone: float | None = None,
    ) -> AnswerWorld:
        """All models: students by the accuracy that their teacher reached."""
        shape = (len(levels), self.objectives, self.seeds)
        self.taught, self.labelled = np.zeros((len(levels), self.seeds)), np.zeros(shape)
        self.free = np.zeros(shape) if free else None
        self.alone = np.array([self.model(alone)[0] for _ in range(self.seeds)]) if alone is not None else None
        for teacher, seed in np.ndindex(self.taught.shape):
            self.taught[teacher, seed], errors = self.model(levels[teacher])
            reached = self.taught[teacher, seed]
            for objective in range(self.objectives):
                place = teacher, objective, seed
                self.labelled[place] = self.model(labelled(reached), errors)[0]
                if free is not None and self.free is not None:
                    self.free[place] = self.model(free(reached), errors, 0.7)[0]
        return self

    def table(self, *expected: str, allowed: frozenset[str] = frozenset()) -> Table:
        rows = []
        for teacher, objective, seed in np.ndindex(self.labelled.shape):
            row = {"seed": f"s{seed}", "objective": f"loss {objective}", "teacher": f"model {teacher}"}
            row["accuracy"] = self.printed(self.labelled[teacher, objective, seed])
            row["teacher_accuracy"] = self.printed(self.taught[teacher, seed])
            if self.free is not None:
                row["free_accuracy"] = self.printed(self.free[teacher, objective, seed])
            if self.alone is not None:
                row["labels_only_accuracy"] = self.printed(self.alone[seed])
            rows.append(row)
        return Table(rows, self.counts, frozenset(expected), allowed=allowed)

    def methods(self, *expected: str) -> Table:
        rows = [
            {"method": f"model {teacher}", "accuracy": self.printed(self.taught[teacher, seed]), "seed": f"s{seed}"}
            for teacher, seed in np.ndindex(self.taught.shape)
        ]
        return Table(rows, self.counts, frozenset(expected))

    @property
    def counts(self) -> tuple[int, ...]:
        each, rest = divmod(self.samples, self.classes)
        return tuple(each + (number < rest) for number in range(self.classes)) if self.known else ()

    def printed(self, accuracy: float) -> str:
        return f"{100 * accuracy:.{self.digits}f}" if self.unit == "percent" else f"{accuracy:.{self.digits + 2}f}"


def world(draw: Draw, least: int = 400, controls: bool = True, **given: int) -> AnswerWorld:
    """A grid of any size whose students follow their teachers and gain on labels alone."""
    classes = int(draw.choice([2, 4, 10, 20]))
    sizes = [size for size in (40, 75, 100, 200, 400, 1000, 2000) if size >= max(least, 10 * classes)]
    size = {"teachers": int(draw.integers(3, 9)), "objectives": int(draw.integers(2, 6)), "seeds": 3} | given
    made = AnswerWorld(draw, int(draw.choice(sizes)), classes, **size)
    made.unit = str(draw.choice(["percent", "share"]))
    made.spread = float(draw.choice([0.002, 0.005, 0.01]))
    room = 1 - 1 / classes
    base = 1 / classes + room * draw.uniform(0.35, 0.55)
    levels = base + room * draw.uniform(0.08, 0.3, made.teachers)
    return made.train(
        [float(level) for level in levels],
        lambda reached: base + 0.85 * (reached - base),
        (lambda reached: reached - 0.01) if controls else None,
        base,
    )


def students_of_one_teacher_are_anothers(draw: Draw) -> Table:
    made = world(draw, objectives=4)
    made.labelled[1] = made.labelled[0]
    return made.table("duplicate-teachers")


def a_teacher_shifted(draw: Draw) -> Table:
    made = world(draw, objectives=3)
    assert made.free is not None
    made.labelled[1], made.taught[1] = made.labelled[0] - 0.0125, made.taught[0] - 0.0125
    made.free[1] = made.free[0] - 0.0125
    return made.table("duplicate-teachers")


def methods_with_seeds_in_another_order(draw: Draw) -> Table:
    made = world(draw, least=2000, seeds=5, objectives=1)
    made.taught[1] = made.taught[0][[2, 4, 0, 1, 3]]
    return made.methods("duplicate-teachers")


def an_objective_shifted(draw: Draw) -> Table:
    made = world(draw, controls=False, teachers=5)
    made.labelled[:, 1] = made.labelled[:, 0] + 0.0075
    return made.table("duplicate-objectives")


def controls_of_one_teacher_copied(draw: Draw) -> Table:
    made = world(draw, objectives=4)
    assert made.free is not None
    made.free[0] = made.labelled[0]
    return made.table("copied-control")


def controls_scaled(draw: Draw) -> Table:
    made = world(draw, least=1000, teachers=6)
    made.free, made.known = 0.98 * made.labelled, False
    return made.table("copied-control")


def controls_blurred(draw: Draw) -> Table:
    made = world(draw, least=1000, teachers=6)
    made.free = made.labelled + np.round(draw.normal(0, 0.0004, made.labelled.shape), 4)
    made.known = False
    return made.table("copied-control")


def seeds_of_labelled_students_copied(draw: Draw) -> Table:
    made = world(draw, teachers=5, objectives=3)
    made.labelled[..., 2] = made.labelled[..., 0]
    return made.table("identical-seeds")


def one_teachers_students_are_those_of_labels_alone(draw: Draw) -> Table:
    made = world(draw, least=1000, controls=False, objectives=4)
    assert made.alone is not None
    made.labelled[0] = made.alone
    return made.table("labels-alone")


def a_failed_seed_of_labels_alone(draw: Draw) -> Table:
    made = world(draw, least=1000, controls=False, teachers=6)
    assert made.alone is not None
    made.alone[1] -= 0.25
    return made.table("unstable")


def swapped_classes_in_two_seeds(draw: Draw) -> Table:
    made = AnswerWorld(draw, 400, 2, 4, 2, 2, spread=0.02)
    made.train([0.15, 0.8, 0.85, 0.9], lambda reached: 0.8)
    return made.table("below-chance-teacher")


def collapsed_among_a_hundred_classes(draw: Draw) -> Table:
    """A model that learnt nothing scores about 1 %, in some seeds less."""
    made = AnswerWorld(draw, 2000, 100, 4, 2, 3, spread=0.001)
    made.train([0.011, 0.5, 0.6, 0.7], lambda reached: max(reached, 0.45), alone=0.45)
    return made.table("recovery")


ANSWERS = (
    students_of_one_teacher_are_anothers,
    a_teacher_shifted,
    methods_with_seeds_in_another_order,
    an_objective_shifted,
    controls_of_one_teacher_copied,
    controls_scaled,
    controls_blurred,
    seeds_of_labelled_students_copied,
    one_teachers_students_are_those_of_labels_alone,
    a_failed_seed_of_labels_alone,
    swapped_classes_in_two_seeds,
    collapsed_among_a_hundred_classes,
)


def followed_and_better(draw: Draw) -> Table:
    return world(draw, least=40).table(allowed=TRUE)


def a_large_grid(draw: Draw) -> Table:
    return world(draw, teachers=13, objectives=6).table(allowed=TRUE)


def one_seed_of_many_pairs(draw: Draw) -> Table:
    """Whether the only labels-only student was lucky is not known: nobody harms."""
    made = world(draw, controls=False, teachers=9, seeds=1)
    return made.table(allowed=TRUE)


def one_digit_of_stable_trainings(draw: Draw) -> Table:
    """Figures as of a very large test set, which is not named: many are equal."""
    made = AnswerWorld(draw, 2, 2, 4, 6, int(draw.integers(3, 6)), digits=1, known=False)
    levels = draw.uniform(0.65, 0.75, 4)
    made.taught = levels[:, None] + draw.normal(0, 0.001, (4, made.seeds))
    made.labelled = levels[:, None, None] - 0.02 + draw.normal(0, 0.001, (4, 6, made.seeds))
    made.free = levels[:, None, None] - 0.025 + draw.normal(0, 0.001, (4, 6, made.seeds))
    return made.table(allowed=TRUE)


def whole_percent_of_a_large_test_set(draw: Draw) -> Table:
    made = world(draw, least=2000, teachers=7)
    made.unit, made.digits, made.known = "percent", 0, False
    return made.table(allowed=TRUE)


def almost_without_errors(draw: Draw) -> Table:
    """Near a ceiling most seeds of most models agree."""
    made = AnswerWorld(draw, int(draw.choice([80, 100])), 4, 8, 6, int(draw.integers(2, 6)), spread=0.002)
    levels = [float(level) for level in draw.uniform(0.97, 0.998, 8)]
    made.train(levels, lambda reached: reached - 0.001, lambda reached: reached - 0.002, 0.97)
    return made.table(allowed=TRUE)


SINCERE = (
    followed_and_better,
    a_large_grid,
    one_seed_of_many_pairs,
    one_digit_of_stable_trainings,
    whole_percent_of_a_large_test_set,
    almost_without_errors,
)
