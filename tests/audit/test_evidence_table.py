"""Tables made elsewhere: what is read from them, and one sentence for everything that is wrong with one."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from fedstill.audit import Audit, Evidence, Score, audit, judge, read_table
from fedstill.audit.counts import read_counts
from fedstill.audit.evidence_table import read_rows
from fedstill.audit.verdicts import NOT_ASSESSABLE
from fedstill.core.errors import InputError
from fedstill.distillation import objectives

HEAD = "teacher,objective,seed,accuracy"
Read = Callable[..., Evidence]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def make(text: str | bytes, **options: object) -> Evidence:
        path = tmp_path / "table.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_table(path, **options)  # type: ignore[arg-type]

    return make


def test_the_least_that_is_needed(read: Read) -> None:
    made = read(f"{HEAD}\nfedavg,vanilla,7,91.25\nfedavg,vanilla,42,90\n")
    assert made.teachers == ()
    assert [(one.teacher, one.objective, one.seed, one.free) for one in made.students] == [
        ("fedavg", "vanilla", "7", False),
        ("fedavg", "vanilla", "42", False),
    ]
    assert [one.score.accuracy for one in made.students if one.score] == pytest.approx([0.9125, 0.90])
    assert made.precision == pytest.approx(0.00005)
    assert (made.name, made.settings["accuracies"]) == ("table", "percent")


def test_everything_that_can_be_given(read: Read) -> None:
    made = read(
        "seed, Accuracy, teacher, objective, teacher_accuracy, free_accuracy, labels_only_accuracy,"
        " hard_label_weight, epochs\n"
        "7, 0.91, a, vanilla, 0.33, 0.35, 0.95, 0.5, 200\n"
        "7, 0.92, a, crd, 0.33, , 0.95, 0.5, 200\n"
        "7, , b, vanilla, non-finite, , 0.95, , 200\n",
        class_counts=(10, 10),
    )
    by_name = {one.name: one for one in made.teachers}
    assert by_name["b"].score is None
    assert by_name["a"].score is not None
    assert by_name["a"].score.accuracy == 0.33
    assert {seed: score.accuracy for seed, score in made.alone.items()} == {"7": 0.95}
    assert [one.hard_label_weight for one in made.students if not one.free] == [0.5, 0.5, 0.5]
    assert made.settings == {"table": "table.csv", "accuracies": "share", "columns left alone": "epochs"}
    words = {(pair.teacher, pair.objective): pair.word for pair in judge(made).pairs}
    assert words == {("a", "vanilla"): "masked", ("a", "crd"): "not assessable", ("b", "vanilla"): "no student"}


def test_teachers_alone(read: Read) -> None:
    made = read("teacher,seed,teacher_accuracy\na,1,60\na,2,61\nb,1,25\n", class_counts=(1, 1, 1, 1))
    assert [(one.name, one.seed) for one in made.teachers] == [("a", "1"), ("a", "2"), ("b", "1")]
    assert [one.word for one in judge(made).teachers] == ["sound", "constant"]
    with pytest.raises(InputError, match="line 2: Accuracy is 120, and cannot be above 100"):
        read("Method,Seed,Accuracy\na,1,120\n")


def test_percent_or_share(read: Read) -> None:
    def accuracies(text: str, **unit: str) -> list[float]:
        return [one.score.accuracy for one in read(text, **unit).students if one.score]

    assert accuracies(f"{HEAD}\na,o,1,0.5\na,o,2,1\n") == [0.5, 1.0]
    assert accuracies(f"{HEAD}\na,o,1,0.5\na,o,2,1.5\n") == [0.005, 0.015]
    assert accuracies(f"{HEAD}\na,o,1,0.5\n", unit="percent") == [0.005]
    assert accuracies(f"{HEAD}\na,o,1,50%\n") == [0.5]


def test_a_percent_sign_says_percent(read: Read) -> None:
    """Without a value above 1, too: 0.9 % of 100 is no share of 90 %."""

    def accuracies(text: str, **unit: str) -> list[float]:
        return [one.score.accuracy for one in read(text, **unit).students if one.score]

    assert accuracies(f"{HEAD}\na,o,1,0.9%\n") == pytest.approx([0.009])
    assert accuracies(f"{HEAD}\na,o,1,0.9 %\na,o,2,0.5\n") == pytest.approx([0.009, 0.005])
    made = read(f"{HEAD},teacher_accuracy\na,o,1,0.9,0.50 %\n")
    assert made.students[0].score is not None
    assert made.students[0].score.accuracy == pytest.approx(0.009)
    assert made.precision == pytest.approx(0.00005)
    for head in ("accuracy (%)", "accuracy %", "accuracy_[%]", "Accuracy(%)"):
        assert accuracies(f"teacher,objective,seed,{head}\na,o,1,0.9\n") == pytest.approx([0.009])
    with pytest.raises(InputError, match="with a percent sign, so they cannot be shares"):
        read(f"{HEAD}\na,o,1,0.9%\n", unit="share")
    with pytest.raises(InputError, match="hard_label_weight is '50%', which is not a number"):
        read(f"{HEAD},hard_label_weight\na,o,1,50,50%\n")


def test_other_separators_and_marks(read: Read) -> None:
    expected = read(f"{HEAD}\na,o,1,50\n").students
    assert read(f"\ufeff{HEAD}\r\na,o,1,50\r\n\r\n").students == expected
    assert read(f"{HEAD}\na,o,1,50\n".replace(",", ";")).students == expected
    assert read(f"{HEAD}\na,o,1,50\n".replace(",", "\t")).students == expected
    assert read(f'{HEAD}\n"a","o",1,50\n').students == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        (f"{HEAD}\n", "no rows below its header"),
        ("teacher,objective,accuracy\na,o,50\n", "lacks the column 'seed'"),
        ("teacher,objective,seed,accuracy,accuracy\na,o,1,50,50\n", "column 'accuracy' twice"),
        (f"{HEAD},teacher_acuracy\na,o,1,50,40\n", "did you mean 'teacher_accuracy'?"),
        (f"{HEAD}\na,o,1,fifty\n", "line 2: accuracy is 'fifty', which is not a number"),
        (f"{HEAD}\na,o,1,50\na,o,2,nan\n", "line 3: accuracy is 'nan'; leave the field empty"),
        (f"{HEAD}\na,o,1,inf\n", "line 2: accuracy is 'inf'"),
        (f"{HEAD}\na,o,1,-1\n", "cannot be below 0"),
        (f"{HEAD}\na,o,1,50\na,o,2,101\n", "line 3: accuracy is 101, and cannot be above 100"),
        (f"{HEAD}\na,o,1,50\nb,o,1,50\na,o,1,51\n", "line 4: a, o, seed 1 stands in line 2 already"),
        (f"{HEAD}\na,o,1\n", "line 2: 3 fields, but the header has 4"),
        (f"{HEAD}\n,o,1,50\n", "line 2: the teacher is not named"),
        (f"{HEAD},teacher_accuracy\na,o,1,50,40\na,p,1,50,41\n", "line 3: teacher_accuracy is 41, but line 2 says 40"),
        (f"{HEAD},teacher_accuracy\na,o,1,50,40\na,p,1,50,non-finite\n", "non-finite here, and has an accuracy"),
        (f"{HEAD},labels_only_accuracy\na,o,1,50,90\nb,o,1,50,91\n", "for the same seed"),
        (f"{HEAD},hard_label_weight\na,o,1,50,0\nb,o,1,50,0.5\n", "for the same objective"),
        (b"teacher,\xff\xfe\n", "not text in UTF-8"),
    ],
    ids=lambda value: None if isinstance(value, bytes) or "\n" in value or not value else value[:40],
)
def test_what_is_wrong_with_a_table(read: Read, text: str | bytes, says: str) -> None:
    with pytest.raises(InputError) as caught:
        read(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_shares_beside_percentages_are_refused(read: Read) -> None:
    mixed = f"{HEAD},teacher_accuracy\na,o,1,91.2,0.906\nb,o,1,90.0,0.5\n"
    with pytest.raises(
        InputError, match=r"accuracy up to 91\.2, as percentages are, and teacher_accuracy up to 0\.906, as"
    ):
        read(mixed)
    assert read(mixed, unit="percent").teachers[0].score == Score(0.906 / 100)
    nothing_right = f"{HEAD},teacher_accuracy\na,o,1,91.2,0.0\n"
    assert read(nothing_right).teachers[0].score == Score(0.0)


def test_rows_of_the_other_unit_are_refused_by_line(read: Read) -> None:
    with pytest.raises(
        InputError, match=r"shares among percentages: line 3 with 0\.912, where others have 88 to 91\.2"
    ):
        read(f"{HEAD}\na,o,1,91.2\na,o,2,0.912\nb,o,1,88\n")
    with pytest.raises(InputError, match=r"percentages among shares: lines 2 and 4 with 91\.2 and 88, where"):
        read(f"{HEAD}\na,o,1,91.2\na,o,2,0.912\nb,o,1,88\nb,o,2,0.88\nc,o,1,0.5\n")
    assert read(f"{HEAD}\na,o,1,91.2\na,o,2,0.9\n", unit="percent").students[1].score == Score(0.9 / 100)
    # With a hundred classes 0.9 % is what a collapsed model scores; with ten it is not.
    assert read(f"{HEAD}\na,o,1,61.2\na,o,2,0.9\n", class_counts=(10,) * 100).students[1].score == Score(0.9 / 100)
    with pytest.raises(InputError, match="line 3 with 0"):
        read(f"{HEAD}\na,o,1,61.2\na,o,2,0.9\n", class_counts=(10,) * 10)


def test_the_size_of_the_test_set_and_how_models_were_selected(read: Read) -> None:
    head = f"{HEAD},test_size,selection"
    made = read(f"{head}\na,o,1,50,80,last\na,o,2,51.25,80,best on test\n")
    assert (made.test_size, made.chosen_on_test) == (80, ("a with o, seed 2",))
    for text, says in (
        (f"{head}\na,o,1,50,80,\na,o,2,50,81,\n", "line 3: test_size is 81, but line 2 says 80: audit one test set"),
        (f"{head}\na,o,1,50,8.5,\n", "line 2: test_size is 8.5, which is not a number of test samples"),
    ):
        with pytest.raises(InputError, match=says):
            read(text)
    with pytest.raises(InputError, match="test_size is 80, but the class counts add up to 40"):
        read(f"{head}\na,o,1,50,80,\n", class_counts=(20, 20))


def test_a_table_as_json(tmp_path: Path) -> None:
    """A list of rows; numbers count as they are written."""
    path = tmp_path / "table.json"
    rows = [{"teacher": "a", "objective": "o", "seed": seed, "accuracy": 91.25} for seed in (1, 2)]
    path.write_text(json.dumps(rows))
    found = audit(path, class_counts=(40, 40))
    assert [one.score for one in found.evidence.students] == [Score(0.9125)] * 2
    path.write_text('[{"teacher": "a"')
    with pytest.raises(InputError, match="is not JSON"):
        read_table(path)
    path.write_text("[1, 2]")
    with pytest.raises(InputError, match="is not a list with a mapping"):
        read_table(path)


def test_a_share_above_one_is_refused_where_shares_were_promised(read: Read) -> None:
    with pytest.raises(InputError, match="cannot be above 1"):
        read(f"{HEAD}\na,o,1,50\n", unit="share")


def test_tables_that_are_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere.csv", tmp_path):
        with pytest.raises(InputError, match="cannot read the table"):
            read_table(path)


def test_a_table_can_be_audited_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"{HEAD},free_accuracy\na,o,1,90,30\na,o,2,91,31\na,o,3,92,32\n")
    assert audit(path).pairs[0].word == audit(str(path), delta=0.3).pairs[0].word == "masked"
    assert audit(path, delta=0.6).pairs[0].word == "faithful"
    assert audit(path, class_counts=(5, 5)).chance == 0.5


def test_objectives_without_a_control_are_those_that_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read from the registry, so that an objective of a plugin counts too; unknown names have a control."""
    monkeypatch.setattr(objectives["sp"], "assessable", False)
    path = tmp_path / "t.csv"
    lines = [f"a,{name},1,90,30" for name in (*objectives, "another", "CRD")]
    path.write_text("\n".join([f"{HEAD},free_accuracy", *lines]))
    lost = {one.objective for one in read_table(path).students if one.free and one.missing == NOT_ASSESSABLE}
    assert lost == {"crd", "CRD", "labels-only", "sp"}


