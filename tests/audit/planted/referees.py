"""A seventh set, as a referee would make it from the names of findings: students that hardly depend on their teachers,
controls that are teachers or that have their seeds exchanged, failed seeds among few, and tables that do not say how
large their test set is. Each model answers every test sample by a difficulty that all models share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np

from .worlds import Table

Draw = np.random.Generator
Row = dict[str, float | str]  # accuracies as numbers of right answers
Level = Callable[[int, int, float], float]  # of a student, by teacher, objective and its teacher's level
COLUMNS = ("teacher_accuracy", "accuracy", "free_accuracy", "labels_only_accuracy")
ARCHITECTURES = (
    "wrn-40-2",
    "resnet50",
    "vgg13",
    "densenet",
    "regnet",
    "swin-t",
    "deit-s",
    "convnext",
    "effnet",
    "vit-b",
)
WAYS = ("KD", "hint", "similarity", "correlation", "review", "decoupled", "margin")


@dataclass
class Study:
    """A grid of students; levels are in percent."""

    draw: Draw
    samples: int
    teachers: int = 6
    ways: int = 3
    seeds: int = 3
    spread: float = 0.5
    overlap: float = 0.7  # how much of a sample's outcome is its difficulty
    rows: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.names = [str(name) for name in self.draw.permutation(ARCHITECTURES)[: self.teachers]]
        self.objectives = [str(name) for name in self.draw.permutation(WAYS)[: self.ways]]
        places = (np.arange(self.samples) + 0.5) / self.samples
        self.difficulty = np.array([NormalDist().inv_cdf(place) for place in places])

    def right(self, level: float) -> int:
        """The number of right answers of one trained model."""
        share = float(np.clip((level + self.draw.normal(0, self.spread)) / 100, 0.002, 0.998))
        own = np.sqrt(1 - self.overlap) * self.draw.standard_normal(self.samples)
        return int((np.sqrt(self.overlap) * self.difficulty + own < NormalDist().inv_cdf(share)).sum())

    def fill(
        self, levels: Sequence[float], student: Level, free: Level | None = None, alone: float | None = None
    ) -> Study:
        labels_only = [self.right(alone) for _ in range(self.seeds)] if alone is not None else []
        for place, (name, level) in enumerate(zip(self.names, levels, strict=True)):
            for seed in range(self.seeds):
                skill = level + self.draw.normal(0, self.spread)
                taught = self.right(skill)
                for way, objective in enumerate(self.objectives):
                    row: Row = {"teacher": name, "objective": objective, "seed": str(seed + 1)}
                    row |= {"teacher_accuracy": taught, "accuracy": self.right(student(place, way, skill))}
                    row |= {"free_accuracy": self.right(free(place, way, skill))} if free else {}
                    row |= {"labels_only_accuracy": labels_only[seed]} if labels_only else {}
                    self.rows.append(row)
        return self

    def spaced(self, low: float, high: float) -> list[float]:
        return [float(level) for level in self.draw.permutation(np.linspace(low, high, self.teachers))]

    def cell(self, teacher: int, way: int) -> list[Row]:
        wanted = self.names[teacher], self.objectives[way]
        return [row for row in self.rows if (row["teacher"], row["objective"]) == wanted]

    def table(
        self, *expected: str, digits: int = 2, sized: bool = True, classes: int = 10, allowed: Sequence[str] = ()
    ) -> Table:
        """In percent; without its size a table has as many classes, and nobody knows how many samples each."""
        rows = []
        for row in self.rows:
            shown = {name: str(value) for name, value in row.items() if name not in COLUMNS}
            shown |= {
                name: f"{100 * value / self.samples:.{digits}f}" if isinstance(value := row[name], (int, float)) else ""
                for name in COLUMNS
                if name in row
            }
            rows.append(shown | ({"test_size": str(self.samples)} if sized else {}))
        return Table(rows, (1,) * classes, frozenset(expected), allowed=frozenset(allowed))


def _size(draw: Draw, *sizes: int) -> int:
    return int(draw.choice(sizes))


def _gaining(study: Study, alone: float = 68) -> Study:
    """Good teachers, students between them and the labels-only student, controls that follow."""
    levels = [float(level) for level in study.draw.uniform(alone + 5, alone + 14, study.teachers)]
    return study.fill(levels, lambda t, o, a: 0.4 * alone + 0.6 * a, lambda t, o, a: a - 2, alone)


def _following(study: Study) -> Study:
    return study.fill(study.spaced(42, 85), lambda t, o, a: a, lambda t, o, a: a - 1)


# Planted


def students_of_one_level_below_their_teachers(draw: Draw) -> Table:
    """With labels and without, so that no control shows it."""
    study = Study(draw, _size(draw, 500, 2000, 5000), teachers=int(draw.integers(4, 9)))
    study.fill(study.spaced(72, 95), lambda t, o, a: 71, lambda t, o, a: 70)
    return study.table("flat-students")


def a_gain_that_no_teacher_made(draw: Draw) -> Table:
    study = Study(draw, _size(draw, 1000, 5000), teachers=int(draw.integers(4, 9)))
    return study.fill(study.spaced(67, 92), lambda t, o, a: 71, alone=65).table("flat-students")


def controls_that_are_the_teachers(draw: Draw) -> Table:
    study = _gaining(Study(draw, _size(draw, 500, 1000, 5000), teachers=int(draw.integers(4, 9)), seeds=4))
    for row in study.rows:
        row["free_accuracy"] = row["teacher_accuracy"]
    return study.table("copied-teacher")


def controls_with_seeds_exchanged_in_every_cell(draw: Draw) -> Table:
    study = _gaining(Study(draw, _size(draw, 1000, 5000)))
    for teacher in range(study.teachers):
        for way in range(study.ways):
            cell = study.cell(teacher, way)
            taken = [cell[place]["accuracy"] for place in draw.permutation(len(cell))]
            for row, value in zip(cell, taken, strict=True):
                row["free_accuracy"] = value
    return study.table("copied-control")


def controls_of_the_next_of_many_seeds(draw: Draw) -> Table:
    """In lines of any order, so that seeds are met in another order than they were exchanged in."""
    study = _gaining(Study(draw, _size(draw, 1000, 5000), seeds=int(draw.integers(5, 8))))
    order = [int(place) for place in draw.permutation(study.seeds)]
    for teacher in range(study.teachers):
        for way in range(study.ways):
            cell = study.cell(teacher, way)
            for place, row in enumerate(cell):
                row["free_accuracy"] = cell[order[place]]["accuracy"]
    study.rows = [study.rows[place] for place in draw.permutation(len(study.rows))]
    return study.table("copied-control")


def one_of_two_seeds_that_failed(draw: Draw) -> Table:
    study = _gaining(Study(draw, _size(draw, 500, 2000), seeds=2))
    study.rows[int(draw.integers(len(study.rows)))]["accuracy"] = int(0.3 * study.samples)
    return study.table("unstable")


def a_seed_that_failed_beside_two_teachers(draw: Draw) -> Table:
    """Few cells of its objective, and all of them noisy: the other objectives say how much seeds vary."""
    study = _gaining(Study(draw, 100, teachers=3, ways=6, seeds=4))
    study.rows[int(draw.integers(len(study.rows)))]["accuracy"] = 20
    return study.table("unstable")


def an_objective_that_harms_with_every_teacher(draw: Draw) -> Table:
    """No single pair need show it."""
    study = Study(draw, _size(draw, 500, 1000))
    levels = [float(level) for level in draw.uniform(78, 86, study.teachers)]
    study.fill(levels, lambda t, o, a: 64 if o == 0 else 0.4 * 75 + 0.6 * a, alone=75)
    return study.table("harmful-teacher")


def swapped_classes_on_a_test_set_of_unknown_size(draw: Draw) -> Table:
    study = Study(draw, _size(draw, 400, 2500), seeds=2, spread=0.2)
    levels = study.spaced(45, 85)
    levels[0] = 2.0
    return study.fill(levels, lambda t, o, a: a, lambda t, o, a: a).table("below-chance-teacher", sized=False)


def one_objective_under_two_names_once(draw: Draw) -> Table:
    """One seed, and no word of the size of the test set."""
    study = _following(Study(draw, _size(draw, 200, 400), teachers=int(draw.integers(8, 11)), seeds=1))
    for teacher in range(study.teachers):
        for row, twin in zip(study.cell(teacher, 0), study.cell(teacher, 1), strict=True):
            twin["accuracy"] = row["accuracy"]
    return study.table("duplicate-objectives", sized=False)


def one_run_under_all_seeds(draw: Draw) -> Table:
    study = _following(Study(draw, _size(draw, 200, 400), seeds=int(draw.integers(2, 6))))
    for teacher in range(study.teachers):
        for way in range(study.ways):
            first, *others = study.cell(teacher, way)
            for row in others:
                row |= {name: first[name] for name in COLUMNS if name in first}
    return study.table("identical-seeds", sized=False)


def students_of_one_level_beside_two_coarse_controls(draw: Draw) -> Table:
    """Two seeds and one decimal: controls follow, but have no interval."""
    study = Study(draw, 5000, seeds=2)
    study.fill(study.spaced(35, 85), lambda t, o, a: 91, lambda t, o, a: a)
    return study.table("masked", digits=1, sized=False)


def controls_of_some_teachers(draw: Draw) -> Table:
    study = _gaining(Study(draw, _size(draw, 200, 1000)))
    for row in study.rows:
        if row["teacher"] in study.names[:2]:
            row["free_accuracy"] = ""
    return study.table("missing")


def the_best_in_other_words(draw: Draw) -> Table:
    study = _gaining(Study(draw, _size(draw, 200, 1000)))
    said = draw.choice(["the best evaluated round", "picked by test accuracy", "stopped early on test", "Oracle"])
    for row in study.rows:
        row["selection"] = str(said)
    return study.table("chosen-on-test-data")


def labels_alone_in_a_column_of_another_name(draw: Draw) -> Table:
    study = _gaining(Study(draw, _size(draw, 500, 2000)))
    for row in study.rows:
        row["accuracy"] = row["labels_only_accuracy"]
    table = study.table("labels-alone")
    for line in table.rows:
        line["labels_only"] = line.pop("labels_only_accuracy")
    return table


# Honest


def rounded_noise_on_a_small_test_set(draw: Draw) -> Table:
    """Numbers with normal noise, rounded to samples: seeds agree often, those of one teacher more than others'."""
    study = Study(draw, _size(draw, 80, 100, 200), teachers=int(draw.integers(4, 10)), ways=7)
    _gaining(study)
    shared: dict[tuple[str, str], float] = {}
    for row in study.rows:
        place = str(row["teacher"]), str(row["seed"])
        level = 0.76 + 0.02 * study.names.index(place[0]) / study.teachers
        skill = shared.setdefault(place, level + draw.normal(0, 0.005))
        reached = 0.45 + 0.4 * skill + draw.normal(0, 0.005)
        row["teacher_accuracy"] = round(study.samples * skill)
        row["accuracy"] = round(study.samples * reached)
        row["free_accuracy"] = round(study.samples * (reached - 0.01 + draw.normal(0, 0.005)))
        row["labels_only_accuracy"] = round(study.samples * (0.69 + 0.001 * int(place[1])))
    return study.table(allowed=["narrow-teachers", "label-leak", "labels-alone"])


