"""Every word that an audit has, given for the reason that it should be."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import fedstill.audit
from fedstill.audit import Evidence, Score, Student, Teacher, audit, judge
from fedstill.audit.objectives import pattern
from fedstill.audit.verdicts import PairVerdict
from fedstill.core.errors import InputError

from .grids import evidence

PAIR = ("t", "vanilla")


def only(made: Evidence, delta: float = 0.05) -> PairVerdict:
    (pair,) = judge(made, delta).pairs
    return pair


def test_masked_faithful_and_inconclusive_over_seeds() -> None:
    """Differences 50, 52, 54: 52 -+ 4.30265 * 2 / sqrt(3) = 47.03 to 56.97, where the test set is not known."""
    pair = only(evidence({"t": [30, 30, 30]}, {PAIR: [90, 92, 94]}, {PAIR: [40, 40, 40]}, counts=()))
    assert (pair.word, pair.seeds) == ("masked", 3)
    assert (pair.labelled, pair.free, pair.masking) == pytest.approx((0.92, 0.40, 0.52))
    assert pair.interval is not None
    assert (pair.interval.how, pair.interval.note) == (
        "seeds",
        "over seeds alone: the number of test samples is not known",
    )
    assert (pair.interval.low, pair.interval.high) == pytest.approx((0.4703, 0.5697), abs=1e-4)
    near, far = {PAIR: [90, 91, 94]}, {PAIR: [50, 91, 94]}
    for counts in ((), (500,) * 4):
        assert only(evidence({"t": [30] * 3}, {PAIR: [90, 92, 94]}, near, counts=counts)).word == "faithful"
        assert only(evidence({"t": [30] * 3}, {PAIR: [90, 92, 94]}, far, counts=counts)).word == "inconclusive"


def test_an_interval_includes_the_test_set() -> None:
    """Equal differences of 2 points: nothing varies with seeds, and 80 samples still do not show that it is below 5.

    0.4 * 2 * 0.9 * 0.1, or about 0.072, over 82 samples and one over 82 squared: a standard error of 3.2 points.
    """
    made = {PAIR: [91, 91, 91]}, {PAIR: [89, 89, 89]}
    small = only(evidence({"t": [90] * 3}, *made, counts=(20,) * 4))
    assert small.interval is not None
    assert (small.word, small.interval.how) == ("inconclusive", "both")
    assert small.interval.error == pytest.approx(((0.4 * (0.91 * 0.09 + 0.89 * 0.11) + 1 / 82) / 82) ** 0.5)
    assert only(evidence({"t": [90] * 3}, *made, counts=(500,) * 4)).word == "faithful"


def test_the_threshold_decides() -> None:
    """Differences 7, 8, 9: 8 -+ 2.48, so above 5 and not above 6; at or below 10.5, and not 10."""
    made = evidence({"t": [30] * 3}, {PAIR: [57, 58, 59]}, {PAIR: [50, 50, 50]}, counts=())
    assert [only(made, delta).word for delta in (0.05, 0.06, 0.10, 0.105)] == [
        "masked",
        "inconclusive",
        "inconclusive",
        "faithful",
    ]


def test_a_student_below_its_control_is_faithful() -> None:
    assert only(evidence({"t": [90] * 3}, {PAIR: [50, 51, 52]}, {PAIR: [90, 90, 90]})).word == "faithful"


def answers(right: int, of: int = 100, first: int = 0) -> Score:
    correct = tuple(first <= number < first + right for number in range(of))
    return Score(sum(correct) / of, correct)


def one_seed(labelled: Score, free: Score, counts: tuple[int, ...] = ()) -> Evidence:
    students = (Student(*PAIR, "0", False, labelled), Student(*PAIR, "0", True, free))
    return Evidence("one", "", (Teacher("t", "0", Score(0.4)),), students, class_counts=counts)


def test_one_seed_is_judged_over_test_samples() -> None:
    """Of 100 samples 60 are gained and none lost: 60/102 -+ 1.96 * sqrt((61/102 - (60/102)^2) / 102)."""
    pair = only(one_seed(answers(90), answers(30)))
    assert pair.interval is not None
    assert (pair.word, pair.interval.how) == ("masked", "samples")
    assert (pair.interval.low, pair.interval.high) == pytest.approx((0.4908, 0.6857), abs=1e-4)
    assert only(one_seed(answers(90), answers(90))).word == "faithful"
    # As many right as above, but other samples: the pairing matters.
    gained = one_seed(answers(60), answers(52))
    exchanged = one_seed(answers(60), answers(52, first=48))
    assert only(gained, 0.02).word == "masked"
    assert only(exchanged, 0.02).word == "inconclusive"


def test_two_seeds_are_judged_over_test_samples_too() -> None:
    made = one_seed(answers(90), answers(30))
    more = replace(
        made,
        students=(*made.students, *(replace(one, seed="1") for one in made.students)),
        teachers=(*made.teachers, replace(made.teachers[0], seed="1")),
    )
    first, second = only(made).interval, only(more).interval
    assert first is not None
    assert second is not None
    assert second.how == "both"
    # The same answers twice are no more evidence than once.
    assert (second.low, second.high) == pytest.approx((first.low, first.high), abs=0.002)


def test_without_answers_the_widest_interval_is_taken() -> None:
    made = one_seed(Score(0.9), Score(0.3), counts=(60, 60))
    pair = only(made)
    assert pair.interval is not None
    assert (pair.word, pair.interval.how) == ("masked", "samples")
    assert "not known" in pair.interval.note
    assert only(one_seed(Score(0.9), Score(0.82), counts=(60, 60))).word == "inconclusive"


@pytest.mark.parametrize("counts", [(), (1, 1)], ids=["no-counts", "equal-classes"])
def test_nothing_is_masked_without_an_interval(counts: tuple[int, ...]) -> None:
    pair = only(one_seed(Score(0.99), Score(0.01), counts))
    assert pair.interval is not None
    assert (pair.word, pair.interval.how, pair.masking) == ("inconclusive", "none", pytest.approx(0.98))


def test_pairs_that_cannot_be_judged() -> None:
    made = evidence({"t": [30] * 3}, {("t", "a"): [90] * 3, ("t", "crd"): [90] * 3}, {("t", "b"): [90] * 3})
    lost = Student("t", "crd", "0", True, None, missing="not assessable")
    broken = Student("t", "d", "0", False, None, missing="it was refused")
    found = {pair.objective: pair for pair in judge(replace(made, students=(*made.students, lost, broken))).pairs}
    assert {name: pair.word for name, pair in found.items()} == {
        "a": "no control",
        "b": "no student",
        "crd": "not assessable",
        "d": "no student",
    }
    assert [pair.masking for pair in found.values()] == [None] * 4


def test_controls_of_other_seeds_are_no_controls() -> None:
    made = one_seed(answers(90), answers(30))
    moved = replace(made, students=(made.students[0], replace(made.students[1], seed="9")))
    assert (only(moved).word, only(moved).interval) == ("inconclusive", None)


def test_an_objective_without_weight_on_labels_is_its_own_control() -> None:
    made = evidence({"t": [30] * 3}, {("t", "feature"): [31, 32, 60]}, weights={"feature": 0.0})
    pair = only(made)
    assert (pair.word, pair.masking, pair.free) == ("faithful", 0.0, pair.labelled)
    assert only(evidence({"t": [30] * 3}, {("t", "feature"): [31, 32, 60]})).word == "no control"


def test_synergy_and_recovery() -> None:
    """Student 80, teacher 60, labels alone 75: synergy 5, recovery 20; a better teacher turns the sign."""
    made = evidence({"t": [60] * 3}, {PAIR: [80] * 3}, alone={"0": Score(0.74), "1": Score(0.76)})
    pair = only(made)
    assert (pair.synergy, pair.recovery) == pytest.approx((0.05, 0.20))
    pair = only(evidence({"t": [90] * 3}, {PAIR: [80] * 3}, alone={"0": Score(0.75)}))
    assert (pair.synergy, pair.recovery) == pytest.approx((-0.10, -0.10))
    assert only(evidence({"t": [60] * 3}, {PAIR: [80] * 3})).synergy is None


def test_synergy_is_against_a_students_own_labels_only_student() -> None:
    """Student 80, teacher 60. Own 70, 72 and a shared 77 for the third seed: 73, synergy 7; all shared: 80 - 77."""
    made = evidence({"t": [60] * 3}, {PAIR: [80] * 3}, alone={seed: Score(0.77) for seed in "012"})
    assert only(made).synergy == pytest.approx(0.03)
    own = (Score(0.70), Score(0.72), None)
    students = tuple(replace(one, alone=score) for one, score in zip(made.students, own, strict=True))
    assert only(replace(made, students=students)).synergy == pytest.approx(0.07)
    assert only(replace(made, students=students, alone={})).synergy == pytest.approx(0.09)
    assert only(replace(made, alone={"9": Score(0.75)})).synergy == pytest.approx(0.05)  # of another seed


def test_ceilings_are_means_over_seeds() -> None:
    made = evidence({"t": [60] * 2}, {PAIR: [80] * 2}, facts={"ceilings": {"vanilla": 0.7}})
    made = replace(made, teachers=(made.teachers[0], replace(made.teachers[1], ceilings={"vanilla": 0.5})))
    assert only(made).ceiling == pytest.approx(0.6)
    assert only(evidence({"t": [60]}, {PAIR: [80]})).ceiling is None


def teacher_word(made: Evidence) -> str:
    (one,) = judge(made).teachers
    return one.word


def test_words_for_teachers() -> None:
    """With 50 samples in each of four classes, chance is 25 %."""
    assert teacher_word(evidence({"t": [60, 61, 62]})) == "sound"
    assert teacher_word(evidence({"t": [25, 25, 31]})) == "chance"
    assert teacher_word(evidence({"t": [25, 25, 25]})) == "constant"
    assert teacher_word(evidence({"t": [25]}, facts={"constant": 1.0})) == "constant"
    assert teacher_word(evidence({"t": [25, 25, 25]}, facts={"constant": 0.5})) == "chance"
    assert teacher_word(evidence({"t": [26, 26, 26]}, facts={"constant": 1.0})) == "constant"
    assert teacher_word(evidence({"t": [60, 61, 62]}, facts={"recalibrated": 0.70})) == "stale"
    assert teacher_word(evidence({"t": [60, 61, 62]}, facts={"recalibrated": 0.65})) == "sound"
    made = evidence({"t": [60, 61, 62]})
    broken = (*made.teachers[:2], replace(made.teachers[2], score=None))
    assert teacher_word(replace(made, teachers=broken)) == "non-finite"


def test_one_class_need_not_be_the_same_in_every_seed() -> None:
    """Classes of 20, 30 and 50: always one, but another in each seed, measured or read off a table."""
    assert teacher_word(evidence({"t": [20, 30, 20]}, counts=(20, 30, 50))) == "constant"
    assert teacher_word(evidence({"t": [20, 30, 20]}, counts=(20, 30, 50), facts={"constant": 1.0})) == "constant"
    assert teacher_word(evidence({"t": [20, 31, 20]}, counts=(20, 30, 50))) == "chance"
    (verdict,) = judge(evidence({"t": [20, 31, 20]}, counts=(20, 30, 50))).teachers
    assert "below 38.00\u00a0%, which guesses in proportion to the classes would score" in verdict.why


def test_below_chance_by_the_teachers_own_answers() -> None:
    """Classes of 900 and 100: answers of 85 % and 15 % score 0.85 * 0.9 + 0.15 * 0.1 = 78 % at random; 40 % is less."""
    made = evidence({"t": [40, 41, 39]}, counts=(900, 100))
    assert teacher_word(made) == "chance"
    known = replace(made, teachers=tuple(replace(one, guessing=0.78) for one in made.teachers))
    assert teacher_word(known) == "below-chance"
    some = replace(made, teachers=tuple(replace(one, guessing=0.35) for one in made.teachers))
    assert teacher_word(some) == "chance"


def test_two_scores_of_one_name_are_refused() -> None:
    """Both label-free controls are one computation; whatever else has two scores is two students."""
    made = evidence({"t": [60]}, {PAIR: [80]}, {PAIR: [40]})
    again = replace(made, students=(*made.students, made.students[1]))
    assert judge(again).pairs == judge(made).pairs
    absent = replace(made.students[1], score=None, missing="no luck")
    assert judge(replace(made, students=(absent, *made.students))).pairs == judge(made).pairs
    other = replace(made.students[1], score=Score(0.41))
    with pytest.raises(InputError, match=r"two students of .*, seed 0, without labels, that differ"):
        judge(replace(made, students=(*made.students, other)))


def test_one_teacher_of_one_seed_against_chance() -> None:
    """31 % of 200 samples: Wilson's interval reaches down to 25 %, that of 33 % does not."""
    assert teacher_word(evidence({"t": [31]}, counts=(50,) * 4)) == "chance"
    assert teacher_word(evidence({"t": [33]}, counts=(50,) * 4)) == "sound"


