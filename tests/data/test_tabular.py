from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedstill.core.dataset import ArrayDataset, column
from fedstill.core.errors import InputError
from fedstill.data.bundle import Bundle
from fedstill.data.check import check
from fedstill.data.lookup import load

TABLE = """age,sex,weight,label,site,split
10,m,1,no,a,train
20,f,,yes,a,train
30,m,3,no,a,train
,x,5,yes,a,test
40,f,,no,b,train
60,m,,yes,b,train
80,m,,yes,b,test
"""


def write(folder: Path, text: str = TABLE, name: str = "people.csv") -> str:
    (folder / name).write_text(text)
    return f"table:{folder / name}"


def columns(bundle: Bundle, part: str = "train") -> list[list[float]]:
    data = bundle.splits()[part]
    assert isinstance(data, ArrayDataset)
    return [[round(float(one), 4) for one in row] for row in data.columns["inputs"]]


def test_numbers_are_filled_in_and_scaled_by_the_training_rows_of_their_site(tmp_path: Path) -> None:
    bundle = load(write(tmp_path))
    assert (bundle.kind, bundle.shape, bundle.classes, bundle.site_names) == ("array", (4,), ("no", "yes"), ("a", "b"))
    # Columns: age, sex=f, sex=m, weight. Site a: age 20 ± 8.165, weight 1, 2, 3 with the mean for the missing one.
    away = round(10 / np.sqrt(200 / 3), 4)
    assert columns(bundle) == [
        [-away, 0, 1, round(-1 / np.sqrt(2 / 3), 4)],
        [0, 1, 0, 0],
        [away, 0, 1, round(1 / np.sqrt(2 / 3), 4)],
        [-1, 1, 0, 0],  # site b: age 50 ± 10, and no weight at all
        [1, 0, 1, 0],
    ]
    # The unknown category x is zeros; the test row of site a has the site's mean age, and that of b its statistics.
    assert columns(bundle, "test") == [[0, 0, 0, round(3 / np.sqrt(2 / 3), 4)], [3, 0, 1, 0]]
    assert column(bundle.test, "site").tolist() == [0, 1]  # type: ignore[union-attr]


@pytest.mark.parametrize(("rule", "missing"), [("mean", 2.0), ("median", 2.0), ("most-frequent", 1.0), ("zero", 0.0)])
def test_rules_for_missing_numbers(tmp_path: Path, rule: str, missing: float) -> None:
    bundle = load(f"{write(tmp_path)},impute={rule},scale=none")
    assert columns(bundle)[1][3] == missing
    marked = load(f"{write(tmp_path)},impute={rule},scale=none,indicators=true")
    assert marked.shape == (5,)  # the only missing age is in a row that is not trained on
    assert [row[4] for row in columns(marked)] == [0, 1, 0, 1, 1]
    assert [row[4] for row in columns(marked, "test")] == [0, 1]


def test_shared_statistics_are_those_of_all_training_rows(tmp_path: Path) -> None:
    ages = np.array([10, 20, 30, 40, 60])
    shared = [row[0] for row in columns(load(f"{write(tmp_path)},scale=shared"))]
    assert shared == pytest.approx(((ages - ages.mean()) / ages.std()).tolist(), abs=1e-4)
    with pytest.raises(InputError, match="scale=shared needs the rows of all sites"):
        load(f"{write(tmp_path)},scale=shared", part=True)


def test_test_rows_change_no_statistic(tmp_path: Path) -> None:
    before = columns(load(write(tmp_path)))
    assert columns(load(write(tmp_path, TABLE.replace(",x,5,", "999,x,999,").replace("80,m", "-999,f")))) == before


