from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedstill.core.dataset import column
from fedstill.core.errors import InputError
from fedstill.data.check import check
from fedstill.data.lookup import load


def write_scans(folder: Path, count: int = 12, header: str = "file,label,site,patient", extra: str = "") -> Path:
    """Images with a table: file i has the grey level 10 * i, classes alternate by patient, two images each."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [header]
    for number in range(count):
        Image.fromarray(np.full((8, 8), 10 * number, dtype=np.uint8)).save(folder / f"{number:02}.png")
        lines.append(f"{number:02}.png,{'ab'[number // 2 % 2]},{'xy'[number % 4 == 3]},P{number // 2}{extra}")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    return folder


def levels(bundle_part: object) -> dict[int, int]:
    """Class by grey level, which identifies a file."""
    columns = bundle_part.columns  # type: ignore[attr-defined]
    return dict(zip(columns["inputs"][:, 0, 0, 0].tolist(), columns["labels"].tolist(), strict=True))


def test_classes_sites_and_groups_come_from_the_table(tmp_path: Path) -> None:
    bundle = load(f"folder:{write_scans(tmp_path)},group=patient")
    assert bundle.classes == ("a", "b")
    assert bundle.site_names == ("x", "y")
    held = {**levels(bundle.train), **levels(bundle.test)}
    assert held == {10 * number: number // 2 % 2 for number in range(12)}
    for part in (bundle.train, bundle.test):
        numbers = [level // 10 for level in levels(part)]
        assert (column(part, "site") == np.array([number % 4 == 3 for number in numbers])).all()
    patients = [{level // 20 for level in levels(part)} for part in (bundle.train, bundle.test)]
    assert not patients[0] & patients[1]
    assert patients[1]


def test_a_run_without_group_is_warned_and_data_check_reports_it(tmp_path: Path) -> None:
    write_scans(tmp_path)
    advice = "labels.csv has 6 values of patient for 12 rows"
    assert advice in str(load(f"folder:{tmp_path}").notes)
    assert advice in str(check(f"folder:{tmp_path}").problems)
    assert advice not in str(load(f"folder:{tmp_path},group=patient").notes)


def test_any_column_can_be_the_label_and_classes_keep_the_given_order(tmp_path: Path) -> None:
    folder = write_scans(tmp_path, header="picture,first,site,patient,second", extra=",9")
    text = (folder / "labels.csv").read_text().replace("P1,9", "P1,10").replace("P2,9", "P2,10")
    (folder / "labels.csv").write_text(text)
    bundle = load(f"folder:{folder},label=second,file=picture")
    assert bundle.classes == ("9", "10")
    assert load(f"folder:{folder},label=first,file=picture,classes=b,a").classes == ("b", "a")
    assert load(f"folder:{folder},label=first,file=picture").fingerprint() != bundle.fingerprint()


def test_a_column_of_splits_decides_and_a_group_in_two_splits_is_refused(tmp_path: Path) -> None:
    folder = write_scans(tmp_path, header="file,label,site,patient,split", extra=",train")
    text = (folder / "labels.csv").read_text()
    for patient in ("P0", "P1"):
        text = text.replace(f"{patient},train", f"{patient},test")
    (folder / "labels.csv").write_text(text)
    bundle = load(f"folder:{folder},group=patient")
    assert (len(bundle.train), len(bundle.test)) == (8, 4)
    (folder / "labels.csv").write_text(text.replace("P0,test", "P0,train", 1))
    with pytest.raises(InputError, match=r"1 groups are in both train and test, the first is 'P0'"):
        load(f"folder:{folder},group=patient")


def test_rows_may_name_files_without_suffix_in_folders_and_folders_of_files(tmp_path: Path) -> None:
    write_scans(tmp_path / "deep", 4)
    table = "name,class\n00,a\n01,a\ndeep/02,b\ndeep/03.png,b\n"
    (tmp_path / "deep" / "labels.csv").unlink()
    (tmp_path / "labels.csv").write_text(table)
    bundle = load(f"folder:{tmp_path}")
    assert {**levels(bundle.train), **levels(bundle.test)} == {0: 0, 10: 0, 20: 1, 30: 1}
    write_scans(tmp_path / "other", 4)
    (tmp_path / "other" / "labels.csv").unlink()
    with pytest.raises(InputError, match=r"00 may be deep/00.png or other/00.png: give the path"):
        load(f"folder:{tmp_path}")
    (tmp_path / "labels.csv").write_text("name,class\ndeep,a\nother,b\n")
    assert len(load(f"folder:{tmp_path}").train) == 6


def test_files_that_are_missing_or_broken_stop_or_are_left_out(tmp_path: Path) -> None:
    folder = write_scans(tmp_path, 16)
    (folder / "03.png").unlink()
    (folder / "05.png").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"do not exist: 03.png; mend or remove it, or set on_error=skip \(and 1 more"):
        load(f"folder:{folder}")
    bundle = load(f"folder:{folder},on_error=skip")
    assert sorted({**levels(bundle.train), **levels(bundle.test)}) == [
        10 * number for number in range(16) if number not in (3, 5)
    ]
    note = next(note for note in bundle.notes if note.startswith("left out"))
    assert "(2)" in note
    assert "03.png" in note
    assert "05.png is no image" in note


def test_images_without_a_row_are_reported(tmp_path: Path) -> None:
    folder = write_scans(tmp_path)
    Image.fromarray(np.zeros((8, 8), dtype=np.uint8)).save(folder / "odd.png")
    assert "1 images have no class in labels.csv and are left out: odd.png" in load(f"folder:{folder}").notes


@pytest.mark.parametrize(
    ("settings", "table", "message"),
    [
        (",label=diagnosis", "file,label\n00.png,a\n", r"has no|no table with the column 'diagnosis'|none is called"),
        (",group=person", "file,label\n00.png,a\n", r"labels.csv has no column 'person'"),
        (",site=hospital", "file,label\n00.png,a\n", r"labels.csv has no column 'hospital'"),
        (",table=other.csv", "file,label\n00.png,a\n", r"holds no table 'other.csv'"),
        (
            ",table=labels.csv",
            "file,kind\n00.png,a\n",
            r"labels.csv has the columns file, kind, and none is called label",
        ),
        (",classes=a,c", "file,label\n00.png,a\n01.png,b\n", r"has the label 'b', which is not among the classes"),
        (",split=fold", "file,label,fold\n00.png,a,3\n", r"00.png has the split '3': write train, validation or test"),
        (",group=who", "file,label,who\n00.png,a,\n", r"00.png has no who: fill it in"),
        ("", "file,label\n00.png,a\n00.png,b\n", r"labels.csv has 00.png twice, with different entries"),
        ("", "file,label\n00.png\n", r"labels.csv: row 2 has 1 cells, and the header has 2"),
        (",labell=x", "file,label\n00.png,a\n", r"unknown setting 'data.labell' .*did you mean 'label'"),
        (",on_error=ignore", "file,label\n00.png,a\n", r"data.on_error: input should be 'stop' or 'skip'"),
    ],
)
def test_bad_tables_and_settings_get_one_sentence(tmp_path: Path, settings: str, table: str, message: str) -> None:
    write_scans(tmp_path, 4)
    (tmp_path / "labels.csv").write_text(table)
    with pytest.raises(InputError, match=message):
        load(f"folder:{tmp_path}{settings}")


def test_settings_of_tables_are_refused_without_one(tmp_path: Path) -> None:
    for label in "ab":
        write_scans(tmp_path / label, 3)
        (tmp_path / label / "labels.csv").unlink()
    with pytest.raises(InputError, match="holds no table with the column 'diagnosis'"):
        load(f"folder:{tmp_path},label=diagnosis")
    with pytest.raises(InputError, match=r"digits.*leave label out"):
        load("digits,label=x")


def test_classes_of_a_json_table_can_be_numbers(tmp_path: Path) -> None:
    folder = write_scans(tmp_path)
    (folder / "labels.csv").unlink()
    rows = [{"file": f"{number:02}.png", "label": number // 2 % 2} for number in range(12)]
    (folder / "labels.json").write_text(json.dumps(rows))
    bundle = load(f"folder:{folder}")
    assert bundle.classes == ("0", "1")
    assert {**levels(bundle.train), **levels(bundle.test)} == {10 * number: number // 2 % 2 for number in range(12)}


@pytest.mark.parametrize(("name", "text"), [("note.json", "{no"), ("note.csv", ""), ("note.parquet", "no")])
def test_a_file_that_cannot_be_read_does_not_stand_in_the_way(tmp_path: Path, name: str, text: str) -> None:
    folder = write_scans(tmp_path / "listed")
    (folder / name).write_text(text)
    (folder / name).rename(folder / f"a-{name}")  # looked at before labels.csv
    assert load(f"folder:{folder}").classes == ("a", "b")
    for kind in "xyz":
        (tmp_path / "sorted" / kind).mkdir(parents=True)
        for number in range(3):
            Image.fromarray(np.full((8, 8), number, np.uint8)).save(tmp_path / "sorted" / kind / f"{number}.png")
    (tmp_path / "sorted" / name).write_text(text)
    assert load(f"folder:{tmp_path / 'sorted'}").classes == ("x", "y", "z")
    if name == "note.json":
        with pytest.raises(InputError, match=r"note\.json is no JSON"):
            load(f"folder:{tmp_path / 'sorted'},label=kind")


@pytest.mark.parametrize(
    "written",
    [
        "deep\\{0}.png",
        "C:\\scans\\deep\\{0}.png",
        "/other/place/deep/{0}.png",
        "./deep/{0}.png",
        "DEEP/{0}.PNG",
        "{0}.dcm",
        "north/deep/{0}",
    ],
)
def test_paths_in_a_table_may_be_those_of_another_machine(tmp_path: Path, written: str) -> None:
    write_scans(tmp_path / "deep", 8)
    (tmp_path / "deep" / "labels.csv").unlink()
    write_scans(tmp_path / "else", 2)  # a second folder: without the table, folders would be the classes
    rows = [f"{written.format(f'{number:02}')},{'ab'[number % 2]}" for number in range(2, 8)]
    (tmp_path / "labels.csv").write_text("\n".join(["file,label", *rows]) + "\n")
    (tmp_path / "else" / "labels.csv").unlink()
    bundle = load(f"folder:{tmp_path}")
    assert {**levels(bundle.train), **levels(bundle.test)} == {10 * number: number % 2 for number in range(2, 8)}
    assert any(note.startswith("4 images have no class in labels.csv") for note in bundle.notes)


def test_ends_of_paths_that_several_rows_have_are_no_match(tmp_path: Path) -> None:
    write_scans(tmp_path, 4)
    (tmp_path / "labels.csv").write_text("file,label\nnorth/00.png,a\nsouth/00.png,b\n01.png,a\n02.png,b\n")
    with pytest.raises(InputError, match=r"2 files of .*labels.csv do not exist: north/00.png, south/00.png"):
        load(f"folder:{tmp_path}")


def test_folders_are_no_classes_where_a_table_names_other_files(tmp_path: Path) -> None:
    for site in ("north", "south"):
        write_scans(tmp_path / site, 4)
        (tmp_path / site / "labels.csv").unlink()
    (tmp_path / "labels.csv").write_text("file,label\nX1,a\nX2,b\n")
    with pytest.raises(InputError, match=r"labels.csv names none of the 8 files in .*: its first is X1, and the first"):
        load(f"folder:{tmp_path}")


def test_tables_of_splits_are_joined_and_other_two_refused(tmp_path: Path) -> None:
    write_scans(tmp_path, 8)
    (tmp_path / "labels.csv").unlink()
    head, rows = "file,label,patient\n", [f"{number:02}.png,{'ab'[number % 2]},P{number}\n" for number in range(8)]
    (tmp_path / "train.csv").write_text(head + "".join(rows[:6]))
    (tmp_path / "test.csv").write_text(head + "".join(rows[6:]))
    bundle = load(f"folder:{tmp_path},group=patient")
    assert (sorted(levels(bundle.train)), sorted(levels(bundle.test))) == ([0, 10, 20, 30, 40, 50], [60, 70])
    (tmp_path / "test.csv").write_text(head + "".join(rows[5:]))
    with pytest.raises(InputError, match=r"05.png is in several of test.csv, train.csv"):
        load(f"folder:{tmp_path}")
    (tmp_path / "test.csv").rename(tmp_path / "old.csv")
    with pytest.raises(InputError, match=r"several tables of labels \(old.csv, train.csv\): name one, as in table="):
        load(f"folder:{tmp_path}")
    assert len(load(f"folder:{tmp_path},table=train.csv").train) == 4


def test_splits_under_other_names_are_those_splits_and_unknown_ones_refused(tmp_path: Path) -> None:
    folder = write_scans(tmp_path, header="file,label,site,patient,split", extra=",training")
    text = (folder / "labels.csv").read_text().replace("P5,training", "P5,dev").replace("P4,training", "P4,dev")
    (folder / "labels.csv").write_text(text)
    bundle = load(f"folder:{folder}")
    assert sorted(levels(bundle.test)) == [80, 90, 100, 110]  # there is no test split
    assert "there is no test split: the validation split is tested on" in bundle.notes
    (folder / "labels.csv").write_text(text.replace("dev", "hold-out"))
    with pytest.raises(InputError, match=r"08.png has the split 'hold-out': write train, validation or test"):
        load(f"folder:{folder}")


def test_numbers_of_classes_and_a_file_with_their_names(tmp_path: Path) -> None:
    folder = write_scans(tmp_path)
    text = (folder / "labels.csv").read_text().replace(",a,", ",1,").replace(",b,", ",0,")
    (folder / "labels.csv").write_text(text)
    (folder / "names.txt").write_text("zebra\napple\n")
    bundle = load(f"folder:{folder},classes=names.txt")
    assert bundle.classes == ("zebra", "apple")
    assert {**levels(bundle.train), **levels(bundle.test)}[0] == 1
    assert "labels are the numbers of classes: 0 is zebra, 1 is apple" in bundle.notes
    with pytest.raises(InputError, match=r"holds no file 'other.txt', which classes names"):
        load(f"folder:{folder},classes=other.txt")


@pytest.mark.parametrize(
    ("change", "doubt"),
    [
        (("P0", "P0"), "set group=patient"),
        ((",b,", ",A,"), "has the classes 'A' and 'a', which may be one"),
        (("00.png,a", '00.png,"a;b"'), "has the class 'a;b' beside its parts"),
    ],
)
def test_cells_that_are_probably_wrong_are_doubted(tmp_path: Path, change: tuple[str, str], doubt: str) -> None:
    folder = write_scans(tmp_path)
    (folder / "labels.csv").write_text((folder / "labels.csv").read_text().replace(*change))
    assert any(doubt in problem for problem in check(f"folder:{folder}").problems)


def test_a_row_without_a_site_among_others_is_refused(tmp_path: Path) -> None:
    folder = write_scans(tmp_path)
    (folder / "labels.csv").write_text((folder / "labels.csv").read_text().replace(",y,", ",,"))
    with pytest.raises(InputError, match=r"03.png has no site: fill it in"):
        load(f"folder:{folder}")


def test_images_without_classes_get_advice(tmp_path: Path) -> None:
    folder = write_scans(tmp_path, header="picture,kind,site,patient")
    with pytest.raises(InputError, match=r"labels.csv has the columns picture, kind, site, patient: name those"):
        load(f"folder:{folder}")
    (folder / "labels.csv").rename(folder / "labels.xlsx")
    with pytest.raises(InputError, match=r"labels.xlsx cannot be read: save it as .csv"):
        load(f"folder:{folder}")