def test_chance_is_the_largest_class() -> None:
    assert judge(evidence({"t": [60]}, counts=(10, 60, 30))).chance == pytest.approx(0.6)
    made = judge(evidence({"t": [60]}, counts=()))
    assert made.chance is None
    assert "unknown" in made.teachers[0].why


def test_a_class_share_is_met_to_the_digits_given() -> None:
    """86 of 2468 is 3.4846 %; a table that says 3.48 is to be believed, one that says 3.4800 is not."""
    made = evidence({"t": [3.48] * 3}, counts=(86, 2382))
    assert teacher_word(replace(made, precision=5e-5)) == "constant"
    assert teacher_word(replace(made, precision=5e-7)) != "constant"


LADDER = {"a": 0.2, "b": 0.4, "c": 0.6, "d": 0.8}


@pytest.mark.parametrize(
    ("reached", "word"),
    [
        ((0.90, 0.91, 0.93, 0.95), "masked by pattern"),
        ((0.90, 0.91, 0.93, 0.96), "unclear"),
        ((0.20, 0.45, 0.60, 0.82), "tracks its teacher"),
        ((0.50, 0.51, 0.52, 0.53), "unclear"),  # as bad as their teachers are on average
        ((0.80, 0.20, 0.60, 0.10), "unclear"),
    ],
    ids=["flat", "not-quite-flat", "rising", "flat-and-low", "wild"],
)
def test_patterns(reached: tuple[float, ...], word: str) -> None:
    assert pattern(LADDER, dict(zip(LADDER, reached, strict=True)), 0.05) == word