def test_class_counts(tmp_path: Path) -> None:
    assert read_counts("100, 50,20") == (100, 50, 20)
    assert read_counts(classes=3) == (1, 1, 1)
    assert read_counts() == ()
    path = tmp_path / "counts.csv"
    path.write_text("class,count\ncar,7\ntable,9\n")
    assert read_counts(str(path)) == (7, 9)
    path.write_text("7\n9\n\n")
    assert read_counts(str(path)) == (7, 9)


@pytest.mark.parametrize(
    ("text", "classes", "says"),
    [
        ("100,x", None, "'x' is not a whole number"),
        ("100,-1", None, "cannot have -1"),
        ("100", None, "at least two classes"),
        ("nowhere.csv", None, "cannot read the class counts"),
        ("1,2", 3, "not both"),
        (None, 1, "at least two"),
    ],
    ids=["word", "negative", "one", "no-file", "both", "one-class"],
)
def test_class_counts_that_are_none(text: str | None, classes: int | None, says: str) -> None:
    with pytest.raises(InputError, match=says):
        read_counts(text, classes)


def test_students_of_several_architectures_have_labels_only_students_of_their_own() -> None:
    rows = [
        {"teacher": "t", "objective": "kd", "student": student, "seed": seed, "accuracy": a, "labels_only_accuracy": b}
        for student, a, b in (("small", "0.60", "0.55"), ("large", "0.75", "0.74"))
        for seed in "12"
    ]
    found = read_rows(rows)
    assert {(one.objective, one.model) for one in found.students} == {("kd (small)", "small"), ("kd (large)", "large")}
    gains = {pair.objective: pair.gain for pair in judge(found).pairs}
    assert gains == {"kd (small)": pytest.approx(0.05), "kd (large)": pytest.approx(0.01)}
    rows[1]["labels_only_accuracy"] = "0.56"
    assert judge(read_rows(rows)).pairs[0].gain == pytest.approx(0.045)
    repeated = [*rows, {**rows[0], "objective": "hints", "labels_only_accuracy": "0.5"}]
    with pytest.raises(InputError, match="the same seed and student"):
        read_rows(repeated)


