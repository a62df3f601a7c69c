from __future__ import annotations

from pathlib import Path

import pytest

from fedstill.core.errors import InputError
from fedstill.data.readers.text_table import read_text_table


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "file,label\n1.png,ß\n"),
        ("a.csv", "file;label\r\n1.png;ß\r\n"),
        ("a.csv", "file|label\n1.png|ß\n"),
        ("a.csv", "sep=;\nfile;label;\n1.png;ß;\n"),
        ("a.tsv", "file\tlabel\n1.png\tß\n"),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "utf-16"])
def test_usual_forms_of_tables_give_the_same_cells(tmp_path: Path, name: str, text: str, encoding: str) -> None:
    (tmp_path / name).write_bytes(text.encode(encoding))
    table = read_text_table(tmp_path / name)
    assert table.columns == ("file", "label")
    assert table.rows == (("1.png", "ß"),)
    assert table.column("LABEL") == ["ß"]


def test_a_quoted_cell_may_hold_the_separator_and_a_line_break(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('file,label\n"a,b.png","two\nlines"\n')
    assert read_text_table(tmp_path / "a.csv").rows == (("a,b.png", "two\nlines"),)


def test_parquet_holds_the_same_cells(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    held = {"file": ["1.png", "2.png"], "label": [0, 1], "age": [1.5, None]}
    parquet.write_table(arrow.table(held), tmp_path / "a.parquet")
    table = read_text_table(tmp_path / "a.parquet")
    assert table.rows == (("1.png", "0", "1.5"), ("2.png", "1", ""))
    (tmp_path / "a.parquet").write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"a\.parquet is no Parquet file"):
        read_text_table(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"t\.csv is empty \(0 bytes\)"),
        ("\n\n", r"t\.csv holds no header"),
        ("a,b\n1\n", r"t\.csv: row 2 has 1 cells, and the header has 2"),
        ("a,A\n1,2\n", r"t\.csv has several columns called 'a'"),
    ],
)
def test_a_bad_table_is_refused_with_its_row(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        read_text_table(tmp_path / "t.csv")


def test_columns_that_look_like_patients_are_found(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("file,Patient_ID,scan_id,site,visit\na,1,1,x,1\nb,1,2,x,2\nc,2,3,y,3\n")
    assert read_text_table(tmp_path / "t.csv").like_groups() == ["Patient_ID"]
