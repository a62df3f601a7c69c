"""Rows of a table that a model is to predict become what the training rows became."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from fedstill.core.dataset import ArrayDataset
from fedstill.core.errors import InputError
from fedstill.data.bundle import Bundle
from fedstill.data.feature_preparation import Preparation
from fedstill.data.feature_rows import read_rows
from fedstill.data.lookup import load

TABLE = """age,sex,weight,label,site,split
10,m,1,no,a,train
20,f,,yes,a,train
30,m,3,no,a,train
,x,5,yes,a,test
40,f,,no,b,train
60,m,7,yes,b,train
80,m,,yes,b,test
"""


def prepared(folder: Path, text: str = TABLE, settings: str = "") -> tuple[Bundle, Preparation]:
    (folder / "people.csv").write_text(text)
    bundle = load(f"table:{folder / 'people.csv'}{settings}")
    assert bundle.preparation is not None
    return bundle, Preparation.from_dict(json.loads(json.dumps(bundle.preparation.to_dict())))


def features(path: Path, preparation: Preparation, site: str = "") -> torch.Tensor:
    return torch.stack(list(read_rows(path, preparation, site).values()))


@pytest.mark.parametrize("settings", ["", ",indicators=true,impute=median", ",scale=none", ",scale=shared"])
def test_rows_get_the_bits_that_they_had_in_training(tmp_path: Path, settings: str) -> None:
    bundle, preparation = prepared(tmp_path, settings=settings)
    rows = features(tmp_path / "people.csv", preparation)
    for part, places in (("train", [0, 1, 2, 4, 5]), ("test", [3, 6])):
        data = bundle.splits()[part]
        assert isinstance(data, ArrayDataset)
        assert torch.equal(rows[places], data.columns["inputs"])


def test_columns_may_be_in_another_order_and_others_do_not_matter(tmp_path: Path) -> None:
    _, preparation = prepared(tmp_path)
    (tmp_path / "new.csv").write_text("Site;Weight;note;SEX;age\na;1;hello;m;10\n")
    expected = features(tmp_path / "people.csv", preparation)[:1]
    assert torch.equal(features(tmp_path / "new.csv", preparation), expected)


def test_rows_are_counted_as_in_a_spreadsheet(tmp_path: Path) -> None:
    _, preparation = prepared(tmp_path)
    (tmp_path / "new.csv").write_text("age,sex,weight,site\n10,m,1,a\n\n,,,\n20,f,,b\n,,,a\n")
    assert list(read_rows(tmp_path / "new.csv", preparation)) == [2, 5, 6]
    (tmp_path / "new.csv").write_text("age,sex,weight,site\n\nold,m,1,a\n")
    with pytest.raises(InputError, match="row 3 has 'old' in age"):
        read_rows(tmp_path / "new.csv", preparation)


def test_the_site_is_a_column_or_the_name_of_the_file_or_given(tmp_path: Path) -> None:
    _, preparation = prepared(tmp_path)
    expected = features(tmp_path / "people.csv", preparation)[4:5]
    for name, site in (("b.csv", ""), ("new.csv", "b")):
        (tmp_path / name).write_text("age,sex,weight\n40,f,\n")
        assert torch.equal(features(tmp_path / name, preparation, site), expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("age,sex,weight\n40,f,\n", r"new.csv does not say which site its rows are from.*add a column site with a, b"),
        ("age,sex,weight,site\n40,f,,c\n", r"new.csv has a row of the site 'c', and the model knows.*a, b only"),
        ("age,sex,site\n40,f,a\n", r"new.csv has no column 'weight', which the model was trained with"),
        ("age,sex,weight,site\nold,f,1,a\n", r"new.csv: row 2 has 'old' in age, where the training data has numbers"),
        ("age,sex,weight,site\n", r"new.csv has a header and no rows"),
        ("", r"new.csv is empty"),
    ],
)
def test_rows_that_cannot_be_read_get_one_sentence(tmp_path: Path, text: str, message: str) -> None:
    _, preparation = prepared(tmp_path)
    (tmp_path / "new.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        read_rows(tmp_path / "new.csv", preparation)


def test_no_cell_of_a_test_row_changes_what_is_trained_on(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    rows = [
        [f"{draw.normal():.3f}", "mf"[draw.integers(2)], f"{draw.normal():.3f}", "xy"[row % 2], "ab"[row % 3 == 0]]
        for row in range(40)
    ]
    for row in (3, 7):
        rows[row][2] = ""
    tested = [row % 5 == 4 for row in range(40)]

    def table(strange: dict[int, str]) -> str:
        def cells(row: list[str], test: bool) -> list[str]:
            return [*(strange.get(at, cell) if test else cell for at, cell in enumerate(row)), ("train", "test")[test]]

        return "\n".join(["p;q;r;label;site;split", *(";".join(cells(*one)) for one in zip(rows, tested, strict=True))])

    def trained(text: str, settings: str) -> torch.Tensor:
        data = prepared(tmp_path, text, settings)[0].train
        assert isinstance(data, ArrayDataset)
        return data.columns["inputs"]

    others = [(0, ""), (0, "1e9"), (0, "text"), (0, "1,5"), (1, "z"), (1, ""), (2, ""), (2, "-999"), (2, "7")]
    for settings in ("", ",indicators=true", ",scale=shared,impute=median"):
        before = trained(table({}), settings)
        for place, cell in others:
            assert torch.equal(trained(table({place: cell}), settings), before), (settings, place, cell)


def test_a_table_without_any_value_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no value in any feature of its training rows"):
        prepared(tmp_path, "a,label\n,x\n,y\n,x\n,y\n", ",categorical=a")
