"""Each finding on evidence that calls for it, and its silence on evidence that does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from fedstill.audit import Evidence, RoundFacts, Score, Student, Teacher, judge
from fedstill.audit.conditions import TOPICS, checked_conditions, met
from fedstill.audit.verdicts import Audit, Finding
from fedstill.core.errors import InputError

from .grids import evidence

GOOD = {"a": [60, 62, 64], "b": [50, 51, 52], "c": [40, 41, 42]}


def topics(made: Evidence) -> set[str]:
    return {finding.topic for finding in judge(made).findings}


def finding(made: Evidence, topic: str) -> Finding:
    (found,) = [one for one in judge(made).findings if one.topic == topic]
    return found


def grid(teachers: Sequence[str], **objectives: Sequence[float]) -> dict[tuple[str, str], Sequence[float]]:
    return {(teacher, objective): values for teacher in teachers for objective, values in objectives.items()}


def changed(made: Evidence, name: str, **changes: Any) -> Evidence:
    return replace(made, teachers=tuple(replace(one, **changes) if one.name == name else one for one in made.teachers))


def with_students(made: Evidence, **changes: Any) -> Evidence:
    return replace(made, students=tuple(replace(one, **changes) for one in made.students))


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    labelled = {("a", "o"): [61, 63, 65], ("b", "o"): [50, 52, 52], ("c", "o"): [41, 41, 42]}
    free = {("a", "o"): [60, 62, 64], ("b", "o"): [50, 51, 52], ("c", "o"): [40, 41, 42]}
    assert topics(evidence(GOOD, labelled, free, weights={"o": 0.5})) == set()


def rounds(*facts: tuple[bool, float, float]) -> tuple[RoundFacts, ...]:
    return tuple(
        RoundFacts(number, 0.3, finite, constant, negative) for number, (finite, constant, negative) in enumerate(facts)
    )


def test_a_teacher_that_is_not_finite_and_why() -> None:
    history = rounds((True, 0.4, 0.0), (False, 1.0, 3.0), (False, 1.0, 5.0))
    made = changed(evidence(GOOD), "b", score=None, rounds=history, buffers="as-parameters")
    found = finding(made, "non-finite-teacher")
    assert found.severity == "serious"
    assert "negative in 6 of 9 rounds" in found.evidence
    assert "as-parameters" in found.evidence
    assert "recalibrate" in found.advice
    found = finding(made, "non-finite-rounds")
    assert (found.severity, "6 of 9 rounds, first in round 1 of seed" in found.evidence) == ("serious", True)
    # Early trouble that passed is less, and without BatchNorm it has another cause.
    single = evidence({"t": [90]}, facts={"rounds": rounds((False, 1.0, 0.0))})
    assert finding(single, "non-finite-rounds").evidence.startswith("It has one round only, round 0.")
    passed = changed(evidence(GOOD), "b", rounds=rounds((False, 1.0, 0.0), (True, 0.5, 0.0)))
    found = finding(passed, "non-finite-rounds")
    assert found.severity == "warning"
    assert "BatchNorm" not in found.evidence
    assert "recalibrate" not in found.advice


def test_a_teacher_that_is_not_finite_in_one_seed_is_not_one_at_chance() -> None:
    """90 and 92 are fine, and the third seed counts for nothing: 1 point is gained by measuring anew, not 31."""
    made = evidence({"t": [90, 90, 92]}, facts={"recalibrated": 0.92})
    first, *others = made.teachers
    made = replace(made, teachers=(replace(first, score=None), *others))
    found = finding(made, "non-finite-teacher")
    assert found.title == "Teacher t does not give finite outputs in 1 of 3 seeds"
    assert "gains" not in found.evidence
    assert "Accuracy 91.00" in found.evidence
    verdict = judge(made)
    assert verdict.teachers[0].word == "non-finite"
    told = " ".join(verdict.summary)
    assert "t does not give finite outputs in some seeds." in told
    assert "chance" not in told
    assert "stale-teacher" not in topics(made)
    everywhere = replace(made, teachers=tuple(replace(one, score=None) for one in made.teachers))
    assert finding(everywhere, "non-finite-teacher").title == "Teacher t does not give finite outputs"
    assert "The only teacher is no better than chance: t (non-finite)." in " ".join(judge(everywhere).summary)


def test_single_class_answers_in_any_round() -> None:
    begins = changed(evidence(GOOD), "a", rounds=rounds((True, 1.0, 0.0), (True, 0.5, 0.0), (True, 0.4, 0.0)))
    ends = changed(evidence(GOOD), "a", rounds=rounds((True, 0.4, 0.0), (True, 0.5, 0.0), (True, 1.0, 0.0)))
    assert finding(begins, "constant-rounds").severity == "note"
    assert finding(ends, "constant-rounds").severity == "warning"
    assert "constant-rounds" not in topics(changed(evidence(GOOD), "a", rounds=rounds((True, 0.999, 0.0))))


def test_constant_and_chance_teachers() -> None:
    """Three classes of 30, 90 and 180: 30 % of one class, 60 % of the largest, which is chance."""
    counts = (30, 90, 180)
    made = evidence({"a": [80, 81, 82], "b": [30, 30, 30], "c": [60, 61, 62], "d": [60, 60, 60]}, counts=counts)
    found = {(one.topic, one.title.split()[1]) for one in judge(made).findings if one.topic.endswith("-teacher")}
    assert found == {("constant-teacher", "b"), ("chance-teacher", "c"), ("constant-teacher", "d")}


def test_a_stale_teacher() -> None:
    made = changed(evidence(GOOD), "a", recalibrated=0.80)
    assert "80.00" in finding(made, "stale-teacher").evidence
    assert "18.0\u00a0points" in finding(made, "stale-teacher").evidence
    assert "stale-teacher" not in topics(changed(evidence(GOOD), "a", recalibrated=0.66))
    # A collapsed teacher whose weights are fine is both, and its word is the worse one.
    fallen = changed(evidence({**GOOD, "c": [25, 25, 25]}), "c", recalibrated=0.7)
    assert {"stale-teacher", "constant-teacher"} <= topics(fallen)


def test_models_chosen_on_test_data() -> None:
    """Best 70 against last 60 and selected 64 is 10 and 6 points."""
    accuracies = {"last": 0.60, "best": 0.70, "selected": 0.64}
    made = changed(evidence(GOOD), "a", which="best", accuracies=accuracies)
    found = finding(made, "chosen-on-test-data")
    assert "10.0\u00a0points above the last" in found.evidence
    assert "6.0\u00a0points above the selected" in found.evidence
    assert "chosen-on-test-data" not in topics(changed(evidence(GOOD), "a", which="selected", accuracies=accuracies))
    students = evidence({"a": [60] * 3}, {("a", "o"): [70] * 3})
    reported = with_students(students, accuracies={"last": 0.60, "best": 0.70})
    assert "Students were chosen" in finding(reported, "chosen-on-test-data").title
    honest = with_students(students, accuracies={"last": 0.70, "best": 0.75})
    assert "chosen-on-test-data" not in topics(honest)


def test_what_leaves_the_clients() -> None:
    made = changed(evidence(GOOD), "b", egress=frozenset({"parameters", "labels", "features"}))
    assert finding(made, "egress-labels").severity == "serious"
    assert finding(made, "egress-features").severity == "warning"
    assert "egress-inputs" not in topics(made)
    assert "egress-inputs" in topics(changed(made, "a", egress=frozenset({"inputs"})))


def test_a_ranking_within_the_noise() -> None:
    """a leads b by 20, 8.75 and -15 in three seeds; c is far below both in each."""
    noisy = {"a": [80, 83.75, 63.75], "b": [60, 75, 78.75], "c": [30, 31, 32]}
    found = finding(evidence(noisy), "noise-teachers")
    assert "a leads b by 4.6\u00a0points" in found.evidence
    assert "Holm's correction for three comparisons of all teachers" in found.evidence
    assert "1 of 2 others cannot be told from it" in found.evidence
    assert "do not call these teachers equal" in found.advice
    alone = evidence({name: noisy[name] for name in "ab"})
    assert "other" not in finding(alone, "noise-teachers").evidence  # there is but one, and it was named
    assert "noise-teachers" not in topics(evidence(GOOD))
    # Noise among the others does not matter to who is first.
    assert "noise-teachers" not in topics(evidence({"a": [90, 91, 92], "b": [70, 71, 78], "c": [69, 74, 72]}))


def test_two_seeds_are_held_against_their_spread() -> None:
    assert "noise-teachers" in topics(evidence({"a": [60, 70], "b": [62, 64]}))
    assert "noise-teachers" not in topics(evidence({"a": [60, 62], "b": [40, 41]}))


def test_objectives_are_compared_over_the_same_teachers() -> None:
    apart = {("a", "o"): [70, 71, 72], ("a", "p"): [60, 61, 62.5]}
    assert "noise-objectives" not in topics(evidence({"a": [60] * 3}, apart))
    equal = {("a", "o"): [70, 71, 72], ("a", "p"): [72, 70, 70.5]}
    assert "noise-objectives" in topics(evidence({"a": [60] * 3}, equal))


def test_one_seed_has_no_noise_floor() -> None:
    made = evidence({"a": [60], "b": [40]}, grid("ab", o=[70], p=[80]))
    assert {"one-seed-teachers", "one-seed-objectives"} <= topics(made)


def test_terms_that_do_nothing() -> None:
    made = evidence({"a": [60] * 3}, {("a", "feature"): [60] * 3}, weights={"feature": 0.0})
    found = finding(with_students(made, terms={"soft-targets": 1.2, "hint": 0.0006}), "idle-term")
    assert "Hint is 0.050\u00a0% of soft-targets" in found.evidence
    assert "soft-targets alone" in found.evidence
    assert "idle-term" not in topics(with_students(made, terms={"soft-targets": 1.2, "hint": 0.02}))
    assert "idle-term" not in topics(with_students(made, terms={"soft-targets": 0.0, "hint": 0.0}))
    broken = with_students(made, terms={"soft-targets": 1.2, "hint": float("nan"), "far": float("inf")})
    assert "idle-term" not in topics(broken)


def test_label_free_students_that_know_too_much() -> None:
    """15 points above a teacher are far; a collapsed teacher makes it serious."""
    free = {("a", "dkd"): [80, 81, 82]}
    made = evidence({"a": [60, 61, 62]}, {("a", "dkd"): [82, 82, 82]}, free, weights={"dkd": 1.0})
    assert finding(made, "label-leak").severity == "warning"
    fallen = evidence({"a": [25, 25, 25]}, {("a", "dkd"): [82, 82, 82]}, free, weights={"dkd": 1.0})
    assert finding(fallen, "label-leak").severity == "serious"
    near = evidence({"a": [70, 71, 72]}, {("a", "dkd"): [82, 82, 82]}, free, weights={"dkd": 1.0})
    assert finding(near, "label-leak").severity == "warning"  # 9 points above: more than seeds and samples explain
    close = evidence({"a": [76, 77, 78]}, {("a", "dkd"): [82, 82, 82]}, free, weights={"dkd": 1.0})
    assert "label-leak" not in topics(close)


def test_students_that_labels_did_not_help() -> None:
    """Classes of 7, 33 and 60 of 100: 33 % and 7 % are single classes, whatever the largest is."""
    teachers = {"a": [70, 71, 72], "b": [80, 81, 82]}
    cells = {("a", "o"): [33, 33, 33], ("a", "p"): [7, 7, 7], ("b", "o"): [80, 81, 82], ("b", "p"): [80, 80, 82]}
    made = evidence(teachers, cells, weights={"o": 0.5, "p": 0.0}, counts=(7, 33, 60))
    found = finding(made, "stuck-student").evidence
    assert found.startswith("a with o: accuracy 33.00\u00a0%")
    assert "exactly one class's share in every seed" in found
    assert finding(made, "constant-student").evidence.startswith("a with p:")
    # Below chance without being one class exactly; and above chance.
    assert "exactly" not in finding(replace(made, class_counts=(7, 34, 59)), "stuck-student").evidence
    # 33 of 90 samples may be luck where a quarter is chance, 330 of 900 are not.
    assert "stuck-student" in topics(replace(made, class_counts=(20, 25, 25, 20)))
    assert "stuck-student" not in topics(replace(made, class_counts=(200, 250, 250, 200)))


def test_a_confidently_wrong_teacher_explains_its_student() -> None:
    """At chance in spite of its labels: a fault, unless the masking ceiling, 40 %, says that it had to be so."""
    made = evidence({"t": [2] * 3}, {("t", "vanilla"): [25, 26, 27]}, weights={"vanilla": 0.5}, counts=(25,) * 4)
    assert "stuck-student" in topics(made)
    explained = changed(made, "t", ceilings={"vanilla": 0.4})
    assert "stuck-student" not in topics(explained)
    found = finding(explained, "outvoted-labels")
    assert found.severity == "note"
    assert "at most 40.00\N{NO-BREAK SPACE}% of the labels can win, the student reaches 26.00" in found.evidence
    assert "outvoted-labels" not in topics(changed(made, "t", ceilings={"vanilla": 0.99}))


def test_one_seed_that_failed_is_not_a_stuck_student() -> None:
    cells = {("a", "o"): [92, 28, 93]}
    made = evidence({"a": [70, 71, 72]}, cells, weights={"o": 0.5})
    assert "stuck-student" not in topics(made)
    assert "from 28.0\u00a0% to 93.0\u00a0%, mean 71.0\u00a0%" in finding(made, "unstable").evidence
    assert "unstable" not in topics(evidence({"a": [70, 71, 72]}, {("a", "o"): [92, 80, 93]}, weights={"o": 0.5}))


def test_recovery_from_a_teacher_that_knows_nothing() -> None:
    teachers = {"a": [60, 61, 62], "b": [25, 25, 25]}
    cells = grid("ab", o=[90, 91, 92])
    made = evidence(teachers, cells, weights={"o": 0.5})
    assert "b with o reaches 91.00\u00a0%" in finding(made, "recovery").evidence
    assert "recovery" not in topics(evidence(teachers, cells, weights={"o": 0.0}))
    assert "recovery" not in topics(evidence({**teachers, "b": [50, 51, 52]}, cells, weights={"o": 0.5}))


def test_seeds_too_far_apart_are_no_collapse() -> None:
    """90, 50 and 90 are 76.7 -+ 57.4 (t interval): the word is chance, but such a mean is no chance level of 25 %.

    With a threshold of 55 points the mean is near again.
    """
    cells = grid("ab", o=[97, 98, 99])
    made = evidence({"a": [60, 61, 62], "b": [90, 50, 90]}, cells, weights={"o": 0.5})
    (one,) = [verdict for verdict in judge(made).teachers if verdict.teacher == "b"]
    assert one.word == "chance"
    assert one.why.startswith("Its seeds differ too much to tell, from 50.00\u00a0% to 90.00\u00a0%")
    assert "recovery" not in topics(made)
    found = finding(made, "chance-teacher")
    assert "cannot be told from the chance level" in found.title
    assert "recovery" in {one.topic for one in judge(evidence({"b": [25, 26, 28]}, cells, weights={"o": 0.5})).findings}
    (near,) = [verdict for verdict in judge(made, 0.55).teachers if verdict.teacher == "b"]
    assert near.why.startswith("Its interval reaches the chance level")


def test_few_test_samples_are_no_collapse_either() -> None:
    """Three of five right: Wilson's interval begins at 23 %, below the chance level of 40 %."""
    (one,) = judge(evidence({"a": [60]}, counts=(2, 1, 1, 1))).teachers
    assert (one.word, one.why.startswith("There are too few test samples to tell")) == ("chance", True)


