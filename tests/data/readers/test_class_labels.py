"""Tables of labels as programs and people write them."""

from __future__ import annotations

import unicodedata
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedstill.core.errors import InputError
from fedstill.data.bundle import Bundle
from fedstill.data.check import check
from fedstill.data.lookup import load

NAMES = [f"kr\u00e4/{number}.png" for number in range(12)]
CLASSES = ("well", "ill")


def write(folder: Path, table: str, name: str = "labels.csv", spelling: str = "NFC") -> str:
    for number, file in enumerate(NAMES):
        path = folder / "d" / unicodedata.normalize(spelling, file)  # type: ignore[arg-type]
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), 20 * number, dtype=np.uint8)).save(path)
    (folder / "d" / name).write_text(table, encoding="utf-8")
    return f"folder:{folder / 'd'}"


def rows(form: str, header: str = "file,label") -> str:
    lines = [form.format(file=file, label=CLASSES[number % 2], number=number) for number, file in enumerate(NAMES)]
    return "\n".join([header, *lines])


def counts(bundle: Bundle) -> dict[str, int]:
    found: Counter[str] = Counter()
    for data in bundle.splits().values():
        labels = data.labels()
        assert labels is not None
        found += Counter(bundle.classes[label] for label in labels.tolist())
    return dict(found)


@pytest.mark.parametrize(
    ("table", "settings"),
    [
        (rows('"{file}"; "{label}"', '"File Name"; "Label"'), ""),
        (rows("./{file},{label}"), ""),
        (rows("{number},{file},{label}", "row,Image Index,Diagnosis"), ""),
        (rows("{file},{label}") + "\n" + rows("./{file},{label}").partition("\n")[2], ""),
        (rows("{file},{label}").replace("well", "0.0").replace("ill", "1.0"), ",classes=well,ill"),
    ],
)
def test_spellings_of_one_table(tmp_path: Path, table: str, settings: str) -> None:
    assert counts(load(write(tmp_path, table) + settings)) == {"well": 6, "ill": 6}


def test_names_that_a_mac_stores_in_another_way_are_found(tmp_path: Path) -> None:
    assert counts(load(write(tmp_path, rows("{file},{label}"), spelling="NFD"))) == {"well": 6, "ill": 6}


@pytest.mark.parametrize("missing", ["NaN", "NA", "#N/A", "null"])
def test_missing_labels_are_no_class(tmp_path: Path, missing: str) -> None:
    table = rows("{file},{label}").replace("0.png,well", f"0.png,{missing}", 1)
    report = check(write(tmp_path, table))
    assert report.classes == ("ill", "well")
    assert "1 images have no class in labels.csv" in str(report.notes)
    several = "\n".join(["file,a,b", *(f"{file},{number % 2},1" for number, file in enumerate(NAMES))])
    report = check(write(tmp_path, several.replace("0.png,0", f"0.png,{missing}", 1)) + ",labels=a,b")
    assert "1 images have no class" in str(report.notes)


@pytest.mark.parametrize(
    ("name", "table", "sentence"),
    [
        (
            "labels.csv",
            rows("{file},{label}", "Datei,Befund"),
            r"and labels.csv has the columns Datei, Befund: name",
        ),
        (
            "labels.csv",
            rows("{file},{label}").partition("\n")[2],
            r"labels.csv begins with kr./0.png: give it",
        ),
        ("labels.xlsx", "PK", r"in one folder, and labels.xlsx cannot be read: save it as .csv"),
        ("labels.csv", rows("{file},{label}") + "\n./kr\u00e4/0.png,ill", r"0.png twice, with different entries"),
    ],
)
def test_tables_that_cannot_be_used_are_refused(tmp_path: Path, name: str, table: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        load(write(tmp_path, table, name))


def test_a_table_beside_folders_of_classes_is_mentioned(tmp_path: Path) -> None:
    where = write(tmp_path, "a,b\n1,2\n", "notes.csv")
    for number in range(4):
        (tmp_path / "d" / "other").mkdir(exist_ok=True)
        Image.fromarray(np.full((8, 8), number, dtype=np.uint8)).save(tmp_path / "d" / "other" / f"{number}.png")
    (tmp_path / "d" / "__MACOSX").mkdir()
    bundle = load(where)
    assert set(bundle.classes) == {"kr\u00e4", "other"}
    assert "no table is read: notes.csv has the columns a, b" in str(bundle.notes)
