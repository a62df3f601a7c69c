"""Bootstrap intervals: against metrics of resampled tensors, in coverage, and in what they leave out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedstill.tasks.class_intervals import _Weighted, bootstrap_intervals, resamples_for
from fedstill.tasks.class_metrics import metrics_from_scores

from .test_class_metrics import drawn


@pytest.mark.parametrize("coarse", [False, True])
@pytest.mark.parametrize("classes", [2, 4])
def test_weights_give_what_repeated_samples_give(classes: int, coarse: bool) -> None:
    scores, labels = drawn(60, classes, seed=classes, coarse=coarse)
    rows = np.random.default_rng(0).integers(60, size=(5, 60))
    weights = np.stack([np.bincount(one, minlength=60) for one in rows]).astype(float)
    found = _Weighted(scores.double().numpy(), labels.numpy())(weights)
    for number, one in enumerate(rows):
        exact = metrics_from_scores(scores[one], labels[one]).overall
        for name, value in exact.items():
            assert found[name][number] == pytest.approx(value, abs=1e-6), name
        right = (scores[one].argmax(dim=1) == labels[one]).double().mean()
        assert found["accuracy"][number] == pytest.approx(float(right))


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    """Of accuracy, whose truth is known: scores are right with probability 0.8."""
    held = 0
    for seed in range(60):
        generator = np.random.default_rng(seed)
        labels = torch.from_numpy(generator.integers(2, size=120))
        right = torch.from_numpy(generator.random(120) < 0.8)
        said = torch.where(right, labels, 1 - labels)
        confident = torch.from_numpy(generator.uniform(0.55, 0.95, 120))
        scores = torch.stack([torch.where(said == one, confident, 1 - confident) for one in (0, 1)], dim=1).log()
        low, high = bootstrap_intervals(scores, labels, generator)["accuracy"]
        held += low <= 0.8 <= high
    assert held >= 52  # 57 are expected; fewer than 52 in one of 60 tries


def test_the_same_stream_gives_the_same_interval() -> None:
    scores, labels = drawn(50, 3, seed=1)
    found = [bootstrap_intervals(scores, labels, np.random.default_rng(seed)) for seed in (0, 0, 1)]
    assert found[0] == found[1] != found[2]
    value = metrics_from_scores(scores, labels).overall["auc"]
    low, high = found[0]["auc"]
    assert low < value < high


def test_a_metric_that_no_draw_defines_has_no_interval() -> None:
    scores, _ = drawn(20, 3, seed=2)
    assert "auc" not in bootstrap_intervals(scores, torch.zeros(20, dtype=torch.int64), np.random.default_rng(0))


def test_large_test_sets_are_resampled_less_often() -> None:
    sizes = ((100, 2), (10_000, 5), (10_000, 10), (10_000, 1000))
    assert [resamples_for(*size) for size in sizes] == [400, 200, 100, 60]


@pytest.mark.parametrize("sharpness", [1.0, 2.5])
def test_intervals_of_the_calibration_error_hold_the_true_one(sharpness: float) -> None:
    """Of a calibrated model, whose error is 0 and 0.11 on 60 samples, and of one that is too sure."""

    def drawn(count: int, generator: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        logits = torch.from_numpy(generator.normal(size=(count, 2)) * 1.5)
        labels = torch.from_numpy(generator.random(count)) > logits.softmax(dim=1)[:, 0]
        return (sharpness * logits).log_softmax(dim=1), labels.long()

    many = metrics_from_scores(*drawn(200_000, np.random.default_rng(99)))
    true = many.overall["calibration_error"]
    held = 0
    for seed in range(25):
        generator = np.random.default_rng(seed)
        low, high = bootstrap_intervals(*drawn(60, generator), generator)["calibration_error"]
        held += low <= true + 1e-3 and true <= high
    assert held >= 21, f"{held} of 25 intervals"


def test_no_interval_is_without_width() -> None:
    """Eight right answers of eight: the lower limit of Clopper and Pearson is 0.025^(1/8) = 0.63, of four 0.40."""
    labels = torch.tensor([0, 1] * 4)
    scores = torch.where(torch.nn.functional.one_hot(labels, 2).bool(), 0.9, 0.1).log()
    found = bootstrap_intervals(scores, labels, np.random.default_rng(0))
    for name, low in (("accuracy", 0.6306), ("balanced_accuracy", 0.6306), ("sensitivity", 0.3976), ("auc", 0.3976)):
        assert found[name] == (pytest.approx(low, abs=1e-4), 1.0), name
    wrong = bootstrap_intervals(scores, 1 - labels, np.random.default_rng(0))
    assert wrong["accuracy"] == (0.0, pytest.approx(1 - 0.6306, abs=1e-4))
    several = bootstrap_intervals(
        20 * (labels[:, None] - 0.5).expand(8, 2), labels[:, None].expand(8, 2) > 0, np.random.default_rng(0)
    )
    assert several["auc"] == (pytest.approx(0.3976, abs=1e-4), 1.0)