def test_a_folder_of_tables_is_the_same_as_one_with_a_column_of_sites(tmp_path: Path) -> None:
    whole = load(write(tmp_path))
    (tmp_path / "sites").mkdir()
    header, *rows = TABLE.splitlines()
    short = header.replace("site,", "")
    for site in "ab":
        mine = [row.replace(f",{site},", ",") for row in rows if f",{site}," in row]
        (tmp_path / "sites" / f"{site}.csv").write_text("\n".join([short, *mine]))
    assert load(f"table:{tmp_path / 'sites'}").fingerprint() == whole.fingerprint()
    part = load(f"table:{tmp_path / 'sites' / 'a.csv'}", part=True)  # as one site of a deployment reads it
    assert columns(part) == columns(whole)[:3]
    (tmp_path / "sites" / "b.csv").write_text("age,label\n1,no\n")
    with pytest.raises(InputError, match=r"b.csv lacks the column 'sex', which other sites have"):
        load(f"table:{tmp_path / 'sites'}")


def test_numbers_can_be_categories_and_groups_stay_together(tmp_path: Path) -> None:
    rows = [f"{number % 7},{number // 3},{number // 3 % 2}" for number in range(60)]
    name = write(tmp_path, "\n".join(["kind,patient,label", *rows]))
    bundle = load(f"{name},categorical=kind,group=patient")
    assert bundle.shape == (7,)
    groups = [set(column(part, "group").tolist()) for part in (bundle.train, bundle.test)]  # type: ignore[union-attr]
    assert not groups[0] & groups[1]
    alone = load(name)
    assert alone.shape == (1,)  # a column of patients is no feature
    assert "set group=patient" in str(alone.notes)


def test_a_column_that_gives_the_class_away_is_reported(tmp_path: Path) -> None:
    rows = [f"{number},{number % 4},{int(number % 4 > 0)}" for number in range(40)]
    name = write(tmp_path, "\n".join(["x,num,label", *rows]))
    assert "the column 'num' alone gives the class of every row" in str(check(name).problems)
    assert "alone gives" not in str(check(f"{name},drop=num").problems)


