"""The sentences must say the opposite when the results do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedstill.audit import Score, judge

from .grids import evidence

TEACHERS = {"a": [80, 81, 82], "b": [60, 61, 62], "c": [40, 41, 42]}
RISING = {("a", "o"): [80, 81, 83], ("b", "o"): [60, 62, 62], ("c", "o"): [40, 41, 43]}
FREE = {("a", "o"): [78, 80, 82], ("b", "o"): [59, 60, 62], ("c", "o"): [39, 41, 41]}  # without labels
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
    faithful = told(RISING, FREE)
    assert faithful.startswith(
        "Students are what their teachers made them: in all 3 pairs of teacher and objective the labels added"
    )
    unsure = told(RISING, {**RISING, ("a", "o"): [50, 81, 99]})
    assert unsure.startswith("No masking was shown, and 2 of 3 pairs of teacher and objective are faithful")
    one = {("a", "o"): [80, 81, 83]}
    assert told(one, {("a", "o"): [79, 81, 82]}).startswith(
        "Students are what their teachers made them: in the only pair"
    )
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
    assert "c cannot be told from the chance level of 25.00 %, although its mean is above it." in wide
    made = evidence(TEACHERS, facts={"recalibrated": 0.95})
    assert "stale in a, b and c" in judge(made).summary[-1]


def test_whether_students_follow() -> None:
    """Means of flat students are 91, 91, 91 1/3 and 91 over teachers 81, 61, 41 and 21: r = -10 / sqrt(2000 / 12)."""
    teachers, flat = {**TEACHERS, "d": [20, 21, 22]}, {**FLAT, ("d", "o"): [90, 91, 92]}
    rising = {**RISING, ("d", "o"): [20, 21, 22]}
    following = "Students without labels follow their teachers: r = 1.00; with labels r = -0.26."
    assert following in told(flat, rising, teachers)
    assert "do not all follow their teachers: r = -0.26" in told(rising, flat, teachers)
    assert "follow" not in told(FLAT, RISING)  # three teachers say nothing


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
    assert told(None).startswith(
        "There are no students here: three methods with up to three seeds. a is first with 81.00 %, clearly before the"
        " second. Seeds of one method vary by 1.0 point (standard deviation)."
    )
    made = replace(evidence(TEACHERS, RISING), teachers=())
    assert "Nothing is known of the teachers themselves." in judge(made).summary


def test_other_serious_things_are_named() -> None:
    assert "Also serious" not in told(RISING, FREE)
    leaking = told(RISING, FREE, facts={"egress": frozenset({"labels"})})
    assert "Also serious: labels leave the clients." in leaking


def test_a_study_without_any_student_left() -> None:
    made = evidence(TEACHERS, RISING)
    lost = tuple(replace(one, score=None, missing="it broke off") for one in made.students)
    assert judge(replace(made, students=lost)).summary[0].startswith("No student was trained to the end")


def test_objectives_that_read_no_labels() -> None:
    made = evidence(TEACHERS, RISING, weights={"o": 0.0})
    assert judge(made).summary[0].startswith("None of these objectives gives labels any weight")


def test_copied_controls_are_no_controls() -> None:
    """The label-free column is the labelled one: nine accuracies on 200 samples do not agree by chance."""
    copied = told(RISING, RISING)
    assert copied.startswith("The label-free controls cannot be trusted: the label-free controls are copies")
    assert "9 of 9 accuracies agree exactly" in copied
    assert "follow their teachers" not in copied


def test_leaking_controls_are_no_controls() -> None:
    """Students without labels at 91 % with every teacher, from a column or by a declared weight of 0."""
    leaking = {pair: [value - 2 for value in values] for pair, values in FLAT.items()}
    assert told(FLAT, leaking).startswith("The label-free controls cannot be trusted: label-free students are far")
    declared = judge(evidence(TEACHERS, FLAT, weights={"o": 0.0}))
    assert declared.summary[0].startswith("Labels hide the teacher, by the pattern")
    one = judge(evidence({"c": [40, 41, 42]}, {("c", "o"): [90, 91, 92]}, weights={"o": 0.0}))
    assert one.summary[0].startswith("The label-free controls cannot be trusted: label-free students are far above")
    assert "label-leak" in {finding.topic for finding in declared.findings}


def alone(*values: float) -> dict[str, Score]:
    return {str(seed): Score(value / 100) for seed, value in enumerate(values)}


def test_a_student_equal_to_the_labels_only_student() -> None:
    """By seed the same as labels alone: the controls are fine, and the teacher added nothing."""
    same = {pair: [85, 86, 88] for pair in RISING}
    free = {pair: [84, 84, 87] for pair in RISING}
    teachers = {"a": [84, 85, 86], "b": [83, 84, 86], "c": [85, 85, 87]}
    found = told(same, free, teachers=teachers, alone=alone(85, 86, 88), counts=(500,) * 4)
    assert found.startswith("These results cannot be taken as they stand:")
    assert "some students are copies of the labels-only student" in found


def test_a_classic_gain_is_a_success() -> None:
    """Labels alone 69, student 73, teacher 75.6; the gains are 3.8, 4.0 and 4.2 on 10,000 samples.

    Seeds give a variance of 0.2^2 / 3, the test set 0.4 (73 * 27 + 69 * 31) / 10,000.
    """
    made = evidence(
        {"t": [75.4, 75.6, 75.8]},
        {("t", "kd"): [72.8, 73, 73.2]},
        weights={"kd": 0.5},
        counts=(100,) * 100,
        alone=alone(69, 69, 69),
    )
    found = judge(made)
    assert found.summary[0].replace("\u00a0", " ") == (
        "Distillation helped: in the only pair of teacher and objective the student gains over the labels-only student"
        " (+4.0 points, 95 % interval +3.2 to +4.8), and its teacher is better than labels alone."
    )
    (pair,) = found.pairs
    assert pair.gain == pytest.approx(0.04)
    assert pair.gain_interval is not None
    assert (pair.gain_interval.low, pair.gain_interval.high) == pytest.approx((0.03171, 0.04829), abs=1e-5)
    assert {one.severity for one in found.findings} == {"warning"}  # there is no label-free control
    weak = replace(made, teachers=tuple(replace(one, score=Score(0.65)) for one in made.teachers))
    assert not judge(weak).summary[0].startswith("Distillation helped")


def test_reservations_come_before_a_good_word() -> None:
    made = evidence({"t": [80, 81, 82]}, {("t", "o"): [80, 81, 83]}, {("t", "o"): [78, 80, 82]}, weights={"o": 0.5})
    chosen = replace(made, chosen_on_test=("t with o, seed 0",))
    assert (
        judge(chosen)
        .summary[0]
        .startswith(
            "With reservations (models were chosen by their test accuracy): students are what their teachers made them"
        )
    )


def test_what_was_edited_or_is_stale_is_said_first() -> None:
    made = evidence(TEACHERS, RISING, FREE, weights={"o": 0.5})
    stale = replace(made, settings={"stale": "2 of 9 teachers (method fedavg 2, now 3)."})
    assert judge(stale).summary[0].startswith("Some results are stale: 2 of 9 teachers (")
    assert judge(stale).summary[1].startswith("These results cannot be taken as they stand: some results are stale")
    edited = replace(made, edited=("accuracy of a, seed 0: 0.9 here, 0.8 in its run",))
    assert judge(edited).summary[0].startswith("Figures are not those of the runs: accuracy of a, seed 0")
