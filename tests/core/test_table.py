"""One model of a table: what is shown of it, and its Markdown."""

from __future__ import annotations

from fedstill.core.table import Cell, Column, make_table, text, text_table, whole


def test_columns_in_which_nothing_is_are_left_out() -> None:
    columns = (
        Column[tuple[str, int]]("Name", "name", lambda row: text(row[0]), right=False),
        Column[tuple[str, int]]("Lost", "lost", lambda row: whole(row[1]), always=False),
    )
    whole_table = make_table("runs", "Runs", columns, [("a", 1200), ("b", 0)], "read it so")
    assert (whole_table.id, whole_table.caption, whole_table.note) == ("runs", "Runs", "read it so")
    assert whole_table.header == ("Name", "Lost")
    assert whole_table.rows == (("a", "1,200"), ("b", "0"))
    assert whole_table.cells[0][1] == Cell("1,200", 1200)
    assert make_table("runs", "Runs", columns, [("a", 0)]).header == ("Name",)


def test_alignment_and_width() -> None:
    """Three, two blanks, and five characters."""
    made = text_table("All", ("a", "b"), [("xyz", "1"), ("", "12345")], right=(1,))
    assert (made.right, made.labels, made.width) == ((1,), 1, 10)
    assert text_table("All", ("a", "b"), [], right=()).labels == 2


def test_markdown_keeps_alignment_and_escapes_bars() -> None:
    made = text_table("All of it", ("name", "what"), [("a|b", "1")], right=(1,))
    assert made.markdown() == "All of it.\n\n| name | what |\n| --- | ---: |\n| a\\|b | 1 |\n"