def board(first: float) -> Evidence:
    """Thirteen students of a teacher at chance, one objective each, and as many of a sound one."""
    teachers = {"good": [60, 61, 62], "bad": [25, 25, 25]}
    cells = {("good", f"o{number}"): [80 + number / 10] * 3 for number in range(13)}
    cells |= {("bad", f"o{number}"): [first - number / 10] * 3 for number in range(13)}
    return evidence(teachers, cells, weights={f"o{number}": 0.5 for number in range(13)})


def test_a_leaderboard_of_collapsed_teachers() -> None:
    assert finding(board(95), "leaderboard").evidence.startswith("12 of the best 12 students")
    # 81.45 down by tenths against 81.2 down by tenths: 81.45, 81.35, 81.25 | 81.2, 81.15, ... alternate.
    assert finding(board(81.45), "leaderboard").evidence.startswith("7 of the best 12 students")
    assert "leaderboard" not in topics(board(50))
    wide = board(95)
    unsure = dict(zip("012", (0.9, 0.5, 0.9), strict=True))
    teachers = [replace(one, score=Score(unsure[one.seed])) if one.name == "bad" else one for one in wide.teachers]
    assert "leaderboard" not in topics(replace(wide, teachers=tuple(teachers)))


def test_equals_share_a_place_on_the_leaderboard() -> None:
    """Two at 99, then thirteen at 95: no twelve can be named without parting equals, so two are."""
    teachers = {"good": [60, 61, 62], "bad": [25, 25, 25]}
    cells = {("good", f"o{number}"): [95.0] * 3 for number in range(13)}
    cells |= {("bad", "o0"): [99.0] * 3, ("good", "best"): [99.0] * 3}
    made = evidence(teachers, cells, weights={"o0": 0.5})
    assert finding(made, "leaderboard").evidence.startswith("1 of the best 2 students")
    first = {**cells, ("good", "best"): [94.0] * 3}
    assert finding(evidence(teachers, first), "leaderboard").evidence.startswith("The best student had such a teacher")


