from __future__ import annotations

from typing import Any

from fedstill.queries.study_table import has_queries, query_table, query_tables
from fedstill.studies.results import ResultRow, Results

NAMES = ("accuracy", "before", "gain", "forgetting", "uniform", "rounds", "bytes", "clients")
MIB = 2**20
# By queries, method and seed: shares, then rounds, bytes and clients.
FIGURES: dict[tuple[str, ...], tuple[float | None, ...]] = {
    ("single", "local", "1"): (0.4, 0.4, None, None, 0.5, 1, MIB / 2, 10),
    ("single", "local", "2"): (0.5, 0.5, None, None, 0.6, 1, MIB / 2, 10),
    ("single", "qkt", "1"): (0.7, 0.4, 0.8, -0.1, 0.6, 1, 3 * MIB, 10),
    ("single", "qkt", "2"): (0.8, 0.5, 0.6, -0.3, 0.7, 1, 3 * MIB, 10),
    ("multi", "qkt", "1"): (0.6, 0.2, 0.5, -0.4, 0.5, 1, 3 * MIB, 10),
}


def results(figures: dict[tuple[str, ...], tuple[float | None, ...]] = FIGURES, **changes: Any) -> Results:
    axes: dict[str, dict[str, Any]] = {
        "queries": {"single": 0, "multi": 0},
        "method": {"local": 0, "qkt": 0},
        "seed": {"1": 1, "2": 2},
    }
    runs = {
        cell: ResultRow("0", {f"query.{name}": value for name, value in zip(NAMES, line, strict=True)})
        for cell, line in figures.items()
    }
    return Results("asking", "", {}, axes, **{"columns": None, "rows": (), "runs": runs, **changes})


def test_a_line_for_every_combination() -> None:
    """Means of two seeds and their sample deviation: of 0.7 and 0.8 that is 0.0707."""
    table = query_table(results())
    assert table is not None
    assert table.header == ("queries", "method", "accuracy", "gain", "forgetting", "uniform", "rounds", "MiB")
    assert table.labels == 2
    assert table.rows == (
        ("single", "local", "45.00 ± 7.07 (2)", "–", "–", "55.00 ± 7.07", "1", "0.50"),  # noqa: RUF001
        ("", "qkt", "75.00 ± 7.07 (2)", "70.00 ± 14.14", "-20.00 ± 14.14", "65.00 ± 7.07", "1", "3.00"),
        ("multi", "local", "–", "–", "–", "–", "–", "–"),  # noqa: RUF001
        ("", "qkt", "60.00 (1)", "50.00", "-40.00", "50.00", "1", "3.00"),
    )
    assert "queries of ten clients, in %" in table.caption
    assert "over two seeds" in table.caption
    assert "not known" not in table.caption


def test_parts_are_the_whole() -> None:
    parts = query_tables(results(), narrow=True)
    assert list(parts) == [("single",), ("multi",)]
    assert parts["single",].rows[1][:3] == ("qkt", "75.00±7.07 (2)", "70.00±14.14")


def test_what_other_tables_show_across_comes_first() -> None:
    table = query_table(results(columns="method", rows=("queries",)))
    assert table is not None
    assert table.header[:2] == ("method", "queries")
    table = query_table(results(rows=("method", "queries")))
    assert table is not None
    assert [row[:2] for row in table.rows[:2]] == [("local", "single"), ("", "multi")]


def test_what_cannot_be_compared_is_said() -> None:
    lonely = {("single", "qkt", "1"): (0.7, None, None, None, 0.6, 1, MIB, 10)}
    table = query_table(results(lonely, failures={("single", "local", "1"): "no luck"}))
    assert table is not None
    assert table.rows[0][2:] == ("failed",) * 6
    assert table.rows[1] == ("", "qkt", "70.00", "–", "–", "60.00", "1", "1.00")  # noqa: RUF001
    assert table.caption.endswith(
        ". What clients could do before is not known of qkt: no finished run of local-only in the study has the same"
        " clients"
    )


def test_how_many_asked_is_a_column_where_it_differs() -> None:
    some = {**FIGURES, ("multi", "local", "1"): (0.1, 0.1, None, None, 0.1, 1, MIB, 4)}
    table = query_table(results(some))
    assert table is not None
    assert table.header[-1] == "clients"
    assert [row[-1] for row in table.rows] == ["10", "10", "4", "10"]


def test_a_study_in_which_nobody_asks_has_no_such_table() -> None:
    silent = results({})
    assert not has_queries(silent)
    assert query_table(silent) is None
    assert query_tables(silent) == {}


def test_a_single_run_is_a_table_too() -> None:
    axes = {"seed": {"7": 7}}
    runs = {("7",): ResultRow("0", {f"query.{name}": 1.0 for name in NAMES})}
    table = query_table(Results("asking", "", {}, axes, None, (), runs))
    assert table is not None
    assert table.rows == (("100.00",) * 4 + ("1", "0.00"),)
