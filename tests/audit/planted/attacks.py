"""A second set of tables, written after the audit's thresholds were chosen: planted ones, and honest ones."""

from __future__ import annotations

import numpy as np

from .worlds import LOSSES, Table, World, apart, follows, honest_world, level

Draw = np.random.Generator


def a_leak_of_ten_points(draw: Draw) -> Table:
    """Controls ten points above their teachers: below three thresholds, and above what seeds explain."""
    world = World(draw, 1500, 12).teach(apart(draw, 5, 0.45, 0.75))
    world.distil("kd", follows(1.0, 0.11)).control("kd", follows(1.0, 0.10))
    return world.table("label-leak")


def a_leak_of_eight_points_by_weight(draw: Draw) -> Table:
    world = World(draw, 8000, 10, seeds=tuple("12345"), percent=False, digits=4).teach(apart(draw, 4, 0.5, 0.7))
    world.distil("pure", follows(1.0, 0.08))
    world.weights = {"pure": 0.0}
    return world.table("label-leak")


def masked_on_eighty_samples(draw: Draw) -> Table:
    """A small test set and two seeds: masking of fifty points is seen all the same."""
    world = World(draw, 80, 4, seeds=("1", "2")).teach(apart(draw, 3, 0.3, 0.45), 0.02)
    world.distil("kd", level(0.9), 0.02).control("kd", follows(0.98), 0.02)
    return world.table("masked")


def masked_by_one_teacher_of_many(draw: Draw) -> Table:
    """Thirty pairs, one of them masked: it survives the correction."""
    world = honest_world(draw, samples=3000, teachers=10, objectives=3)
    for seed in world.seeds:
        world.labelled["fedbn", LOSSES[1], seed] = world.score(0.91)
        world.taught["fedbn", seed] = world.score(0.55)
        for name in world.objectives:
            world.free["fedbn", name, seed] = world.score(0.54)
    return world.table("masked")


def methods_copied(draw: Draw) -> Table:
    """A table of federated methods in which one row of five seeds is another's, but for one seed."""
    world = World(draw, 5000, 10, seeds=tuple("12345"), percent=False, digits=4).teach(apart(draw, 7, 0.5, 0.8))
    for seed in "1235":
        world.taught["ditto", seed] = world.taught["fedavg", seed]
    return world.table("duplicate-teachers")


def methods_with_an_impossible_figure(draw: Draw) -> Table:
    world = World(draw, 360, 6).teach(apart(draw, 6, 0.5, 0.9))
    world.taught["moon", "42"] += 0.0014
    return world.table("impossible-accuracy")


def methods_of_the_best_round(draw: Draw) -> Table:
    world = World(draw, 2000, 10).teach(apart(draw, 5, 0.5, 0.8))
    world.extra = {"selection": str(draw.choice(["best", "max over rounds", "best test round", "oracle"]))}
    return world.table("chosen-on-test-data")


def a_method_with_a_failed_seed(draw: Draw) -> Table:
    world = World(draw, 1000, 10, seeds=tuple("1234")).teach(apart(draw, 6, 0.6, 0.85), 0.006)
    world.taught["fednova", "3"] = world.score(0.2)
    return world.table("unstable")


def one_seed_repeated_in_every_method(draw: Draw) -> Table:
    """Seeds 1 and 2 are one run, in all methods."""
    world = World(draw, 2468, 40, seeds=("1", "2", "3")).teach(apart(draw, 8, 0.3, 0.8))
    for name in world.teachers:
        world.taught[name, "2"] = world.taught[name, "1"]
    return world.table("identical-seeds")


def a_student_that_is_the_labels_only_student(draw: Draw) -> Table:
    """One of three objectives was never distilled: its students are those of labels alone, seed by seed."""
    world = honest_world(draw, samples=4000, teachers=5, objectives=3, seeds=tuple("1234"))
    world.alone = {seed: world.score(0.6) for seed in world.seeds}
    for teacher in world.teachers:
        for seed in world.seeds:
            world.labelled[teacher, LOSSES[2], seed] = world.alone[seed]
    return world.table("labels-alone")


def swapped_rare_classes(draw: Draw) -> Table:
    """Unequal classes: a teacher below the smallest share."""
    world = World(draw, 2000, 4).teach([0.8, 0.75, 0.035, 0.7], 0.004)
    return Table(world.rows(), (1100, 500, 250, 150), frozenset({"below-chance-teacher"}))


def recovery_in_a_wide_table(draw: Draw) -> Table:
    """Twelve objectives of one poor teacher among good ones, shares with three digits."""
    world = World(draw, 1000, 20, percent=False, digits=3).teach([0.8, 0.78, 0.76, 0.2])
    for name in LOSSES[:6]:
        world.distil(name, lambda skill: max(skill, 0.75))
    return world.table("recovery")