@pytest.mark.parametrize(
    ("settings", "text", "message"),
    [
        ("", "a,b\n1,2\n", r"has the columns a, b, and none is called label: name it"),
        (",label=c", "a,b\n1,2\n", r"has no column 'c'"),
        ("", "label\nx\ny\n", r"no column beside 'label'"),
        ("", "a,label\n1,\n2,\n", r"no row with a label"),
        ("", "a,label\n1,x,3\n", r"row 2 has 3 cells, and the header has 2"),
        ("", "a,label,split\n1,x,1\n", r"has '1' in split: write train, validation or test"),
        ("", "a,label,site\n1,x,\n2,y,s\n", r"row 2 has no site"),
        (",categorical=z", "a,label\n1,x\n2,y\n1,x\n2,y\n", r"no feature 'z', which categorical names"),
        (",impute=magic", "a,label\n1,x\n", r"data.impute: input should be 'mean'"),
        (",classes=x,z", "a,label\n1,x\n2,y\n", r"has the label 'y', which is not among the classes"),
        (",group=b", "a,label,b\n1,x,p\n2,y,q\n2,y,q\n", r"there is one group of each class: nothing can be"),
        ("", "a,label\n1,x\n2,y\n", r"there is one sample of each class: nothing can be learned and tested"),
        (
            "",
            "a,label\n" + "".join(f"1,{n}.5\n" * 2 for n in range(20)),
            r"20 different numbers as labels",
        ),
        ("", "a,label\n,x\n,x\n,y\n,y\n", r"no value in any feature of its training rows"),
        (",file=a", "a,label\n1,x\n2,y\n", r"file is a setting of tables of labels"),
    ],
)
def test_bad_tables_get_one_sentence(tmp_path: Path, settings: str, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(write(tmp_path, text) + settings)


def test_names_of_people_are_no_categories(tmp_path: Path) -> None:
    rows = [f"Anna{number},{number % 2}" for number in range(100)]
    with pytest.raises(InputError, match=r"the column 'name' has 80 categories, more than 50: leave it out, drop=name"):
        load(write(tmp_path, "\n".join(["name,label", *rows])))


def test_heart_disease_leaves_out_the_grade_that_its_label_is_made_from(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    rows = [f"{draw.integers(30, 70)},{n % 3},{'ab'[n % 2]},{'disease' if n % 3 else 'healthy'}" for n in range(60)]
    (tmp_path / "heart_disease").mkdir()
    write(tmp_path / "heart_disease", "\n".join(["age,num,site,label", *rows]), "heart_disease.csv")
    bundle = load("heart-disease", tmp_path)
    assert (bundle.shape, bundle.classes) == ((1,), ("healthy", "disease"))
    assert torch.isfinite(column(bundle.train, "inputs")).all()  # type: ignore[arg-type]


def test_a_column_of_equal_numbers_becomes_zero_whatever_their_rounding(tmp_path: Path) -> None:
    rows = "".join(f"{number},0.1,{'xy'[number % 2]},train\n" for number in range(7))
    bundle = load(write(tmp_path, f"a,b,label,split\n{rows}1,0.2,x,test\n2,0.1,y,test\n"))
    for part in ("train", "test"):
        assert {row[1] for row in columns(bundle, part)} == {0.0}


@pytest.mark.parametrize("setting", ["size=32", "channels=3"])
def test_settings_of_images_are_refused(tmp_path: Path, setting: str) -> None:
    with pytest.raises(InputError, match="size and channels are for images"):
        load(f"{write(tmp_path)},{setting}")


PLAIN = "age,dose,ward,label\n" + "".join(
    f"{20 + number % 25},{number % 7 + 0.5},{'abc'[number % 3]},{'xy'[number % 2]}\n" for number in range(30)
)


def changed(column: int, cells: dict[int, str], name: str = "") -> str:
    """The plain table with other cells in a column, by row."""
    header, *rows = (line.split(",") for line in PLAIN.splitlines())
    header[column] = name or header[column]
    for row, cell in cells.items():
        rows[row][column] = cell
    return "\n".join(";".join(row) for row in [header, *rows]) + "\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (changed(1, {3: "inf", 4: "-inf", 5: "#N/A", 6: "n.a."}), "4 missing values in dose"),
        (changed(1, {3: "<5"}), "'dose' has 29 numbers and 1 texts, the first '<5', and is taken for categories"),
        (changed(1, {3: "-999", 8: "-999"}), "'dose' has -999 in 2 rows, far from all others"),
        (changed(1, {n: f"1,{n:03}" for n in range(30)}), "'dose' has numbers with commas, the first '1,000'"),
        (changed(1, {n: f"{n}" for n in range(30)}, "id"), "'id' numbers the rows: if it is no measurement, drop=id"),
        (changed(2, {n: f"N{n}" for n in range(30)}), "'ward' has another text in every row"),
        (changed(2, {n: f"2021-0{n % 3 + 1}-01" for n in range(30)}), "'ward' has dates, the first 2021-01-01"),
        (changed(1, dict.fromkeys(range(30), "7")), "all training rows have the same in dose"),
        (changed(1, {n: f"{n // 2}" for n in range(30)}, "MRN"), "set group=MRN to keep them together"),
    ],
)
def test_cells_that_are_no_measurements_are_reported(tmp_path: Path, text: str, said: str) -> None:
    report, plain = check(write(tmp_path, text)), check(write(tmp_path, PLAIN))
    assert report.usable
    assert sum(said in line for line in (*report.notes, *report.problems)) == 1
    assert (plain.notes, plain.problems) == (plain.notes[:1], ())  # the note of the split


def test_decimal_commas_are_numbers(tmp_path: Path) -> None:
    point, comma = PLAIN.replace(",", ";"), PLAIN.replace(",", ";").replace(".", ",")
    assert columns(load(write(tmp_path, comma))) == columns(load(write(tmp_path, point)))


def test_categories_of_test_rows_alone_are_noted(tmp_path: Path) -> None:
    notes = load(write(tmp_path)).notes
    assert "1 values of sex are in no training row, the first 'x': each is taken for none of its categories" in notes


def test_a_feature_that_is_called_as_a_column_of_splits_may_be(tmp_path: Path) -> None:
    rows = "".join(f"{number},{'pqr'[number % 3]},{'xy'[number % 2]}\n" for number in range(30))
    assert load(write(tmp_path, f"age,part,label\n{rows}")).shape == (4,)
    with pytest.raises(InputError, match="has 'p' in part: write train, validation or test"):
        load(f"{write(tmp_path, f'age,part,label{chr(10)}{rows}')},split=part")
