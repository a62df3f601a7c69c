"""Planted tables in which something was copied, repeated, left out or altered."""

from __future__ import annotations

import numpy as np

from .worlds import LOSSES, Table, World, apart, follows, honest_world, level

Draw = np.random.Generator


def control_column_copied(draw: Draw) -> Table:
    world = honest_world(draw, samples=int(draw.integers(400, 3000)))
    world.free = dict(world.labelled)
    return world.table("copied-control")


def control_column_copied_and_rounded(draw: Draw) -> Table:
    """Copied, then printed with one digit less."""
    world = honest_world(draw, samples=1000, classes=5, teachers=5, objectives=1, digits=2)
    rows = world.rows()
    for row in rows:
        row["free_accuracy"] = f"{float(row['accuracy']):.1f}"
    return Table(rows, world.counts, frozenset({"copied-control"}))


def control_of_one_objective_copied(draw: Draw) -> Table:
    """In shares; the other objectives have controls of their own."""
    world = honest_world(draw, samples=5000, objectives=3, teachers=3, percent=False, digits=4)
    copied = str(draw.choice(world.objectives))
    world.free.update({cell: value for cell, value in world.labelled.items() if cell[1] == copied})
    return world.table("copied-control", counts=False)


def control_copied_but_for_noise(draw: Draw) -> Table:
    """One answer of 2000 more or less in some cells."""
    world = honest_world(draw, samples=2000)
    world.free = {
        cell: value + float(draw.choice([-1, 0, 0, 1])) / world.samples for cell, value in world.labelled.items()
    }
    return world.table("copied-control")


def teacher_twice(draw: Draw) -> Table:
    world = honest_world(draw, samples=int(draw.integers(300, 2000)), teachers=4)
    first, second = world.teachers[0], world.teachers[2]
    for (name, seed), value in list(world.taught.items()):
        if name == first:
            world.taught[second, seed] = value
    for side in (world.labelled, world.free):
        for (name, objective, seed), value in list(side.items()):
            if name == first:
                side[second, objective, seed] = value
    return world.table("duplicate-teachers")


def method_twice_without_students(draw: Draw) -> Table:
    """A table of federated methods by seeds: two rows are one method."""
    world = World(draw, 10000, 10, seeds=tuple("12345"), percent=False, digits=4)
    world.teach(apart(draw, 6, 0.5, 0.8))
    for seed in world.seeds:
        world.taught["fedbn", seed] = world.taught["fedavg", seed]
    return world.table("duplicate-teachers")


def teacher_nearly_twice(draw: Draw) -> Table:
    """The same runs, evaluated on another machine: up to two of 2468 answers differ."""
    world = World(draw, 2468, 40)
    world.teach(apart(draw, 5, 0.3, 0.75))
    for name in LOSSES[:3]:
        world.distil(name, follows(0.96))
    for (name, seed), value in list(world.taught.items()):
        if name == "fedavg":
            world.taught["ditto", seed] = value + draw.integers(-2, 3) / world.samples
    for (name, objective, seed), value in list(world.labelled.items()):
        if name == "fedavg":
            world.labelled["ditto", objective, seed] = value + draw.integers(-2, 3) / world.samples
    return world.table("duplicate-teachers")


def objective_twice(draw: Draw) -> Table:
    world = honest_world(draw, samples=800, objectives=3)
    for side in (world.labelled, world.free):
        for (name, objective, seed), value in list(side.items()):
            if objective == LOSSES[0]:
                side[name, LOSSES[2], seed] = value
    return world.table("duplicate-objectives")


def objective_nearly_twice(draw: Draw) -> Table:
    """In shares, without controls; one cell of fifteen was run again."""
    world = World(draw, 3000, 10, percent=False, digits=3)
    world.teach(apart(draw, 5, 0.4, 0.8))
    world.distil("kd", follows(0.97)).distil("kd+x", follows(0.97)).distil("at", follows(0.93))
    again = (str(draw.choice(world.teachers)), str(draw.choice(world.seeds)))
    for (name, objective, seed), value in list(world.labelled.items()):
        if objective == "kd" and (name, seed) != again:
            world.labelled[name, "kd+x", seed] = value
    return world.table("duplicate-objectives", counts=False)


def seeds_all_equal(draw: Draw) -> Table:
    world = honest_world(draw, samples=1500, teachers=3)
    first = world.seeds[0]
    world.taught = {key: world.taught[key[0], first] for key in world.taught}
    world.labelled = {key: world.labelled[*key[:2], first] for key in world.labelled}
    world.free = {key: world.free[*key[:2], first] for key in world.free}
    world.alone = dict.fromkeys(world.alone, world.alone[first])
    return world.table("identical-seeds")