def harm_by_four_points(draw: Draw) -> Table:
    """Below the threshold of five points, and far above noise on 10,000 samples."""
    world = World(draw, 10000, 10, seeds=tuple("12345")).teach([0.7, 0.72, 0.69], 0.003).label(0.78, 0.003)
    world.distil("kd", level(0.74), 0.003)
    return world.table("harmful-teacher")


def controls_copied_with_noise(draw: Draw) -> Table:
    """Controls that are the labelled students, each changed by one test sample or none."""
    world = honest_world(draw, samples=5000, teachers=6, objectives=2)
    world.free = {cell: value + float(draw.integers(-1, 2)) / 5000 for cell, value in world.labelled.items()}
    return world.table("copied-control")


def a_control_missing_for_the_worst_teacher(draw: Draw) -> Table:
    world = honest_world(draw, teachers=6, objectives=2)
    for cell in [cell for cell in world.free if cell[0] == world.teachers[-1] and cell[2] == "7"]:
        del world.free[cell]
    return world.table("missing")


ATTACKS = (
    a_leak_of_ten_points,
    a_leak_of_eight_points_by_weight,
    masked_on_eighty_samples,
    masked_by_one_teacher_of_many,
    methods_copied,
    methods_with_an_impossible_figure,
    methods_of_the_best_round,
    a_method_with_a_failed_seed,
    one_seed_repeated_in_every_method,
    a_student_that_is_the_labels_only_student,
    swapped_rare_classes,
    recovery_in_a_wide_table,
    harm_by_four_points,
    controls_copied_with_noise,
    a_control_missing_for_the_worst_teacher,
)


def equal_methods(draw: Draw) -> Table:
    """Eight methods that are equally good: no winner, and nothing else."""
    return World(draw, 3000, 10, seeds=tuple("12345")).teach([0.75] * 8, 0.008).table()


def two_seeds_on_forty_samples(draw: Draw) -> Table:
    world = World(draw, 40, 4, seeds=("1", "2")).teach(apart(draw, 4, 0.5, 0.8), 0.03)
    world.distil("kd", follows(0.98), 0.03).control("kd", follows(0.97), 0.03)
    return world.table(allowed=["chance-teacher", "narrow-teachers", "leverage"])


def students_equal_to_their_teachers(draw: Draw) -> Table:
    """Label-free students as good as their teachers, of 40 pairs: some are above by chance."""
    world = World(draw, 2000, 10).teach(apart(draw, 8, 0.5, 0.85), 0.006)
    for name in LOSSES[:5]:
        world.distil(name, follows(1.0, 0.01)).control(name, follows(1.0))
    return world.table()


def gains_of_a_point(draw: Draw) -> Table:
    """One point over labels alone on 50,000 samples."""
    world = World(draw, 50000, 1000, seeds=tuple("123")).teach([0.77], 0.001)
    return world.distil("kd", level(0.715), 0.001).control("kd", level(0.705), 0.001).label(0.70, 0.001).table()


def a_long_tail(draw: Draw) -> Table:
    """A hundred classes of very different sizes, teachers well above the largest."""
    counts = np.maximum(1, (400 * 0.95 ** np.arange(100)).astype(int))
    world = World(draw, int(counts.sum()), 100).teach(apart(draw, 5, 0.4, 0.7)).distil("kd", follows(0.97))
    world.control("kd", follows(0.96))
    return Table(world.rows(), tuple(int(one) for one in counts))


def methods_in_shares(draw: Draw) -> Table:
    return World(draw, 1797, 10, seeds=("0", "1"), percent=False, digits=5).teach(apart(draw, 4, 0.8, 0.97)).table()


def a_federation_of_many_methods(draw: Draw) -> Table:
    """Ten methods by ten seeds."""
    return World(draw, 10000, 100, seeds=tuple("0123456789")).teach(apart(draw, 10, 0.3, 0.6), 0.01).table()


def strong_labels_and_strong_teachers(draw: Draw) -> Table:
    """Every figure between 93 and 96 %."""
    world = World(draw, 5000, 10).teach([0.95, 0.93, 0.955, 0.94], 0.003)
    world.distil("kd", follows(1.0), 0.003).control("kd", follows(0.995), 0.003)
    return world.table(allowed=["narrow-teachers"])


def one_pair_of_one_seed(draw: Draw) -> Table:
    world = World(draw, 600, 6, seeds=("1",)).teach([0.8], 0.01).distil("kd", follows(0.98))
    return world.control("kd", follows(0.975)).table()


def grid_of_two_hundred_samples(draw: Draw) -> Table:
    return honest_world(draw, samples=200, classes=4, teachers=5, objectives=3).table(allowed=["leverage"])


FAIR = (
    equal_methods,
    two_seeds_on_forty_samples,
    students_equal_to_their_teachers,
    gains_of_a_point,
    a_long_tail,
    methods_in_shares,
    a_federation_of_many_methods,
    strong_labels_and_strong_teachers,
    one_pair_of_one_seed,
    grid_of_two_hundred_samples,
)