def test_masked_pairs_are_counted_among_those_that_read_labels() -> None:
    """Two teachers; o reads labels and is masked twice, p and q read none: 2 of 2, and not 2 of 6."""
    high, low = [90, 91, 92], [40, 41, 42]
    labelled, free = grid("ab", o=high, p=low, q=low), grid("ab", o=low, p=low)
    made = evidence({"a": [60, 61, 62], "b": low}, labelled, free, weights={"o": 0.5, "p": 0.0, "q": 0.0})
    assert finding(made, "masked").evidence.startswith("In 2 of 2 pairs whose objective reads labels the labels added")
    partly = {**grid("ab", o=high), ("a", "r"): [60, 61, 62], ("b", "r"): low}
    bare = evidence({"a": [60, 61, 62], "b": low}, partly, grid("a", o=low))
    assert finding(bare, "masked").evidence.startswith("In the only pair that could be judged the labels added")
    # A control that shows masking is believed, whatever the objective is said to read.
    odd = evidence({"a": [60, 61, 62]}, grid("a", o=high, p=low), grid("a", o=low, p=low), weights={"o": 0.0, "p": 0.0})
    assert finding(odd, "masked").evidence.startswith("In the only pair whose objective reads labels")


def test_what_is_not_there() -> None:
    made = evidence({"a": [60] * 3}, {("a", "o"): [60] * 3}, counts=())
    assert {"no-control", "no-class-counts"} <= topics(made)
    lost = Student("a", "p", "0", False, None, missing="the disk was full")
    crd = Student("a", "crd", "0", True, None, missing="not assessable")
    labelled = Student("a", "crd", "0", False, made.students[0].score)
    more = replace(made, students=(*made.students, lost, crd, labelled))
    assert "the disk was full" in finding(more, "missing").evidence
    assert "crd+kl" in finding(more, "not-assessable").advice


