"""Histories: rows, columns and data frames."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from fedstill.core.errors import InputError
from fedstill.runtime.history import History

from ..records_by_hand import personal_metrics, round_record


def made(*records: Any, seconds: tuple[float, ...] = (1.5, 2.5)) -> History:
    return History.of(records, seconds)


def test_rows_and_columns_of_what_was_recorded() -> None:
    failed = {"client": 1, "reason": "dropped", "detail": "it left"}
    history = made(
        round_record(1, 3, test=None, failures=[failed]),
        round_record(2, 3, loss={"ce": 1.0, "kd": 0.5}, method_metrics={"epsilon": 2.0}),
    )
    assert history["accuracy"] == [None, 0.5]
    assert history["training_loss"] == [2.0, 1.5]
    assert history["training_loss.kd"] == [None, 0.5]
    assert history["method.epsilon"] == [None, 2.0]
    assert history["failures"] == [1, 0]
    first, second = history
    assert (first["sampled"], first["bytes_up"], first["bytes_down"], first["seconds"]) == (3, 3072, 6144, 1.5)
    assert list(second) == list(first) == list(history.columns)
    assert [row["round"] for row in history[1:]] == [2]
    assert history[-1] == second
    assert len(history) == 2


def test_further_models_and_times_that_are_not_known() -> None:
    evaluation = {
        "finite": True,
        "test": {"accuracy": 0.25},
        "validation": {"accuracy": 0.75},
        "personal": personal_metrics(mean=0.625),
        "extra_models": {"teacher": {"accuracy": 1.0}},
        "negative_variances": 0.0,
    }
    history = made(round_record(1, evaluation=evaluation), round_record(2), round_record(3))
    assert history["seconds"] == [1.5, 2.5, None]
    assert history["validation.accuracy"] == [0.75, None, None]
    assert history["personal.mean"][0] == 0.625
    assert history["extra_models.teacher.accuracy"][0] == 1.0
    assert len(made(round_record(1))) == 1, "times of rounds that a journal has lost do not count"


def test_an_unknown_column_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(InputError, match="the history has no column 'acuracy': did you mean 'accuracy'"):
        made(round_record())["acuracy"]


def test_what_is_shown() -> None:
    history = made(round_record(1), round_record(2))
    assert repr(history).startswith("History(two rounds: round, accuracy, class_accuracy, loss,")
    shown = history._repr_html_()
    assert shown.count("<tr>") == 3
    assert "50.00\xa0%" in shown
    assert repr(History([])) == "History(no rounds: )"
    assert "<table" in History([])._repr_html_()


def test_a_data_frame_has_the_same_columns_and_numbers() -> None:
    frame = made(round_record(1, test=None), round_record(2)).to_pandas()
    assert list(frame["round"]) == [1, 2]
    assert frame["accuracy"].isna().tolist() == [True, False]
    assert frame["accuracy"].iloc[1] == 0.5


def test_without_pandas_a_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match=r"data frames need pandas: pip install 'fedstill\[pandas\]'"):
        made(round_record()).to_pandas()
