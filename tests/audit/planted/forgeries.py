"""A third set of tables: figures that somebody derived from others instead of training, and honest ones beside them."""

from __future__ import annotations

import numpy as np

from .worlds import Table, World, apart, follows, honest_world

Draw = np.random.Generator


def controls_a_constant_below(draw: Draw) -> Table:
    """Every control is its labelled student less 0.4 points."""
    world = honest_world(draw, samples=5000)
    world.free = {cell: value - 0.004 for cell, value in world.labelled.items()}
    return world.table("copied-control")


def controls_of_another_objective(draw: Draw) -> Table:
    """The controls of one objective are the labelled students of another."""
    world = honest_world(draw, samples=5000)
    first, second = world.objectives
    for teacher, objective, seed in list(world.labelled):
        if objective == first:
            world.free[teacher, first, seed] = world.labelled[teacher, second, seed]
    return world.table("copied-control")


def a_seed_a_constant_above(draw: Draw) -> Table:
    """The third seed is the first and 0.1 points everywhere."""
    world = honest_world(draw, samples=5000)
    first, _, third = world.seeds
    for teacher in world.teachers:
        world.taught[teacher, third] = world.taught[teacher, first] + 0.001
        for objective in world.objectives:
            for side in (world.labelled, world.free):
                side[teacher, objective, third] = side[teacher, objective, first] + 0.001
    return world.table("identical-seeds")


def a_teacher_with_exchanged_seeds(draw: Draw) -> Table:
    """The second teacher is the first, with its seeds in another order."""
    world = honest_world(draw, samples=5000, teachers=5)
    first, second = world.teachers[:2]
    order = dict(zip(world.seeds, (*world.seeds[1:], world.seeds[0]), strict=True))
    for seed, other in order.items():
        world.taught[second, seed] = world.taught[first, other]
        for objective in world.objectives:
            for side in (world.labelled, world.free):
                side[second, objective, seed] = side[first, objective, other]
    return world.table("duplicate-teachers")


def teachers_evaluated_as_students(draw: Draw) -> Table:
    """The students of one objective have exactly the accuracies of their teachers."""
    world = honest_world(draw, samples=5000)
    for teacher, objective, seed in list(world.labelled):
        if objective == world.objectives[0]:
            world.labelled[teacher, objective, seed] = world.taught[teacher, seed]
    return world.table("copied-teacher")


FORGERIES = (
    controls_a_constant_below,
    controls_of_another_objective,
    a_seed_a_constant_above,
    a_teacher_with_exchanged_seeds,
    teachers_evaluated_as_students,
)


def forty_methods(draw: Draw) -> Table:
    names = [f"method {number}" for number in range(40)]
    return World(draw, 10_000, 10).teach(apart(draw, 40, 0.5, 0.9), names=names).table()


def noisy_and_calm_methods(draw: Draw) -> Table:
    """Seeds of one method vary ten times as much as those of another."""
    world = World(draw, 3000, 10, seeds=tuple("12345")).teach(apart(draw, 3, 0.6, 0.7), 0.004)
    for name, skill, spread in (("noisy", 0.75, 0.02), ("calm", 0.8, 0.002)):
        for seed in world.seeds:
            world.taught[name, seed] = world.score(skill, spread)
    return world.table(allowed=["unstable"])


def whole_percentages(draw: Draw) -> Table:
    """Printed without decimals, and the size of the test set is not known."""
    return honest_world(draw, samples=300, digits=0, seeds=tuple("12345")).table(counts=False)


def a_hundred_classes_in_shares(draw: Draw) -> Table:
    world = World(draw, 10_000, 100, percent=False, digits=4).teach(apart(draw, 5, 0.55, 0.75))
    world.distil("kd", follows(0.98, 0.02)).control("kd", follows(0.98))
    return world.label(0.45).table()


PLAIN = (forty_methods, noisy_and_calm_methods, whole_percentages, a_hundred_classes_in_shares)