def test_a_pattern_needs_teachers_that_differ() -> None:
    """Teachers within 15 points say nothing of masking, whatever their students."""
    near = {"a": 0.20, "b": 0.25, "c": 0.35}
    assert pattern(near, dict.fromkeys(near, 0.9), 0.05) == "unclear"
    assert pattern({**near, "c": 0.36}, dict.fromkeys(near, 0.9), 0.05) == "masked by pattern"
    assert pattern({"a": 0.2}, {"a": 0.9}, 0.05) == "unclear"


def test_figures_of_an_objective() -> None:
    """Means of teachers 10, 20, 30 and 40 and their students: r by hand, over seed means, not over seeds."""
    teachers = {"a": [5, 15], "b": [20, 20], "c": [30, 30], "d": [40, 40]}
    labelled = {("a", "o"): [50, 52], ("b", "o"): [56, 56], ("c", "o"): [55, 55], ("d", "o"): [54, 54]}
    free = {("a", "o"): [10, 10], ("b", "o"): [20, 20], ("c", "o"): [30, 30], ("d", "o"): [40, 40]}
    (one,) = judge(evidence(teachers, labelled, free, weights={"o": 0.5})).objectives
    # Teachers -15, -5, 5, 15; students -3, 2, 1, 0 about 54: 40 / sqrt(500 * 14).
    assert one.correlation == pytest.approx(40 / (500 * 14) ** 0.5)
    assert one.correlation_interval == pytest.approx((-0.8936, 0.9861), abs=1e-4)  # tanh(atanh(0.478) -+ 1.96)
    assert (one.mean, one.range, one.hard_label_weight) == (pytest.approx(0.54), pytest.approx(0.05), 0.5)
    assert (one.free_correlation, one.free_range) == (pytest.approx(1.0), pytest.approx(0.3))