def forty_samples_and_one_seed(draw: Draw) -> Table:
    study = Study(draw, 40, ways=5, seeds=1, overlap=0.3)
    return _following(study).table(allowed=["leverage", "chance-teacher"])


def four_teachers_evenly_apart(draw: Draw) -> Table:
    """Any one of them may change r; none carries it."""
    study = Study(draw, 5000, teachers=4, spread=0.3)
    return study.fill(study.spaced(60, 84), lambda t, o, a: a - 2, lambda t, o, a: a - 3).table()


def students_that_follow_a_little(draw: Draw) -> Table:
    """Within five points, and in the order of their teachers."""
    study = Study(draw, 5000, teachers=int(draw.integers(5, 10)), spread=0.15)
    study.fill(study.spaced(72, 90), lambda t, o, a: 69 + 0.22 * (a - 69), lambda t, o, a: 67 + 0.22 * (a - 69), 67)
    return study.table()


def unsized_and_honest(draw: Draw) -> Table:
    """The size of the test set can be deduced, and nothing follows from it."""
    study = _gaining(Study(draw, _size(draw, 120, 500, 1000), seeds=int(draw.integers(2, 5))))
    return study.table(sized=False, allowed=["narrow-teachers", "leverage", "masked"])


def the_last_model_in_other_words(draw: Draw) -> Table:
    study = _gaining(Study(draw, 2000))
    said = draw.choice(["last, on test", "final epoch (test set)", "best on val", "stopped early on validation"])
    for row in study.rows:
        row["selection"] = str(said)
    return study.table(allowed=["narrow-teachers", "leverage"])


REFEREES = (
    students_of_one_level_below_their_teachers,
    a_gain_that_no_teacher_made,
    controls_that_are_the_teachers,
    controls_with_seeds_exchanged_in_every_cell,
    controls_of_the_next_of_many_seeds,
    one_of_two_seeds_that_failed,
    a_seed_that_failed_beside_two_teachers,
    an_objective_that_harms_with_every_teacher,
    swapped_classes_on_a_test_set_of_unknown_size,
    one_objective_under_two_names_once,
    one_run_under_all_seeds,
    students_of_one_level_beside_two_coarse_controls,
    controls_of_some_teachers,
    the_best_in_other_words,
    labels_alone_in_a_column_of_another_name,
)
CANDID = (
    rounded_noise_on_a_small_test_set,
    forty_samples_and_one_seed,
    four_teachers_evenly_apart,
    students_that_follow_a_little,
    unsized_and_honest,
    the_last_model_in_other_words,
)