def test_serious_things_come_first() -> None:
    severities = [one.severity for one in judge(everything()).findings]
    assert severities == sorted(severities, key=("serious", "warning", "note").index)


def everything() -> Evidence:
    """A study in which all is wrong that can be."""
    history = rounds((True, 1.0, 0.0), (False, 0.5, 2.0))
    teachers = {"a": [60, 80, 61], "b": [70, 61, 62], "c": [25, 25, 25], "d": [24, 26, 30], "e": [40, 41, 42]}
    labelled: Mapping[tuple[str, str], Sequence[float]] = {
        **grid("abcde", o=[92, 91, 93], q=[91, 93, 92]),
        ("a", "stuck"): [25, 25, 25],
        ("a", "wild"): [90, 30, 91],
        ("c", "flat"): [25, 25, 25],
        ("a", "bare"): [90, 91, 92],
        **{("c", f"x{number}"): [99, 99, 99] for number in range(3)},
    }
    weights = {"o": 0.5, "stuck": 0.5, "wild": 0.5, "flat": 0.0, "x0": 0.5}
    made = evidence(teachers, labelled, grid("abcde", o=[60, 61, 62]), weights=weights)
    lost = Student("a", "o", "9", False, None, missing="it broke off")
    crd = Student("a", "bare", "0", True, None, missing="not assessable")
    students = tuple(replace(one, terms={"big": 1.0, "small": 0.001}) for one in made.students)
    made = replace(made, students=(*students, lost, crd))
    made = changed(made, "e", score=None, rounds=history, buffers="as-parameters")
    made = changed(made, "b", which="best", recalibrated=0.9)
    return changed(made, "a", egress=frozenset({"inputs", "labels", "features"}))


