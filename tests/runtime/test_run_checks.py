"""A run's own sanity checks: what they warn of, and that honest runs are left alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import fedstill
from fedstill.core.dataset import ArrayDataset, Subset, as_floats
from fedstill.core.records import DataCheck, RunChecks
from fedstill.report.facts import Facts
from fedstill.report.opening import run_cautions
from fedstill.runtime import data_check
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.cautions import EndedRun, cautions
from fedstill.runtime.data_check import checked_data, repetitions
from fedstill.runtime.run_checks import baseline_sentence, majority_share, skipped_files

from ..records_by_hand import METRICS, round_record, run_result

EQUAL = [250] * 4


def told(
    last: float = 0.8,
    best: float | None = None,
    by_class: float | None = None,
    counts: list[int] | None = None,
    data: DataCheck | None = None,
    every_round: dict[str, Any] | None = None,
    **round_facts: Any,
) -> str:
    """The warnings about a run with these accuracies on 1,000 test samples."""
    best = last if best is None else best
    by_class = last if by_class is None else by_class
    result = run_result(
        accuracy={"last": last, "best": best},
        class_accuracy={"last": by_class, "best": by_class},
        round_of={"last": 2, "best": 1},
    )
    journal = [round_record(1, **(every_round or {})), round_record(2, **(every_round or {}), **round_facts)]
    checks = RunChecks(class_counts=EQUAL if counts is None else counts, data=data)
    ended = EndedRun(make_experiment({"method": "fedavg"}), result, journal, checks)
    return "; ".join(cautions(ended)).replace("\u00a0", " ")


def test_an_honest_run_is_left_alone() -> None:
    assert told() == ""
    assert told(0.8, best=0.84) == ""
    assert told(0.8, by_class=0.7) == ""
    assert told(data=DataCheck(train=500, test=100, shared=0, train_repeats=30, test_repeats=1)) == ""


def test_predictions_that_say_nothing() -> None:
    assert "every round was skipped" in told(every_round={"skipped": "0 of 3 replies"})
    assert "not finite after the last round" in told(finite=False)
    assert "the same class for every test sample" in told(test={**METRICS, "constant": 1.0})


def test_a_last_round_far_below_the_best() -> None:
    assert "the last round is 9.0 points below the best, round 1" in told(0.8, best=0.89)
    # On 40 samples 9 points are four of them, which is noise.
    assert told(0.8, best=0.89, counts=[10] * 4) == ""


def test_accuracy_that_the_most_frequent_class_explains() -> None:
    assert "the accuracy of 72.00 % is not clearly above 70.00 %" in told(0.72, counts=[700, 300])
    carried = told(0.85, by_class=0.6, counts=[700, 300])
    assert "frequent classes carry the accuracy: 85.00 % of the samples, 60.00 % on average over classes" in carried
    assert told(0.85, by_class=0.8, counts=[700, 300]) == ""
    assert told(0.1, counts=[]) == ""  # a segmentation has no class for each sample


def test_test_samples_that_were_trained_on() -> None:
    shared = DataCheck(train=500, test=100, shared=3, train_repeats=0, test_repeats=4)
    found = told(data=shared)
    assert "3 of 100 test samples are among the training samples" in found
    assert "4 of 100 test samples repeat others" in found
    assert told(data=DataCheck(train=5, test=3, not_checked="too large")) == ""


def test_repeated_samples_are_counted_by_their_inputs() -> None:
    train = ArrayDataset(inputs=torch.tensor([[1.0], [2.0], [2.0], [3.0]]), labels=torch.tensor([0, 1, 0, 1]))
    test = ArrayDataset(inputs=torch.tensor([[2.0], [2.0], [4.0]]), labels=torch.tensor([0, 0, 1]))
    found = repetitions(train, test)
    assert (found.shared, found.train_repeats, found.test_repeats) == (2, 1, 1)
    assert (found.train, found.test, found.not_checked) == (4, 3, None)


@pytest.mark.parametrize("kinds", [("bytes", "bytes"), ("bytes", "floats"), ("floats", "floats")])
def test_however_inputs_are_stored_the_same_ones_repeat(kinds: tuple[str, str]) -> None:
    """Images of which one part is stored as bytes and the other as the floats that are made of them."""
    rows = torch.tensor([[0, 1], [255, 1], [0, 1], [7, 7], [0, 2]], dtype=torch.uint8).view(5, 1, 1, 2)
    parts = [
        ArrayDataset(inputs=inputs if kind == "bytes" else as_floats(inputs))
        for inputs, kind in zip((rows, rows.flip(0)[:3]), kinds, strict=True)
    ]
    found = repetitions(Subset(parts[0], torch.tensor([3, 0, 2])), Subset(parts[1], torch.arange(3)))
    assert (found.shared, found.train_repeats, found.test_repeats) == (2, 1, 0)
    empty = repetitions(Subset(parts[0], torch.arange(0)), parts[1])
    assert (empty.train, empty.shared, empty.train_repeats) == (0, 0, 0)


def test_data_that_is_too_large_is_said_not_to_be_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    data = ArrayDataset(inputs=torch.zeros(4, 2))
    monkeypatch.setattr(data_check, "VALUES", 15)
    found = checked_data("too large", Subset(data, torch.arange(4)), data, (2,))
    assert found.not_checked == "16 values in all samples, and up to 15 are checked"
    assert "were not looked for in the training data (16 values" in str(
        baseline_sentence(RunChecks(class_counts=[], data=found))
    )


def test_the_majority_class_is_the_baseline() -> None:
    assert majority_share(RunChecks(class_counts=[1, 3])) == 0.75
    assert majority_share(None) is majority_share(RunChecks(class_counts=[])) is None
    assert baseline_sentence(RunChecks(class_counts=[1, 3])) == "the most frequent class alone would score 75.00\u00a0%"


def test_a_run_keeps_and_shows_its_checks(tmp_path: Path) -> None:
    """Ten of twenty test samples are copied from the training data; Python, JSON and the second look agree."""
    draw = np.random.default_rng(0)
    inputs, labels = draw.normal(size=(60, 4)).astype(np.float32), np.arange(60) % 3
    test = np.concatenate([inputs[:10], draw.normal(size=(10, 4)).astype(np.float32)])
    data = {"train": (inputs, labels), "test": (test, np.arange(20) % 3)}
    run = fedstill.run("fedavg", data=data, model="mlp", clients=2, rounds=1, out=tmp_path)
    assert run.checks is not None
    assert run.checks.class_counts == [7, 7, 6]
    assert run.checks.data == DataCheck(train=60, test=20, shared=10, train_repeats=0, test_repeats=0)
    assert any("10 of 20 test samples are among the training samples" in text for text in run.cautions)
    assert run.to_dict()["cautions"] == run.cautions
    assert [one.ok for one in fedstill.verify(run)] == [True]
    (run.path / "checks.json").unlink()
    assert not any("among the training samples" in text for text in fedstill.Run(run.path).cautions)


class Heard:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def on_warning(self, text: str) -> None:
        self.warnings.append(text)


def test_doubts_about_data_begin_a_run_and_stay_with_it(tmp_path: Path) -> None:
    """A column of patients without `group`, and a file that was skipped: in the run, in JSON and in the report."""
    rows = ["file,label,patient"]
    for number in range(12):
        Image.fromarray(np.full((8, 8), 20 * number, dtype=np.uint8)).save(tmp_path / f"{number}.png")
        rows.append(f"{number}.png,{'ab'[number % 2]},P{number // 3}")
    (tmp_path / "labels.csv").write_text("\n".join([*rows, "gone.png,a,P9"]) + "\n")
    heard = Heard()
    data = f"folder:{tmp_path},on_error=skip"
    run = fedstill.run("fedavg", data=data, model="mlp", clients=2, rounds=1, out=tmp_path / "runs", callbacks=[heard])
    advice = [text for text in run.cautions if "set group=patient" in text]
    assert len(advice) == 1
    assert [text for text in heard.warnings if text in advice] == advice  # once, though it is a caution at the end, too
    assert run.checks is not None
    skipped = f"left out, as on_error=skip says (1): gone.png of {tmp_path}/labels.csv does not exist"
    assert skipped_files(run.checks) == [skipped]
    assert run.checks.doubts == advice
    assert any(text.endswith(skipped) for text in run_cautions([Facts.of("fedavg", run)]))
