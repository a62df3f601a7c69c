"""Confusion matrices and figures of single classes, against predictions written by hand."""

from __future__ import annotations

from typing import cast

import pytest

from fedstill.core.metric_records import ModelMetrics
from fedstill.report.classes import classes_section
from fedstill.runtime.result import Run


class Kept:
    """What the section reads of a run."""

    def __init__(
        self, truth: list[int] | None, said: list[int] | None, classes: tuple[str, ...] = ("a", "b", "c")
    ) -> None:
        self.test_labels, self.said, self.config = truth, said, {"classes": classes}
        self.metrics: dict[str, ModelMetrics] = {}

    def predictions(self, which: str) -> list[int] | None:
        assert which == "last"
        return self.said


def test_a_matrix_by_hand() -> None:
    """Of two a one is taken for b; b is right; of two c one has no finite output."""
    section = classes_section(cast("dict[str, Run]", {"one": Kept([0, 0, 1, 2, 2], [0, 1, 1, 2, -1])}))
    (figure,) = section.figures
    assert figure.data[0]["z"] == [[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.5]]
    assert "lowest recall is a (50.0\u00a0%)" in figure.sentence
    (table,) = section.tables
    rows = {row[0].value: [cell.value for cell in row[2:]] for row in table.cells}
    assert rows["a"] == [2, 0.5, 1.0, "b (1)"]
    assert rows["b"] == [1, 1.0, pytest.approx(0.5), ""]
    assert rows["c"] == [2, 0.5, 1.0, "no finite output"]


def test_runs_without_such_predictions_are_counted() -> None:
    both = {"one": Kept([0, 1, 2], [0, 1, 2]), "scenes": Kept(None, None)}
    assert "1 of 2 runs keep no predictions" in classes_section(cast("dict[str, Run]", both)).about
    assert classes_section(cast("dict[str, Run]", {"scenes": Kept(None, None)})).empty


def test_many_classes_have_a_table_and_no_matrix() -> None:
    names = tuple(f"c{number}" for number in range(61))
    section = classes_section(cast("dict[str, Run]", {"one": Kept(list(range(61)), list(range(61)), names)}))
    assert section.figures == []
    assert len(section.tables[0].cells) == 61