def two_seeds_equal(draw: Draw) -> Table:
    """Five seeds, of which two are one run; no controls, shares."""
    world = World(draw, 4000, 20, seeds=tuple("01234"), percent=False, digits=4)
    world.teach(apart(draw, 4, 0.3, 0.7)).distil("kd", follows(0.95)).distil("hints", follows(0.92))
    one, other = draw.choice(world.seeds, 2, replace=False)
    world.taught.update({(name, other): value for (name, seed), value in world.taught.items() if seed == one})
    world.labelled.update(
        {(name, loss, other): value for (name, loss, seed), value in world.labelled.items() if seed == one}
    )
    return world.table("identical-seeds", counts=False)


def seeds_equal_in_a_federated_table(draw: Draw) -> Table:
    world = World(draw, 10000, 10).teach(apart(draw, 7, 0.4, 0.8))
    for name in world.teachers:
        world.taught[name, "123"] = world.taught[name, "42"]
    return world.table("identical-seeds")


def one_checkpoint(draw: Draw) -> Table:
    world = honest_world(draw, samples=2000)
    world.taught = {key: world.taught[key[0], world.seeds[0]] for key in world.taught}
    return world.table("one-checkpoint")


def one_checkpoint_in_shares(draw: Draw) -> Table:
    world = World(draw, 600, 6, seeds=tuple("abcde"), percent=False, digits=3)
    world.teach(apart(draw, 6, 0.35, 0.8)).distil("kd", follows(0.96))
    world.taught = {key: world.taught[key[0], "a"] for key in world.taught}
    return world.table("one-checkpoint", counts=False)


def seeds_missing(draw: Draw) -> Table:
    world = honest_world(draw, teachers=5)
    for index in draw.choice(len(world.labelled), 3, replace=False):
        cell = list(honest := world.labelled)[int(index)]
        del honest[cell]
        break
    return world.table("missing")


def fields_empty(draw: Draw) -> Table:
    world = World(draw, 900, 3, seeds=tuple("123"), percent=False, digits=3)
    world.teach(apart(draw, 4, 0.5, 0.8)).distil("kd", follows(0.97)).distil("at", follows(0.95))
    rows = world.rows()
    for index in draw.choice(len(rows), 2, replace=False):
        rows[int(index)]["accuracy"] = ""
    return Table(rows, (), frozenset({"missing"}))


def other_seeds_for_one_teacher(draw: Draw) -> Table:
    """Four methods with seeds 0 to 4, and a fifth with three of its own."""
    world = World(draw, 5000, 10, seeds=tuple("01234")).teach(apart(draw, 4, 0.5, 0.8))
    world.seeds = ("7", "8", "9")
    world.teach([0.85], names=["ours"])
    return world.table("missing")


def accuracy_between_two_samples(draw: Draw) -> Table:
    """80 samples: 91.25 and 92.50 exist, 91.90 does not."""
    world = honest_world(draw, samples=80, classes=4, teachers=4)
    rows = world.rows()
    row = rows[int(draw.integers(len(rows)))]
    row["accuracy"] = f"{float(row['accuracy']) - 0.35 - 0.5 * draw.random():.2f}"
    return Table(rows, world.counts, frozenset({"impossible-accuracy"}))


def impossible_by_the_column(draw: Draw) -> Table:
    """Shares with four digits, and a column with the size of the test set instead of class counts."""
    world = World(draw, 500, 10, percent=False, digits=4, extra={"test_size": "500"})
    world.teach(apart(draw, 5, 0.4, 0.8)).distil("kd", follows(0.97))
    rows = world.rows()
    for index in draw.choice(len(rows), 2, replace=False):
        rows[int(index)]["accuracy"] = f"{float(rows[int(index)]['accuracy']) - 0.0007:.4f}"
    return Table(rows, (), frozenset({"impossible-accuracy"}))


def impossible_method(draw: Draw) -> Table:
    """A federated table: one method's figures are not those of 250 test samples."""
    world = World(draw, 250, 5).teach(apart(draw, 5, 0.5, 0.8))
    rows = world.rows()
    for row in rows[-3:]:
        row["teacher_accuracy"] = f"{float(row['teacher_accuracy']) + 0.13:.2f}"
    return Table(rows, world.counts, frozenset({"impossible-accuracy"}))


def selected_on_test(draw: Draw) -> Table:
    world = honest_world(draw)
    world.extra = {"selection": str(draw.choice(["best on test", "best", "test", "best-test", "best epoch on test"]))}
    return world.table("chosen-on-test-data")


