"""Metrics from scores against scikit-learn and numbers that can be derived by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, f1_score, precision_score, recall_score, roc_auc_score
from torch import Tensor

from fedstill.tasks.class_metrics import (
    CALIBRATION_BINS,
    SCORE_BINS,
    ScoreSums,
    auc_by_class,
    auc_of_counts,
    calibration_of,
    metrics_from_scores,
    metrics_from_sums,
    multilabel_metrics_from_scores,
    sums_of_scores,
)


def drawn(samples: int, classes: int, seed: int, coarse: bool = False) -> tuple[Tensor, Tensor]:
    """Log-probabilities that are somewhat right; coarse ones have many ties."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (samples,), generator=generator)
    logits = torch.randn(samples, classes, generator=generator)
    logits[torch.arange(samples), labels] += 1.0
    return torch.log_softmax(logits.round() if coarse else logits, dim=1), labels


@pytest.mark.parametrize("coarse", [False, True])
@pytest.mark.parametrize("classes", [2, 5])
def test_metrics_are_those_of_scikit_learn(classes: int, coarse: bool) -> None:
    scores, labels = drawn(300, classes, seed=classes, coarse=coarse)
    found = metrics_from_scores(scores, labels)
    truth, said = labels.numpy(), scores.argmax(dim=1).numpy()
    each = [roc_auc_score(truth == one, scores[:, one].numpy()) for one in range(classes)]
    assert found.by_class["auc"] == pytest.approx(each, abs=1e-12)
    assert found.overall["auc"] == pytest.approx(np.mean(each), abs=1e-12)
    assert found.overall["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(truth, said))
    assert found.overall["f1"] == pytest.approx(f1_score(truth, said, average="macro"))
    assert found.by_class["f1"] == pytest.approx(f1_score(truth, said, average=None))
    assert found.by_class["sensitivity"] == pytest.approx(recall_score(truth, said, average=None))
    assert found.by_class["precision"] == pytest.approx(precision_score(truth, said, average=None))
    others = [recall_score(truth != one, said != one) for one in range(classes)]
    assert found.by_class["specificity"] == pytest.approx(others)


def test_with_two_classes_sensitivity_is_that_of_the_second() -> None:
    scores = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.3, 0.7], [0.6, 0.4], [0.1, 0.9]]).log()
    found = metrics_from_scores(scores, torch.tensor([0, 0, 1, 1, 1]))
    assert found.overall["sensitivity"] == pytest.approx(2 / 3)
    assert found.overall["specificity"] == 0.5
    assert found.overall["balanced_accuracy"] == pytest.approx((2 / 3 + 1 / 2) / 2)


def test_a_class_without_samples_is_left_out() -> None:
    scores, labels = drawn(60, 3, seed=0)
    labels = labels.clamp(max=1)
    found = metrics_from_scores(scores, labels)
    assert found.by_class["auc"][2] is None
    assert found.by_class["sensitivity"][2] is None
    assert found.by_class["f1"][2] == 0.0  # it was predicted, and never right
    assert found.overall["auc"] == pytest.approx(np.mean([found.by_class["auc"][0], found.by_class["auc"][1]]))


def test_one_class_alone_has_no_auc() -> None:
    scores, _ = drawn(10, 3, seed=1)
    assert "auc" not in metrics_from_scores(scores, torch.zeros(10, dtype=torch.int64)).overall


def test_scores_that_are_not_finite_have_no_auc_and_no_calibration() -> None:
    scores, labels = drawn(20, 3, seed=2)
    scores[3] = torch.nan
    found = metrics_from_scores(scores, labels).overall
    assert "auc" not in found
    assert "calibration_error" not in found
    assert 0 < found["f1"] < 1


def test_calibration_error_by_hand() -> None:
    probabilities = torch.tensor([[0.55, 0.45], [0.56, 0.44], [0.95, 0.05], [0.97, 0.03]], dtype=torch.float64)
    labels = torch.tensor([0, 1, 0, 0])
    found = metrics_from_scores(probabilities.log(), labels).overall["calibration_error"]
    # 0.55 and 0.56 are in one bin (8/15 to 9/15), 0.95 and 0.97 in the last: |1.11 - 1| and |1.92 - 2|, over four
    assert found == pytest.approx((0.11 + 0.08) / 4)


