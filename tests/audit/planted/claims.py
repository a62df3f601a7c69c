"""Planted tables whose figures are what was measured, but do not carry the claim that is read from them."""

from __future__ import annotations

import numpy as np

from .worlds import Table, World, apart, follows, honest_world, level

Draw = np.random.Generator


def controls_far_above_their_teachers(draw: Draw) -> Table:
    """A "label-free" column that had labels: flat at 90 % with every teacher."""
    world = World(draw, 1000, 10).teach(apart(draw, 5, 0.2, 0.7))
    world.distil("kd", level(0.91)).control("kd", level(0.9))
    return world.table("label-leak")


def declared_weight_of_zero(draw: Draw) -> Table:
    world = World(draw, 2000, 40).teach(apart(draw, 4, 0.15, 0.6))
    world.distil("kd", follows(0.97)).distil("pure", level(0.88))
    world.weights = {"kd": 0.0, "pure": 0.0}
    return world.table("label-leak")


def one_leaking_control(draw: Draw) -> Table:
    """In shares, five seeds: only the control of the worst teacher had labels."""
    world = honest_world(draw, samples=4000, seeds=tuple("12345"), percent=False, digits=4, teachers=4, objectives=1)
    world.teach([0.3], names=["scaffold"]).distil("vanilla", follows(0.97, 0.012)).control("vanilla", follows(0.97))
    for seed in world.seeds:
        world.labelled["scaffold", "vanilla", seed] = world.score(0.84)
        world.free["scaffold", "vanilla", seed] = world.score(0.82)
    return world.table("label-leak")


def flat_without_controls(draw: Draw) -> Table:
    """Students do not depend on their teachers; nobody trained a control."""
    world = World(draw, 1500, 8).teach(apart(draw, 6, 0.3, 0.8)).distil("kd", level(0.9))
    return world.table("masked")


def flat_but_for_a_failed_seed(draw: Draw) -> Table:
    """The same, and one of eighteen students failed."""
    world = World(draw, 1500, 8, percent=False, digits=4).teach(apart(draw, 6, 0.3, 0.8)).distil("kd", level(0.9))
    cells = list(world.labelled)
    world.labelled[cells[int(draw.integers(len(cells)))]] = world.score(0.13)
    return world.table("masked", "unstable")


def flat_controls(draw: Draw) -> Table:
    """Labelled students and controls alike are flat while teachers vary; weak teachers only a little below."""
    world = World(draw, 3000, 10).teach(apart(draw, 6, 0.4, 0.85)).distil("kd", level(0.87)).control("kd", level(0.86))
    return world.table("label-leak")


def a_failed_seed(draw: Draw) -> Table:
    world = honest_world(draw, teachers=5, objectives=3)
    cells = list(world.labelled)
    world.labelled[cells[int(draw.integers(len(cells)))]] = world.score(0.11)
    return world.table("unstable")


def a_lucky_seed(draw: Draw) -> Table:
    """The leading method leads by one seed of five."""
    world = World(draw, 10000, 10, seeds=tuple("12345"), percent=False, digits=4)
    world.teach([0.62, 0.6, 0.58, 0.55, 0.5], spread=0.004)
    world.taught["scaffold", "3"] = world.score(0.86, 0)
    return world.table("unstable")


def swapped_classes(draw: Draw) -> Table:
    """Two classes: a teacher that is wrong nine times of ten."""
    world = World(draw, 400, 2).teach([0.8, 0.75, 0.11]).distil("kd", follows(0.97))
    return world.table("below-chance-teacher")


def below_chance_of_many(draw: Draw) -> Table:
    world = World(draw, 3000, 5, seeds=tuple("1234"), percent=False, digits=3)
    world.teach([0.7, 0.66, 0.05, 0.6], spread=0.004)
    return world.table("below-chance-teacher")


def a_teacher_that_harms(draw: Draw) -> Table:
    world = honest_world(draw, samples=2000)
    world.alone = {seed: world.score(0.8) for seed in world.seeds}
    for seed in world.seeds:
        world.taught["moon", seed] = world.score(0.35)
        for name in world.objectives:
            world.labelled["moon", name, seed] = world.score(0.6)
            world.free["moon", name, seed] = world.score(0.34)
    return world.table("harmful-teacher")