def some_selected_on_test(draw: Draw) -> Table:
    """One method of five reports its best round on the test set, the others their last."""
    world = World(draw, 3000, 10, percent=False, digits=4).teach(apart(draw, 5, 0.5, 0.8))
    rows = world.rows()
    for row in rows:
        row["selection"] = "test" if row["teacher"] == "moon" else "last"
    rows[0]["selection"] = "best (test)"
    return Table(rows, world.counts, frozenset({"chosen-on-test-data"}))


def rows_in_shares(draw: Draw) -> Table:
    """One teacher's rows are shares among percentages."""
    world = honest_world(draw, samples=1000)
    rows = world.rows()
    name = str(draw.choice(world.teachers))
    lines = []
    for number, row in enumerate(rows, start=2):
        if row["teacher"] == name:
            lines.append(number)
            for column in ("accuracy", "teacher_accuracy", "free_accuracy"):
                row[column] = f"{float(row[column]) / 100:.4f}"
    return Table(rows, world.counts, refused=(str(lines[0]), str(lines[1])))


def one_field_in_percent(draw: Draw) -> Table:
    world = World(draw, 1000, 10, percent=False, digits=3)
    world.teach(apart(draw, 4, 0.4, 0.8)).distil("kd", follows(0.97))
    rows = world.rows()
    index = int(draw.integers(len(rows)))
    rows[index]["accuracy"] = f"{100 * float(rows[index]['accuracy']):.1f}"
    return Table(rows, (), refused=(str(index + 2),))


def one_column_in_shares(draw: Draw) -> Table:
    world = World(draw, 1000, 10)
    world.teach(apart(draw, 4, 0.4, 0.8)).distil("kd", follows(0.97))
    rows = world.rows()
    for row in rows:
        row["teacher_accuracy"] = f"{float(row['teacher_accuracy']) / 100:.4f}"
    return Table(rows, (), refused=("teacher_accuracy", "accuracy"))


def a_method_in_shares(draw: Draw) -> Table:
    """A federated table with one row of shares."""
    world = World(draw, 1000, 10, seeds=("1", "2")).teach(apart(draw, 4, 0.4, 0.8))
    rows = world.rows()
    rows[3]["teacher_accuracy"] = f"{float(rows[3]['teacher_accuracy']) / 100:.4f}"
    return Table(rows, world.counts, refused=("5",))


def labels_only_copied(draw: Draw) -> Table:
    """The student is the labels-only student, whoever is said to have taught it."""
    world = World(draw, 1000, 10).teach(apart(draw, 4, 0.5, 0.8)).label(0.83)
    for name in world.teachers:
        for seed in world.seeds:
            world.labelled[name, "kd", seed] = world.alone[seed]
    return world.table("labels-alone")


def labels_only_under_another_name(draw: Draw) -> Table:
    """One objective's students differ from the labels-only student by an answer or two; controls track the teachers."""
    world = honest_world(draw, samples=5000, percent=False, digits=4, teachers=5)
    for name in world.teachers:
        for seed in world.seeds:
            world.labelled[name, "vanilla", seed] = world.alone[seed] + float(draw.integers(-2, 3)) / world.samples
    return world.table("labels-alone")


def as_good_as_labels_alone(draw: Draw) -> Table:
    """Good teachers, honest controls, and nothing gained: labels alone are as accurate."""
    world = World(draw, 10000, 10, seeds=tuple("12345"))
    world.teach([0.901, 0.905], spread=0.002)
    world.distil("kd", level(0.9), 0.002).control("kd", level(0.895), 0.002).label(0.9, 0.002)
    return world.table("labels-alone")


COPIES = (
    control_column_copied,
    control_column_copied_and_rounded,
    control_of_one_objective_copied,
    control_copied_but_for_noise,
    teacher_twice,
    method_twice_without_students,
    teacher_nearly_twice,
    objective_twice,
    objective_nearly_twice,
    seeds_all_equal,
    two_seeds_equal,
    seeds_equal_in_a_federated_table,
    one_checkpoint,
    one_checkpoint_in_shares,
    seeds_missing,
    fields_empty,
    other_seeds_for_one_teacher,
    accuracy_between_two_samples,
    impossible_by_the_column,
    impossible_method,
    selected_on_test,
    some_selected_on_test,
    labels_only_copied,
    labels_only_under_another_name,
    as_good_as_labels_alone,
)
REFUSED = (rows_in_shares, one_field_in_percent, one_column_in_shares, a_method_in_shares)