def test_r_is_given_only_where_it_means_something() -> None:
    """Three teachers lie near a line too often, and teachers within the threshold say nothing."""
    three = {name: [value] * 3 for name, value in {"a": 10, "b": 20, "c": 30}.items()}
    near = {name: [value] * 3 for name, value in {"a": 60, "b": 61, "c": 62, "d": 64}.items()}
    for teachers in (three, near):
        students = {(name, "o"): values for name, values in teachers.items()}
        (one,) = judge(evidence(teachers, students)).objectives
        assert (one.correlation, one.correlation_interval, one.pattern) == (None, None, "unclear")


def test_the_room_can_be_called() -> None:
    made = evidence({"t": [30] * 3}, {PAIR: [90, 92, 94]}, {PAIR: [40, 40, 40]})
    assert fedstill.audit(made).pairs == audit(made).pairs  # type: ignore[operator]


def test_an_audit_as_json() -> None:
    made = one_seed(answers(90), answers(30), counts=(50, 50))
    made = replace(made, teachers=(replace(made.teachers[0], egress=frozenset({"labels", "features"})),))
    content = json.loads(json.dumps(judge(made).to_dict(), allow_nan=False))
    assert content["pairs"][0]["word"] == "masked"
    assert content["evidence"]["teachers"][0]["egress"] == ["features", "labels"]
    assert content["evidence"]["students"][0]["score"] == {"accuracy": 0.9}
    assert content["delta"] == 0.05