def a_teacher_that_harms_without_controls(draw: Draw) -> Table:
    world = World(draw, 10000, 10, seeds=tuple("12345"), percent=False, digits=4)
    world.teach([0.85, 0.8, 0.4, 0.78]).label(0.76)
    for name, skill in zip(world.teachers, (0.82, 0.79, 0.66, 0.78), strict=True):
        for seed in world.seeds:
            world.labelled[name, "kd", seed] = world.score(skill)
    return world.table("harmful-teacher")


def the_published_headline(draw: Draw) -> Table:
    """8.5 % teaches 92.9 %: above the chance level of forty classes, and no teacher of this student."""
    world = World(draw, 2468, 40)
    world.teach([0.6, 0.5, 0.085], spread=0.004).distil("kd", level(0.927), 0.002)
    world.weights = {"kd": 0.5}
    return world.table("recovery")


def recovery_of_one_seed(draw: Draw) -> Table:
    """One seed, no class counts, no weights, shares."""
    world = World(draw, 1000, 10, seeds=("1",), percent=False, digits=3)
    world.teach([0.31, 0.86]).distil("ours", level(0.9))
    return world.table("recovery", counts=False)


def recovery_of_one_pair(draw: Draw) -> Table:
    world = World(draw, 500, 4, seeds=("1", "2", "3")).teach(apart(draw, 4, 0.6, 0.85)).distil("kd", follows(0.98))
    world.teach([0.4], names=["fedadam"])
    for seed in world.seeds:
        world.labelled["fedadam", "kd", seed] = world.score(0.9)
    return world.table("recovery")


def teachers_alike(draw: Draw) -> Table:
    """Teachers within a point: no correlation can be read from them."""
    world = World(draw, 500, 10).teach([0.8, 0.802, 0.798, 0.801, 0.803], spread=0.006).distil("kd", level(0.81))
    return world.table("narrow-teachers")


def teachers_alike_with_controls(draw: Draw) -> Table:
    world = World(draw, 5000, 10, seeds=tuple("12345"), percent=False, digits=4)
    world.teach([0.9, 0.902, 0.901, 0.899], spread=0.003)
    world.distil("kd", level(0.905), 0.003).control("kd", level(0.898), 0.003).label(0.87, 0.003)
    return world.table("narrow-teachers")


def one_teacher_carries_r(draw: Draw) -> Table:
    """Four teachers whose students do not follow them, and one that failed."""
    world = World(draw, 2000, 10).teach([0.8, 0.76, 0.72, 0.78, 0.12])
    for name, skill in zip(world.teachers, (0.74, 0.78, 0.775, 0.755, 0.12), strict=True):
        for seed in world.seeds:
            world.labelled[name, "at", seed] = world.score(skill, 0.003)
    return world.table("leverage")


def one_good_teacher_carries_r(draw: Draw) -> Table:
    world = World(draw, 8000, 10, percent=False, digits=4).teach([0.3, 0.33, 0.27, 0.31, 0.29, 0.35, 0.8], 0.003)
    for name, skill in zip(world.teachers, (0.33, 0.27, 0.33, 0.29, 0.31, 0.28, 0.75), strict=True):
        for seed in world.seeds:
            world.labelled[name, "hints", seed] = world.score(skill, 0.003)
    return world.table("leverage")


def masked_with_controls(draw: Draw) -> Table:
    """The artefact that the audit was made for."""
    world = World(draw, 1000, 10).teach(apart(draw, 4, 0.2, 0.6))
    world.distil("kd", level(0.9)).control("kd", follows(0.95)).label(0.9)
    return world.table("masked", "recovery", "labels-alone")


CLAIMS = (
    controls_far_above_their_teachers,
    declared_weight_of_zero,
    one_leaking_control,
    flat_without_controls,
    flat_but_for_a_failed_seed,
    flat_controls,
    a_failed_seed,
    a_lucky_seed,
    swapped_classes,
    below_chance_of_many,
    a_teacher_that_harms,
    a_teacher_that_harms_without_controls,
    the_published_headline,
    recovery_of_one_seed,
    recovery_of_one_pair,
    teachers_alike,
    teachers_alike_with_controls,
    one_teacher_carries_r,
    one_good_teacher_carries_r,
    masked_with_controls,
)