def test_bins_of_confidence_include_their_upper_limits() -> None:
    certain = torch.tensor([[1.0, 0.0]], dtype=torch.float64).log()
    bins = calibration_of(certain, torch.tensor([0]))
    assert bins[:, -1].tolist() == [1.0, 1.0, 1.0]
    assert bins.shape == (3, CALIBRATION_BINS)


@pytest.mark.parametrize("classes", [2, 4])
def test_sums_of_sites_give_the_metrics_of_all_samples(classes: int) -> None:
    scores, labels = drawn(400, classes, seed=7)
    parts = [sums_of_scores(scores[rows], labels[rows]) for rows in (slice(0, 90), slice(90, 400))]
    fields = ("outcomes", "calibration", "positives", "negatives")
    together = ScoreSums(*(sum(getattr(one, name) for one in parts) for name in fields))
    found, exact = metrics_from_sums(together).overall, metrics_from_scores(scores, labels).overall
    for name in ("balanced_accuracy", "f1", "sensitivity", "specificity", "calibration_error"):
        assert found[name] == pytest.approx(exact[name], abs=1e-12)
    assert found["auc"] == pytest.approx(exact["auc"], abs=2e-3)
    assert found["auc"] != exact["auc"]  # scores are rounded to bins


def test_bins_keep_the_order_of_confident_scores() -> None:
    """Probabilities of 0.9999 and 0.99999 are in different bins."""
    high = torch.tensor([[0.9999, 1e-4], [0.99999, 1e-5]], dtype=torch.float64).log()
    sums = sums_of_scores(high, torch.tensor([1, 0]))
    assert auc_of_counts(sums.positives, sums.negatives).tolist() == [1.0, 1.0]


def test_certain_scores_fall_into_the_outer_bins() -> None:
    sums = sums_of_scores(torch.tensor([[1.0, 0.0], [0.0, 1.0]]).log(), torch.tensor([0, 1]))
    assert sums.positives[0, -1] == 1
    assert sums.negatives[0, 0] == 1


def test_auc_does_not_depend_on_the_scale_of_scores() -> None:
    scores, labels = drawn(100, 3, seed=3)
    truth = torch.nn.functional.one_hot(labels, 3).bool()
    assert torch.equal(auc_by_class(scores, truth), auc_by_class(scores.double().exp(), truth))


def test_metrics_of_several_labels_are_those_of_scikit_learn() -> None:
    generator = torch.Generator().manual_seed(5)
    targets = torch.randint(2, (200, 4), generator=generator)
    logits = torch.randn(200, 4, generator=generator) + targets
    found = multilabel_metrics_from_scores(logits, targets)
    truth, said = targets.numpy(), (logits > 0).numpy()
    assert found.overall["auc"] == pytest.approx(roc_auc_score(truth, logits.numpy(), average="macro"))
    assert found.overall["f1"] == pytest.approx(f1_score(truth, said, average="macro"))
    assert found.by_class["sensitivity"] == pytest.approx(recall_score(truth, said, average=None))
    assert 0 < found.overall["calibration_error"] < 1


def test_a_label_that_every_sample_has_leaves_no_auc() -> None:
    targets = torch.tensor([[1, 0], [1, 1]])
    found = multilabel_metrics_from_scores(torch.tensor([[1.0, -1.0], [1.0, 1.0]]), targets)
    assert found.by_class["auc"] == [None, 1.0]
    assert found.by_class["specificity"] == [None, 1.0]


def test_a_probability_that_is_rounded_above_one_is_in_the_last_bin() -> None:
    said = torch.tensor([[1e-7, -20.0], [-20.0, -2e-9]])
    sums = sums_of_scores(said, torch.tensor([0, 1]))
    assert sums.positives.argmax(dim=1).tolist() == [SCORE_BINS - 1] * 2
