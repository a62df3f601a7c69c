"""The sentences must say the opposite when the results do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedstill.audit import Score, judge

from .grids import evidence

TEACHERS = {"a": [80, 81, 82], "b": [60, 61, 62], "c": [40, 41, 42]}
RISING = {("a", "o"): [80, 81, 83], ("b", "o"): [60, 62, 62], ("c", "o"): [40, 41, 43]}
FLAT = {("a", "o"): [90, 91, 92], ("b", "o"): [90, 91, 92], ("c", "o"): [91, 91, 92]}


def told(labelled: object, free: object = None, teachers: object = None, **more: object) -> str:
    made = evidence(teachers or TEACHERS, labelled, free, weights={"o": 0.5}, **more)  # type: ignore[arg-type]
    return " ".join(judge(made).summary).replace("\u00a0", " ")


def first(*given: object, **more: object) -> str:
    return told(*given, **more).split(":")[0].split(",")[0]  # type: ignore[arg-type]


def test_the_first_sentence_with_controls() -> None:
    masked = told(FLAT, {**RISING, ("a", "o"): [85, 91, 92]})
    assert masked.startswith("Labels hide the teacher: in 2 of 3 pairs of teacher and objective the student")
    assert "c with o reaches 91.33 % with labels and 41.33 % without" in masked
    assert "In 1 of 3 pairs the seeds or test samples do not suffice to tell." in masked
    faithful = told(RISING, RISING)
    assert faithful.startswith(
        "Students are what their teachers made them: in all 3 pairs of teacher and objective the labels added"
    )
    unsure = told(RISING, {**RISING, ("a", "o"): [50, 81, 99]})
    assert unsure.startswith("No masking was shown, and 2 of 3 pairs of teacher and objective are faithful")
    one = {("a", "o"): [80, 81, 83]}
    assert told(one, one).startswith("Students are what their teachers made them: in the only pair")
    assert told(one, {("a", "o"): [50, 81, 99]}).startswith("Neither masking nor the lack of it was shown: in the only")
    assert told(RISING, {**RISING, ("a", "o"): [50, 81, 99], ("b", "o"): [30, 62, 70]}).startswith(
        "No masking was shown, and 1 of 3 pairs of teacher and objective is faithful"
    )


def test_pairs_that_read_no_labels_are_not_counted() -> None:
    """Three pairs of o, which reads labels, and as many of p, which does not; crd has no control."""
    names, low = "abc", [40, 41, 42]
    labelled = {**FLAT, **{(name, "p"): low for name in names}}
    free = {(name, objective): low for name in names for objective in "op"}
    made = evidence(TEACHERS, labelled, free, weights={"o": 0.5, "p": 0.0})
    assert (
        judge(made).summary[0].startswith("Labels hide the teacher: in 3 of 3 pairs whose objective reads labels the")
    )
    more = evidence(TEACHERS, {**labelled, ("a", "r"): low}, free, weights={"o": 0.5, "p": 0.0})
    assert "in 3 of 3 pairs whose objective reads labels and that could be judged" in judge(more).summary[0]


def test_the_first_sentence_without_controls() -> None:
    assert first(FLAT) == "Labels hide the teacher"
    assert "by the pattern: with o students end within 0.3 points" in told(FLAT)
    assert first(RISING) == "Without a label-free control nothing can be said of single students"
    fallen = {**TEACHERS, "c": [25, 25, 25]}
    uneven = {**FLAT, ("b", "o"): [60, 61, 62]}
    assert told(uneven, teachers=fallen).startswith("Teachers do not explain their students: c with o reaches 91.33 %")


def test_teachers_are_named_by_what_is_wrong_with_them() -> None:
    assert "No teacher is at the chance level of 25.00 % (three teachers)." in told(RISING)
    fallen = told(RISING, teachers={**TEACHERS, "c": [25, 25, 25], "d": [24, 25, 27]})
    assert "2 of 4 teachers are no better than chance: c (constant) and d (chance)." in fallen
    assert "1 of 3 teachers is no better than chance: c (constant)." in told(
        RISING, teachers={**TEACHERS, "c": [25, 25, 25]}
    )
    wide = told(RISING, teachers={**TEACHERS, "c": [90, 50, 90]})
    assert "no better than chance" not in wide
    assert "No teacher is at the chance level" not in wide
    assert "c cannot be told from the chance level of 25.00 %, although its mean is far above it." in wide
    made = evidence(TEACHERS, facts={"recalibrated": 0.95})
    assert "stale in a, b and c" in judge(made).summary[-1]


def test_whether_students_follow() -> None:
    assert "Students without labels follow their teachers: r = 1.00; with labels r = -0.87." in told(FLAT, RISING)
    assert "do not all follow their teachers: r = -0.87" in told(RISING, FLAT)


@pytest.mark.parametrize(
    ("alone", "says"),
    [(70, "gained together is 21.0 points over the better of the two"), (99, "No student is better than the better")],
    ids=["synergy", "none"],
)
def test_synergy(alone: float, says: str) -> None:
    labelled = {("b", "o"): [90, 91, 92]}
    made = evidence({"b": [60, 61, 62]}, labelled, weights={"o": 0.5}, alone={"0": Score(alone / 100)})
    assert says in " ".join(judge(made).summary).replace("\u00a0", " ")


def test_teachers_alone_and_students_alone() -> None:
    assert told(None).startswith("There are no students here: only teachers were looked at.")
    made = replace(evidence(TEACHERS, RISING), teachers=())
    assert "Nothing is known of the teachers themselves." in judge(made).summary


def test_other_serious_things_are_named() -> None:
    assert "Also serious" not in told(RISING, RISING)
    leaking = told(RISING, RISING, facts={"egress": frozenset({"labels"})})
    assert "Also serious: labels leave the clients." in leaking


def test_a_study_without_any_student_left() -> None:
    made = evidence(TEACHERS, RISING)
    lost = tuple(replace(one, score=None, missing="it broke off") for one in made.students)
    assert judge(replace(made, students=lost)).summary[0].startswith("No student was trained to the end")


def test_objectives_that_read_no_labels() -> None:
    made = evidence(TEACHERS, RISING, weights={"o": 0.0})
    assert judge(made).summary[0].startswith("None of these objectives gives labels any weight")
