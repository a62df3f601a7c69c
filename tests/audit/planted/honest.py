"""Honest tables: small test sets with ties, few seeds, ceilings, truncated figures, and true gains."""

from __future__ import annotations

from math import floor

import numpy as np

from .worlds import LOSSES, Table, World, apart, follows, honest_world, level

Draw = np.random.Generator


def classic_gain(draw: Draw) -> Table:
    """Labels alone 69, student 73, teacher 75.6: what distillation is for."""
    world = World(draw, 10000, 100, seeds=tuple("12345")).teach([0.756], 0.002)
    return world.distil("kd", level(0.73), 0.002).label(0.69, 0.002).table()


def classic_gain_of_one_seed(draw: Draw) -> Table:
    world = World(draw, 10000, 100, seeds=("0",)).teach([0.756], 0.002)
    return world.distil("kd", level(0.73), 0.002).label(0.69, 0.002).table()


def classic_gain_with_controls(draw: Draw) -> Table:
    world = World(draw, 10000, 100, percent=False, digits=4).teach([0.756, 0.71], 0.002)
    return world.distil("kd", follows(0.966), 0.002).control("kd", follows(0.955), 0.002).label(0.64, 0.002).table()


def grid_with_controls(draw: Draw) -> Table:
    return honest_world(draw, teachers=6, objectives=4).table()


def grid_in_shares(draw: Draw) -> Table:
    return honest_world(draw, samples=5000, teachers=5, percent=False, digits=4).table(counts=False)


def large_grid(draw: Draw) -> Table:
    """Three hundred cells: something is always the most extreme."""
    world = World(draw, 2468, 40).teach(apart(draw, 10, 0.3, 0.8))
    for name in LOSSES:
        share = float(draw.uniform(0.9, 0.98))
        world.distil(name, follows(share))
        world.weights[name] = 0.0
    return world.table()


def small_test_set(draw: Draw) -> Table:
    """80 samples: ties between seeds, teachers and objectives are common."""
    world = World(draw, 80, 4).teach(apart(draw, 6, 0.45, 0.85), 0.02)
    for name in LOSSES[:4]:
        world.distil(name, follows(0.98), 0.02)
        world.weights[name] = 0.0
    return world.table(allowed=["chance-teacher"])


def ceiling(draw: Draw) -> Table:
    """A strong teacher on 80 samples: nearly every student is at 98.75 or 100 %."""
    world = World(draw, 80, 4).teach([0.995], 0.002)
    for name in LOSSES[:6]:
        world.distil(name, level(0.994), 0.002)
    return world.table(allowed=["narrow-teachers"])


def federated_table(draw: Draw) -> Table:
    return World(draw, 10000, 10, seeds=tuple("12345")).teach(apart(draw, 9, 0.45, 0.85)).table()


def small_federated_table(draw: Draw) -> Table:
    """60 samples, two classes, ten methods that hardly differ: many ties."""
    return World(draw, 60, 2).teach([0.82] * 10, 0.02).table(allowed=["chance-teacher"])


def federated_table_of_two_seeds(draw: Draw) -> Table:
    return World(draw, 2000, 20, seeds=("a", "b"), percent=False, digits=3).teach(apart(draw, 5, 0.3, 0.7)).table()


def noisy_teachers(draw: Draw) -> Table:
    """Teachers vary by four points between seeds, and students with them."""
    world = World(draw, 3000, 10, seeds=tuple("12345")).teach(apart(draw, 5, 0.4, 0.8), 0.04)
    return world.distil("kd", follows(0.97)).control("kd", follows(0.96)).table()


def born_again(draw: Draw) -> Table:
    """Label-free students a point and a half above their teachers."""
    world = World(draw, 10000, 10).teach(apart(draw, 4, 0.6, 0.85), 0.003)
    world.distil("kd", follows(1.0, 0.02), 0.003).control("kd", follows(1.0, 0.015), 0.003).label(0.55, 0.003)
    return world.table()


def small_students(draw: Draw) -> Table:
    """Students with little capacity: far below their teachers, above labels alone."""
    world = World(draw, 5000, 50).teach(apart(draw, 4, 0.8, 0.92), 0.004)
    return world.distil("kd", follows(0.87), 0.004).control("kd", follows(0.86), 0.004).label(0.62, 0.004).table()


def trimmed_zeros(draw: Draw) -> Table:
    """As pandas writes shares: 0.5 and 0.4875 in one column."""
    world = honest_world(draw, samples=400, classes=4, teachers=3)
    world.form = lambda share: f"{100 * share:.10g}"
    return world.table()