def test_what_cannot_be_audited() -> None:
    with pytest.raises(InputError, match="nothing to audit"):
        judge(Evidence("empty", "", (), ()))
    with pytest.raises(InputError, match="between 0 and 100 points"):
        judge(evidence({"t": [60]}), 0.0)


@pytest.mark.parametrize("wrong", [1.5, -0.1, float("nan"), float("inf")], ids=["high", "low", "nan", "inf"])
@pytest.mark.parametrize("where", ["teacher", "labelled", "free", "alone", "own", "recalibrated", "ceiling"])
def test_accuracies_that_cannot_be_are_refused_in_a_sentence(where: str, wrong: float) -> None:
    made = one_seed(answers(90), answers(30), counts=(50, 50))
    (teacher,), (labelled, free) = made.teachers, made.students
    score = Score(wrong)
    damaged = {
        "teacher": replace(made, teachers=(replace(teacher, score=score),)),
        "labelled": replace(made, students=(replace(labelled, score=score), free)),
        "free": replace(made, students=(labelled, replace(free, score=score))),
        "alone": replace(made, alone={"0": score}),
        "own": replace(made, students=(replace(labelled, alone=score), free)),
        "recalibrated": replace(made, teachers=(replace(teacher, recalibrated=wrong),)),
        "ceiling": replace(made, teachers=(replace(teacher, ceilings={"vanilla": wrong}),)),
    }
    with pytest.raises(InputError, match=r"one is damaged: the .* is \S+, and not from 0 to 1"):
        judge(damaged[where])


@pytest.mark.parametrize(
    ("counts", "says"), [((0, 0), "test set is empty"), ((5, -3), "a class has -3 test samples")], ids=["none", "minus"]
)
def test_class_counts_that_cannot_be(counts: tuple[int, ...], says: str) -> None:
    with pytest.raises(InputError, match=says):
        judge(one_seed(answers(90), answers(30), counts=counts))