def test_one_student_keeps_the_objectives_name() -> None:
    rows = [{"teacher": "t", "objective": "kd", "student": "small", "seed": "1", "accuracy": "0.6"}]
    (student,) = read_rows(rows).students
    assert (student.objective, student.model) == ("kd", "small")


def test_a_table_of_federated_methods_says_method_and_accuracy() -> None:
    rows = [{"method": name, "seed": "1", "accuracy (%)": value} for name, value in (("fedavg", "71"), ("moon", "0.9"))]
    found = read_rows(rows)
    assert [(one.name, one.score.accuracy) for one in found.teachers if one.score] == [
        ("fedavg", 0.71),
        ("moon", pytest.approx(0.009)),
    ]
    assert found.students == ()
    # With an objective, method is a column like any other.
    with pytest.raises(InputError, match="lacks the column 'teacher'"):
        read_rows([{"method": "fedavg", "objective": "kd", "seed": "1", "accuracy": "0.7"}])


def test_a_hundred_class_counts_are_no_file_name() -> None:
    text = ",".join(["1234"] * 100)
    assert read_counts(text) == (1234,) * 100
    with pytest.raises(InputError, match="'x' is not a whole number"):
        read_counts(f"{text},x")


def test_decimal_commas_and_names_with_spaces(tmp_path: Path) -> None:
    """As a spreadsheet saves it in half of Europe; a comma in a number of samples might stand for thousands."""
    path = tmp_path / "table.txt"
    path.write_text("Teacher;Objective;Seed;Accuracy;Teacher Accuracy;Free-accuracy (%)\na;o;1;91,25;90,0;88,5 %\n")
    evidence = read_table(path)
    assert evidence.teachers[0].score == Score(0.9)
    assert [student.score for student in evidence.students] == [Score(0.9125), Score(0.885)]
    assert [student.score.unit for student in evidence.students if student.score] == pytest.approx([1e-4, 1e-3])
    rows = [{"teacher": "a", "objective": "o", "seed": 1, "accuracy": "91,25", "test_size": "2,468"}]
    with pytest.raises(InputError, match="test_size is '2,468', which is not a number"):
        read_rows(rows)


def test_the_size_of_the_test_set_is_deduced() -> None:
    """Of enough accuracies with enough digits; means over seeds, or coarse figures, show none."""

    def audited(rights: Sequence[float], digits: int) -> Audit:
        rows = [
            {"method": f"m{number}", "seed": 1, "accuracy": f"{100 * right / 80:.{digits}f}"}
            for number, right in enumerate(rights)
        ]
        return judge(read_rows(rows))

    whole = audited(range(41, 71), 2)
    assert whole.evidence.test_size == 80
    assert whole.evidence.settings["test samples"].startswith("80 (deduced")
    interval = whole.teachers[0].interval
    assert interval is not None
    assert interval.how == "samples"
    assert audited([right + 1 / 3 for right in range(41, 71)], 2).evidence.test_size != 80
    assert audited(range(41, 71), 0).evidence.test_size == 0
    assert audited(range(41, 61), 2).evidence.test_size == 0  # too few