def test_every_topic_can_be_failed_on_and_is_found_somewhere() -> None:
    single = evidence({"a": [60], "b": [40]}, grid("ab", o=[70], p=[80]), counts=())
    sure = changed(single, "a", ceilings={"o": 0.3})
    assert topics(everything()) | topics(single) | topics(sure) | forensic_topics() == set(TOPICS)


def forensic_topics() -> set[str]:
    """What tests/audit/planted has many of, once each, on 2000 samples."""
    counts = (500,) * 4
    near = {"a": [60, 61, 62], "b": [61, 60, 62], "c": [62, 62, 61]}
    cells = {("a", "o"): [70, 71, 73], ("b", "o"): [70, 72, 71], ("c", "o"): [74, 73, 71]}
    twice = {**cells, **{(name, "p"): cells[name, "o"] for name in "abc"}}
    copied = evidence(near, twice, cells, counts=counts, alone={seed: Score(0.714) for seed in "012"})
    low = {"a": [5, 6, 7], "b": [80, 80, 80], "c": [70, 71, 72], "d": [72, 71, 72]}
    taught = {("a", "o"): [6, 7, 8], ("b", "o"): [72, 74, 73], ("c", "o"): [75, 76, 77], ("d", "o"): [73, 74, 74]}
    harmed = evidence(low, taught, counts=counts, alone={str(seed): Score(0.8) for seed in range(3)})
    fixed = evidence({"b": [80] * 3, "c": [70] * 3}, {("b", "o"): [72, 74, 73]}, counts=counts)
    repeated = evidence(near, {pair: values[:1] * 3 for pair, values in twice.items()}, counts=counts)
    odd = Teacher("b", "0", Score(0.611, unit=0.001))
    impossible = replace(evidence({"a": [60]}, counts=(20, 20)), edited=("a",), settings={"stale": "1 of 2 runs."})
    impossible = replace(impossible, teachers=(*impossible.teachers, odd))
    itself = evidence(low, {(name, "o"): values for name, values in low.items()}, counts=counts)
    level = evidence({"b": [60], "c": [70], "d": [80]}, {("b", "o"): [57], ("c", "o"): [56], ("d", "o"): [57]})
    return set().union(*map(topics, (copied, harmed, fixed, repeated, impossible, itself, level)))


def verdict(*severities: str) -> Audit:
    made = judge(evidence(GOOD))
    return replace(made, findings=tuple(Finding(one, f"t{n}", "", "", "") for n, one in enumerate(severities)))  # type: ignore[arg-type]


def test_conditions() -> None:
    assert met(verdict("warning"), ["serious", "warning", "note"]) == ["warning", "note"]
    assert met(verdict("serious"), ["warning"]) == ["warning"]
    assert met(verdict("note"), ["warning", "masked"]) == []
    assert met(judge(everything()), checked_conditions(["masked", "masked"])) == ["masked"]
    with pytest.raises(InputError, match="did you mean 'masked'"):
        checked_conditions(["maskd"])


def test_teachers_of_whom_nothing_is_known() -> None:
    made = evidence({}, {("x", "o"): [90, 91, 92]}, {("x", "o"): [40, 41, 42]})
    made = replace(made, teachers=(Teacher("y", "0", None),))
    found = judge(made)
    assert [pair.word for pair in found.pairs] == ["masked"]
    assert found.pairs[0].recovery is None
