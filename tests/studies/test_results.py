"""The results file: written, read, extended; and the tables made from it, with numbers derived by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedstill.core.errors import InputError
from fedstill.studies import Results, load_results, make_table
from fedstill.studies.grid import Taught
from fedstill.studies.results import Pupil, ResultRow
from fedstill.studies.run_figures import packed, unpacked

ACCURACY = {
    ("iid", "fedavg", "1"): 0.90,
    ("iid", "fedavg", "2"): 0.92,
    ("iid", "fedavg", "3"): 0.94,
    ("iid", "fedprox", "1"): 0.5,
    ("iid", "fedprox", "2"): 0.5,
    ("iid", "fedprox", "3"): 0.5,
    ("skewed", "fedavg", "1"): 0.1,
    ("skewed", "fedavg", "2"): 0.2,
    ("skewed", "fedavg", "3"): 0.6,
    ("skewed", "fedprox", "1"): 0.3,
    ("skewed", "fedprox", "2"): 0.3,
    ("skewed", "fedprox", "3"): 0.45,
}


def results(**changes: Any) -> Results:
    axes = {
        "partition": {"iid": "iid", "skewed": {"label": "skewed", "name": "dirichlet", "alpha": 0.1}},
        "method": {"fedavg": "fedavg", "fedprox": "fedprox"},
        "seed": {"1": 1, "2": 2, "3": 3},
    }
    runs = {
        cell: ResultRow(f"id-{'-'.join(cell)}", {"accuracy": value, "personal": None, "bytes_up": 3 * 2**19})
        for cell, value in ACCURACY.items()
    }
    source = {"experiment": {"data": "digits", "rounds": 2}, "settings": {}}
    return replace(Results("small", "Nothing much.", source, axes, None, (), runs, {}), **changes)


def test_mean_and_sample_standard_deviation() -> None:
    """By hand, in %: 90, 92, 94 have mean 92 and deviation sqrt((4 + 0 + 4) / 2) = 2.

    10, 20, 60: mean 30, sqrt((400 + 100 + 900) / 2) = 26.46. 30, 30, 45: mean 35, sqrt((25 + 25 + 100) / 2) = 8.66.
    """
    table = make_table(results())
    assert table.header == ("partition", "fedavg", "fedprox")
    assert table.rows == (("iid", "92.00 ± 2.00", "50.00 ± 0.00"), ("skewed", "30.00 ± 26.46", "35.00 ± 8.66"))
    assert table.caption == (
        "small: test accuracy after the last round, in %: mean ± sample standard deviation over three seeds"
    )


def test_the_recipe_says_what_goes_across() -> None:
    table = make_table(results(columns="partition"))
    assert table.header == ("method", "iid", "skewed")
    assert table.rows[0] == ("fedavg", "92.00 ± 2.00", "30.00 ± 26.46")


def test_a_table_that_is_too_wide_has_everything_down() -> None:
    table = make_table(results(), long=True)
    assert table.header == ("partition", "method", "accuracy")
    assert table.rows[:2] == (("iid", "fedavg", "92.00 ± 2.00"), ("", "fedprox", "50.00 ± 0.00"))
    assert table.width == len("partition  fedprox  30.00 ± 26.46")


def test_rows_go_down_in_the_order_asked_for() -> None:
    table = make_table(results(rows=("method",)), long=True)
    assert table.header == ("method", "partition", "accuracy")
    assert make_table(results(rows=("method",))).header == ("method", "iid", "skewed")


def test_one_seed_has_no_spread_and_a_single_value_goes_into_the_caption() -> None:
    axes = results().axes | {"seed": {"1": 1}, "partition": {"iid": "iid"}}
    some = {cell: row for cell, row in results().runs.items() if cell[0] == "iid" and cell[2] == "1"}
    table = make_table(results(axes=axes, runs=some))
    assert table.header == ("method", "accuracy")
    assert table.rows == (("fedavg", "90.00"), ("fedprox", "50.00"))
    assert table.caption == "small: test accuracy after the last round, in % (iid, seed 1)"


def test_what_is_missing_or_failed_is_said() -> None:
    runs = {cell: row for cell, row in results().runs.items() if cell[:2] in (("iid", "fedavg"), ("iid", "fedprox"))}
    del runs["iid", "fedavg", "3"]
    table = make_table(results(runs=runs, failures={("skewed", "fedavg", "1"): "no luck"}))
    assert table.rows == (("iid", "91.00 ± 1.41 (2)", "50.00 ± 0.00 (3)"), ("skewed", "failed", "–"))  # noqa: RUF001
    assert "in brackets, how many runs there are" in table.caption
    one = make_table(results(runs={("iid", "fedavg", "1"): results().runs["iid", "fedavg", "1"]}))
    assert one.rows == (("iid", "90.00", "–"), ("skewed", "–", "–"))  # noqa: RUF001
    assert "brackets" not in one.caption


def test_other_metrics_have_their_units() -> None:
    assert make_table(results(), "bytes_up").rows[0][1] == "1.50 ± 0.00"
    assert "in MiB" in make_table(results(), "bytes_up").caption
    assert make_table(results(), "personal").rows[0][1] == "–"  # noqa: RUF001
    assert make_table(results(), "extra_models.average").rows[0][1] == "–"  # noqa: RUF001
    with pytest.raises(InputError, match="unknown metric 'acuracy': did you mean 'accuracy'"):
        make_table(results(), "acuracy")
    with pytest.raises(InputError, match="the metric 'bytes_once' is called 'bytes_first_contact' now"):
        make_table(results(), "bytes_once")


def test_a_file_gives_the_same_results_and_the_same_bytes(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "results.json"
    before = results(failures={("skewed", "fedprox", "4"): "no „luck“"}, columns="method", rows=("partition",))
    before.save(path)
    after = load_results(path)
    assert after.encode().encode() == path.read_bytes()
    assert make_table(after).markdown() == make_table(before).markdown()
    assert after.failures == before.failures
    assert "personal" not in path.read_text(), "a figure that nobody has takes no room"
    assert path.stat().st_size < 2500


def test_the_table_in_markdown() -> None:
    axes = results().axes | {"method": {"fedavg": 1, "fedprox": 2}}
    lines = make_table(results(axes=axes)).markdown().splitlines()
    assert lines[1:] == [
        "",
        "| partition | fedavg | fedprox |",
        "| --- | ---: | ---: |",
        "| iid | 92.00 ± 2.00 | 50.00 ± 0.00 |",
        "| skewed | 30.00 ± 26.46 | 35.00 ± 8.66 |",
    ]


def part(of: Results, *seeds: str) -> Results:
    """The same study with these seeds alone."""
    runs = {cell: row for cell, row in of.runs.items() if cell[2] in seeds}
    return replace(of, axes=of.axes | {"seed": {seed: int(seed) for seed in seeds}}, runs=runs)


def test_results_grow_run_by_run() -> None:
    whole = results()
    first = part(whole, "1")
    both = part(whole, "2").extended(first, {})
    assert len(both.runs) == 8
    assert part(whole, "3").extended(both, {}).encode() == whole.encode()
    assert whole.extended(both, {}).encode() == whole.encode()


def test_what_is_known_of_the_test_data_grows_too() -> None:
    older = results(test_counts={"digits": [1, 2], "mnist": [3, 4]})
    assert results(test_counts={"digits": [5, 6]}).extended(older, {}).test_counts == {
        "digits": [5, 6],
        "mnist": [3, 4],
    }


def test_the_order_of_a_grown_file_is_that_of_its_axes() -> None:
    grown = part(results(), "1").extended(part(results(), "3"), {})
    assert [cell[2] for cell in grown.runs] == ["3", "1"] * 4


def test_ours_wins_and_what_failed_then_is_mended() -> None:
    cell = ("iid", "fedavg", "1")
    others = {key: row for key, row in results().runs.items() if key != cell}
    older = results(runs=others, failures={cell: "no luck"})
    assert results().extended(older, {}).failures == {}
    ours = results(runs={("iid", "fedavg", "2"): ResultRow("id-iid-fedavg-2", {"accuracy": 0.0})})
    merged = ours.extended(older, {})
    assert merged.runs["iid", "fedavg", "2"].figures["accuracy"] == 0.0
    assert merged.failures == {cell: "no luck"}


def test_a_row_of_another_run_is_dropped() -> None:
    """The data has changed since: the cell is the same, its identity is not."""
    identities = {cell: row.identity for cell, row in results().runs.items()} | {("iid", "fedavg", "1"): "other"}
    merged = results(runs={}).extended(results(), identities)
    assert set(results().runs) - set(merged.runs) == {("iid", "fedavg", "1")}


def test_a_file_with_former_names_of_settings_is_extended() -> None:
    """The label is the same, and so is what it sets."""
    old, new = {"cure": "friends", "dropout": 0.4}, {"mitigation": "friend-substitution", "dropout": 0.4}
    sides = [results(axes=results().axes | {"partition": {"iid": meaning}}) for meaning in (old, new)]
    assert sides[1].extended(sides[0], {}).axes["partition"]["iid"] == new
    with pytest.raises(InputError, match="partition 'iid' stands for something else"):
        results(axes=results().axes | {"partition": {"iid": {**new, "dropout": 0.5}}}).extended(sides[0], {})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"source": {"experiment": {"data": "digits", "rounds": 3}}}, "of another experiment (experiment: "),
        ({"axes": {"method": {}}, "runs": {}}, "the results there vary method, and this study varies partition,"),
        ({"axes": results().axes | {"seed": {"1": 2}}}, "seed '1' stands for something else"),
    ],
    ids=["experiment", "axes", "labels"],
)
def test_what_does_not_belong_together_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError) as caught:
        results().extended(results(**changes), {})
    assert says in str(caught.value)
    assert "name another file" in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{}", "{", '{"format": 1}', "\x00"])
def test_a_broken_file_gets_a_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"cannot be read as a study's results|is not the results file of a study"):
        load_results(path)
    with pytest.raises(InputError, match="there is no results file"):
        load_results(tmp_path / "nowhere.json")


def test_a_format_of_the_future_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "new.json"
    path.write_text(results().encode().replace('"format": 3', '"format": 4'))
    with pytest.raises(InputError, match="has format 4, and this version of fedstill reads 1 and 2 and 3"):
        load_results(path)


@pytest.mark.parametrize("length", range(18))
def test_answers_are_packed_four_to_a_digit(length: int) -> None:
    """Against digits made one by one, the first answer being the highest bit of the first."""
    bits = [number % 3 == 0 or number % 5 == 1 for number in range(length)]
    fours = [bits[at : at + 4] for at in range(0, length, 4)]
    digits = [sum(8 >> place for place, bit in enumerate(four) if bit) for four in fours]
    assert packed(bits) == f"{length}:" + "".join(f"{digit:x}" for digit in digits)
    assert unpacked(packed(bits)) == tuple(bits)


def taught() -> Results:
    """The small study with one student."""
    cell = ("iid", "fedavg", "1", "vanilla")
    axes = results().axes | {"objective": {"vanilla": "vanilla"}}
    row = ResultRow("id-s", {"accuracy": 0.6, "finite": 1}, {"last": "5:b0"})
    pupils = {cell: Pupil(Taught("vanilla", "use", 0.5), "digits", "mlp")}
    counts = {"digits": [3, 2]}
    second = Results("s", "", {"which": "best"}, axes, None, (), {cell: row}, test_counts=counts, pupils=pupils)
    return results(students=second, failures={("iid", "fedavg", "4"): "no luck"})


def test_what_was_written_is_read(tmp_path: Path) -> None:
    taught().save(tmp_path / "r.json")
    loaded = load_results(tmp_path / "r.json")
    assert loaded.encode() == taught().encode()
    assert loaded.students == taught().students


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ('"which": "best"', '"which": "first"', "there is none called 'first'"),
        ('"digits": [3, 2]', '"digits": ["a"]', "students.test_counts.digits.0: input should be a valid integer"),
        ('"digits": [3, 2]', '"digits": [-1]', "students.test_counts.digits.0: input should be greater"),
        ('"digits": [3, 2]', '"digits": 3', "students.test_counts.digits: input should be a valid list"),
        ('"objective": {"vanilla": "vanilla"}', '"objective": "vanilla"', "students.axes.objective: input should be"),
        ('"id-iid-fedavg-1", 0, 0.9', '"id-iid-fedavg-1", 0, "0.9"', "runs.0.5"),
        ('"id-iid-fedavg-1", 0, 0.9', '"id-iid-fedavg-1", 0, NaN', "runs.0.5"),
        ('"id-iid-fedavg-1", 0, 0.9, ', '"id-iid-fedavg-1", 0, ', "runs.0.6.int: input should be a valid integer"),
        ('"id-iid-fedavg-1"', "7", "runs.0.3: input should be a valid string"),
        ('["iid", "fedavg", "1", "id-', '[["iid"], "fedavg", "1", "id-', "runs.0.0: input should be a valid string"),
        ('"no luck"', "null", "failures.0.3: input should be a valid string"),
        ('"use", 0.5', '"use"', "pupils.0.6"),
        ('"5:b0"', '"9:b0"', "too short for 9 answers"),
        ('"5:b0"', '"-1:b0"', "too short for -1 answers"),
        ('"5:b0"', '"5:g0"', "cannot be read as a study's results"),
        ('"5:b0"', '"b0"', "cannot be read as a study's results"),
        ('"5:b0"', "5", "runs.0.8: input should be a valid string"),
        ('"figures": ["partition", ', '"figures": [', "do not begin with its axes"),
        ('"rows": []', '"rows": 5', "rows: input should be a valid tuple"),
        ('"about"', '"abuot"', "about: field required"),
        ('"students": {', '"students": 5, "more": {', "students: input should be"),
    ],
)
def test_an_edited_file_gets_a_sentence(tmp_path: Path, before: str, after: str, says: str) -> None:
    text = taught().encode()
    assert before in text
    (tmp_path / "r.json").write_text(text.replace(before, after, 1))
    with pytest.raises(InputError) as caught:
        load_results(tmp_path / "r.json")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_students_are_told_apart_by_what_tells_their_teachers_apart(tmp_path: Path) -> None:
    second = taught().students
    assert second is not None
    alone = replace(second, axes={"objective": {"vanilla": "vanilla"}}, runs={}, pupils={})
    replace(taught(), students=alone).save(tmp_path / "r.json")
    with pytest.raises(InputError, match="not told apart by what tells their teachers apart"):
        load_results(tmp_path / "r.json")


def joint() -> Results:
    """The small study, two students of which were trained separately."""
    error = "joint training failed, so it was trained separately: RuntimeError: no memory for two"
    return results(joint_errors={("iid", "fedavg", "1"): error, ("iid", "fedavg", "2"): error})


def test_errors_of_joint_training_are_in_the_file_and_below_the_table(tmp_path: Path) -> None:
    joint().save(tmp_path / "r.json")
    loaded = load_results(tmp_path / "r.json")
    assert loaded.joint_errors == joint().joint_errors
    said = "Two students were trained separately because joint training failed: RuntimeError: no memory for two."
    assert make_table(loaded).note == said
    assert make_table(loaded).markdown().endswith(f"\n\n{said}\n")
    assert "joint_errors" not in results().encode()
    assert make_table(results()).note == ""


def test_an_error_of_joint_training_goes_with_the_run_that_it_is_of() -> None:
    ours = results(runs={("iid", "fedavg", "1"): ResultRow("again", {"accuracy": 0.9})})
    grown = ours.extended(joint(), {("iid", "fedavg", "1"): "again"})
    assert list(grown.joint_errors) == [("iid", "fedavg", "2")]


COMMITTED = sorted((Path(__file__).parents[2] / "docs" / "results").glob("*.json"))


@pytest.mark.parametrize("file", COMMITTED, ids=lambda file: file.stem)
def test_committed_results_can_be_read_and_extended(file: Path, tmp_path: Path) -> None:
    """Whatever their format: written again in today's they hold the same, and grow as any others."""
    found = load_results(file)
    found.save(tmp_path / "r.json")
    again = load_results(tmp_path / "r.json")
    assert again == found
    assert found.extended(again, {}, {}) == found
    names = {name for row in found.runs.values() for name in row.figures}
    assert not [name for name in names if name.startswith(("also.", "facts.")) or "stand_ins" in name]