def truncated(draw: Draw) -> Table:
    """Cut after two digits instead of rounded: 66.66 for two thirds."""
    world = honest_world(draw, samples=300, classes=3)
    world.form = lambda share: f"{floor(share * 10000 + 1e-9) / 100:.2f}"
    return world.table()


def single_precision(draw: Draw) -> Table:
    """Shares as float32 prints them in double precision."""
    world = honest_world(draw, samples=700, classes=7, teachers=3)
    world.form = lambda share: repr(float(np.float32(share)))
    return world.table()


def one_digit(draw: Draw) -> Table:
    return honest_world(draw, samples=250, classes=5, digits=1).table()


def whole_percents(draw: Draw) -> Table:
    """No digits at all: many ties on a large test set."""
    world = World(draw, 10000, 10, digits=0).teach(apart(draw, 5, 0.5, 0.8))
    return world.distil("kd", follows(0.97)).distil("hints", follows(0.95)).table()


def hundred_classes(draw: Draw) -> Table:
    """A hundred classes, and a weak teacher whose students are as weak: figures near 1 are percentages."""
    world = World(draw, 5000, 100).teach([0.6, 0.45, 0.3, 0.03], 0.002).distil("kd", follows(0.95), 0.002)
    return world.table(allowed=["chance-teacher", "leverage"])


def two_classes(draw: Draw) -> Table:
    world = World(draw, 1000, 2).teach(apart(draw, 4, 0.65, 0.93)).distil("kd", follows(0.98))
    return world.control("kd", follows(0.97)).label(0.6).table()


def unequal_classes(draw: Draw) -> Table:
    world = honest_world(draw, samples=1000, classes=4)
    return Table(world.rows(), (400, 300, 200, 100))


def ten_seeds(draw: Draw) -> Table:
    return honest_world(draw, samples=1000, seeds=tuple("0123456789"), objectives=1).table()


def two_teachers(draw: Draw) -> Table:
    return honest_world(draw, teachers=2, objectives=1).table()


def one_teacher_many_objectives(draw: Draw) -> Table:
    world = World(draw, 4000, 10).teach([0.9])
    for name in LOSSES[:6]:
        world.distil(name, level(float(draw.uniform(0.86, 0.89)))).control(name, level(0.855))
    return world.label(0.8).table(allowed=["narrow-teachers"])


def last_round_and_validation(draw: Draw) -> Table:
    """A column that says how models were selected, and not on the test set."""
    world = honest_world(draw)
    world.extra = {"selection": str(draw.choice(["last", "validation", "best on validation", "final round"]))}
    return world.table()


def size_by_the_column(draw: Draw) -> Table:
    world = honest_world(draw, samples=640, classes=8)
    world.extra = {"test_size": "640"}
    return world.table(counts=False)


def means_of_seeds(draw: Draw) -> Table:
    """One row per cell, with the mean over seeds, which is no whole number of samples."""
    world = World(draw, 200, 4, seeds=("mean",)).teach(apart(draw, 5, 0.5, 0.85))
    world.distil("kd", follows(0.97))
    for side in (world.taught, world.labelled):
        side.update({key: value + float(draw.integers(0, 3)) / 600 for key, value in side.items()})  # type: ignore[attr-defined]
    return world.table()


def percent_signs(draw: Draw) -> Table:
    world = World(draw, 1000, 10).teach(apart(draw, 4, 0.4, 0.8)).distil("kd", follows(0.97))
    world.form = lambda share: f"{100 * share:.1f}%"
    return world.table()


def unlike_objectives(draw: Draw) -> Table:
    """Three objectives, two of them equally good and drawn apart; weights of 0 and honest."""
    world = World(draw, 1200, 6, seeds=("1", "2", "3", "4")).teach(apart(draw, 5, 0.4, 0.85))
    for name, share in (("kd", 0.97), ("at", 0.97), ("sp", 0.8)):
        world.distil(name, follows(share))
        world.weights[name] = 0.0
    return world.table()


HONEST = (
    classic_gain,
    classic_gain_of_one_seed,
    classic_gain_with_controls,
    grid_with_controls,
    grid_in_shares,
    large_grid,
    small_test_set,
    ceiling,
    federated_table,
    small_federated_table,
    federated_table_of_two_seeds,
    noisy_teachers,
    born_again,
    small_students,
    trimmed_zeros,
    truncated,
    single_precision,
    one_digit,
    whole_percents,
    hundred_classes,
    two_classes,
    unequal_classes,
    ten_seeds,
    two_teachers,
    one_teacher_many_objectives,
    last_round_and_validation,
    size_by_the_column,
    means_of_seeds,
    percent_signs,
    unlike_objectives,
)
