"""Metrics of classifiers beside accuracy: AUC, balanced accuracy, F1, sensitivity, specificity, calibration error.

`metrics_from_scores` is for samples with one class, `multilabel_metrics_from_scores` for samples with any number of
them. Both are exact, ties included. Sites that may not send scores send `ScoreSums`, which add up: counts and
calibration are exact, the AUC is that of scores rounded to `SCORE_BINS` agreed bins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

SCORE_BINS = 1024  # of log-odds, in which sites count their scores
CALIBRATION_BINS = 15  # of confidence, of equal width
_LOG_ODDS = 16.0  # log-odds beyond this are in the first and last bin
NAMES: Mapping[str, str] = {
    "auc": "AUC",
    "balanced_accuracy": "balanced accuracy",
    "f1": "F1",
    "sensitivity": "sensitivity",
    "specificity": "specificity",
    "calibration_error": "calibration error",
}
LOWER_IS_BETTER = frozenset({"calibration_error"})


@dataclass(frozen=True)
class ClassMetrics:
    """Metrics over classes and of each class; what is not defined is left out, or None in the list of a class.

    `overall` has means over the classes for which a metric is defined; with two classes, sensitivity and specificity
    are those of the second. `by_class` has one value for each class.
    """

    overall: Mapping[str, float]
    by_class: Mapping[str, list[float | None]]


@dataclass(frozen=True)
class ScoreSums:
    """Counts that add up over sites."""

    outcomes: Tensor  # (4, classes): true positives, false positives, false negatives, true negatives
    calibration: Tensor  # (3, bins): samples, sum of confidences, right answers
    positives: Tensor  # (classes, bins): samples of the class by score
    negatives: Tensor  # (classes, bins): the other samples by score


def metrics_from_scores(scores: Tensor, labels: Tensor) -> ClassMetrics:
    """Metrics of log-probabilities (samples, classes) and the class of every sample.

    >>> said = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.7, 0.3], [0.2, 0.8]]).log()
    >>> found = metrics_from_scores(said, torch.tensor([0, 0, 1, 1]))
    >>> found.overall["auc"], found.overall["sensitivity"], found.overall["specificity"]
    (0.75, 0.5, 1.0)
    >>> found.by_class["auc"], round(found.overall["calibration_error"], 6)  # 0.1, 0.4, 0.7 and 0.2, over four
    ([0.75, 0.75], 0.35)
    """
    confusion = confusion_of(scores, labels)
    if _broken(scores).any():  # they cannot be ordered
        return _metrics(outcomes_of(confusion), None, None)
    truth = torch.nn.functional.one_hot(labels, scores.shape[1]).bool()
    return _metrics(outcomes_of(confusion), auc_by_class(scores, truth), calibration_of(scores, labels))


def multilabel_metrics_from_scores(logits: Tensor, targets: Tensor) -> ClassMetrics:
    """Metrics of logits (samples, classes) and targets of the same shape; positive logits predict a class.

    Calibration is that of all predictions of a class for a sample, with the confidence of the more probable answer.

    >>> found = multilabel_metrics_from_scores(torch.tensor([[2.0, 1.0], [-1.0, 3.0]]), torch.tensor([[1, 0], [0, 1]]))
    >>> found.by_class["sensitivity"], found.by_class["specificity"], found.by_class["auc"]
    ([1.0, 1.0], [1.0, 0.0], [1.0, 1.0])
    """
    truth, said = targets.bool(), logits > 0
    counts = torch.stack([(truth & said), (~truth & said), (truth & ~said), (~truth & ~said)]).sum(dim=1)
    if logits.isnan().any():  # they cannot be ordered
        return _metrics(counts, None, None, several=True)
    confidence, right = torch.sigmoid(logits.double().abs()), truth == said
    calibration = _calibration(confidence.flatten(), right.flatten())
    return _metrics(counts, auc_by_class(logits, truth), calibration, several=True)


def multilabel_sums_of_scores(logits: Tensor, targets: Tensor) -> ScoreSums:
    """What a site sends of such logits; those that are no numbers count as wrong and in no bin.

    >>> sums = multilabel_sums_of_scores(torch.tensor([[2.0, 1.0], [-1.0, 3.0]]), torch.tensor([[1, 0], [0, 1]]))
    >>> metrics_from_sums(sums, several=True).by_class["auc"]
    [1.0, 1.0]
    """
    truth, said, known = targets.bool(), logits > 0, ~logits.isnan()
    counts = torch.stack([(truth & said), (~truth & said), (truth & ~said), (~truth & ~said)]).sum(dim=1)
    confidence, right = torch.sigmoid(logits.double().abs()), truth == said
    places = _bins_of_odds(logits.double())
    positives, negatives = (
        torch.stack(
            [
                torch.bincount(places[chosen[:, one] & known[:, one], one], minlength=SCORE_BINS)
                for one in range(logits.shape[1])
            ]
        )
        for chosen in (truth, ~truth)
    )
    return ScoreSums(counts, _calibration(confidence[known], right[known]), positives, negatives)


def sums_of_scores(scores: Tensor, labels: Tensor) -> ScoreSums:
    """What a site sends of log-probabilities (samples, classes): nothing of a single sample but its bins.

    >>> sums = sums_of_scores(torch.tensor([[0.9, 0.1], [0.2, 0.8]]).log(), torch.tensor([0, 1]))
    >>> metrics_from_sums(sums).overall["auc"]
    1.0
    """
    classes = scores.shape[1]
    outcomes, whole = outcomes_of(confusion_of(scores, labels)), ~_broken(scores)
    scores, labels = scores[whole], labels[whole]
    truth = torch.nn.functional.one_hot(labels, classes).bool()
    places = _score_bins(scores) + torch.arange(classes) * SCORE_BINS
    counted = [
        torch.bincount(places[chosen], minlength=classes * SCORE_BINS).view(classes, SCORE_BINS)
        for chosen in (truth, ~truth)
    ]
    return ScoreSums(outcomes, calibration_of(scores, labels), *counted)


def metrics_from_confusion(confusion: Tensor) -> ClassMetrics:
    """The metrics that a confusion matrix (rows: truth) gives alone."""
    return _metrics(outcomes_of(confusion), None, None)


def metrics_from_sums(sums: ScoreSums, several: bool = False) -> ClassMetrics:
    """The metrics of all samples that were counted, at one site or at several; `several` classes for a sample."""
    return _metrics(sums.outcomes, auc_of_counts(sums.positives, sums.negatives), sums.calibration, several)


def metrics_from_outcomes(outcomes: Tensor) -> ClassMetrics:
    """The metrics that outcomes (4, classes) give alone, of samples with any number of classes."""
    return _metrics(outcomes, None, None, several=True)


def auc_by_class(scores: Tensor, truth: Tensor) -> Tensor:
    """One-against-rest area under the ROC curve; ties count half, NaN for a class with no or only such samples.

    >>> auc_by_class(torch.tensor([[1.0], [2.0], [2.0], [3.0]]), torch.tensor([[0], [0], [1], [1]]).bool()).tolist()
    [0.875]
    """
    found = []
    for score, chosen in zip(scores.unbind(dim=1), truth.unbind(dim=1), strict=True):
        values, places = torch.unique(score, return_inverse=True)
        counts = [torch.bincount(places[which], minlength=len(values)) for which in (chosen, ~chosen)]
        found.append(auc_of_counts(*counts))
    return torch.stack(found) if found else torch.zeros(0, dtype=torch.float64)


def auc_of_counts(positives: Tensor, negatives: Tensor) -> Tensor:
    """The area from counts by rising score (..., bins): how often a positive scores higher than a negative.

    >>> auc_of_counts(torch.tensor([0, 1, 1]), torch.tensor([1, 1, 0])).item()
    0.875
    """
    positives, negatives = positives.double(), negatives.double()
    below = negatives.cumsum(dim=-1) - negatives
    won = (positives * (below + negatives / 2)).sum(dim=-1)
    return won / (positives.sum(dim=-1) * negatives.sum(dim=-1))  # 0 / 0 is NaN: not defined


def confusion_of(scores: Tensor, labels: Tensor) -> Tensor:
    """How often each class (rows) was predicted as each; outputs that are not finite count as class 0."""
    size = scores.shape[1]
    said = torch.where(scores.isfinite().all(dim=1), scores.argmax(dim=1), 0)
    return torch.bincount(labels * size + said, minlength=size * size).view(size, size)


def outcomes_of(confusion: Tensor) -> Tensor:
    """True positives, false positives, false negatives and true negatives of each class against the rest.

    >>> outcomes_of(torch.tensor([[3, 1], [2, 4]])).tolist()
    [[3, 4], [2, 1], [1, 2], [4, 3]]
    """
    right, said, true = confusion.diagonal(), confusion.sum(dim=0), confusion.sum(dim=1)
    return torch.stack([right, said - right, true - right, confusion.sum() - said - true + right])


def calibration_of(scores: Tensor, labels: Tensor) -> Tensor:
    """By bin of confidence: samples, sum of confidences, right answers; of log-probabilities that are finite."""
    confidence, said = scores.double().exp().max(dim=1)
    return _calibration(confidence, said == labels)


def calibration_error(calibration: Tensor) -> float:
    """Expected calibration error: mean distance of confidence and accuracy over bins, weighted by samples."""
    samples, confidence, right = calibration.double()
    return float((confidence - right).abs().sum() / samples.sum())


def _broken(scores: Tensor) -> Tensor:
    """Samples whose scores are no log-probabilities; that of an impossible class is minus infinity."""
    return (scores.isnan() | (scores == torch.inf)).any(dim=1)


def _calibration(confidence: Tensor, right: Tensor) -> Tensor:
    """Bins include their upper limits, as is usual."""
    places = ((confidence * CALIBRATION_BINS).ceil() - 1).clamp(0, CALIBRATION_BINS - 1).long()
    weights = torch.ones_like(confidence), confidence, right.to(confidence.dtype)
    # Without samples bincount forgets the type of its weights.
    return torch.stack([torch.bincount(places, one, CALIBRATION_BINS).double() for one in weights])


def _score_bins(scores: Tensor) -> Tensor:
    """The bins of log-odds: bins of probabilities would put most samples of a confident model into two."""
    log_probability = scores.double().clamp(max=0.0)  # rounded, that of a certain class can be a little above
    odds = log_probability - torch.log(-torch.expm1(log_probability))  # log p - log(1 - p); p = 1 is infinite
    return _bins_of_odds(odds)


def _bins_of_odds(odds: Tensor) -> Tensor:
    places = (odds.nan_to_num(nan=0.0, posinf=_LOG_ODDS, neginf=-_LOG_ODDS) + _LOG_ODDS) * SCORE_BINS / (2 * _LOG_ODDS)
    return places.long().clamp(0, SCORE_BINS - 1)


def _metrics(outcomes: Tensor, areas: Tensor | None, calibration: Tensor | None, several: bool = False) -> ClassMetrics:
    hit, false, missed, rejected = outcomes.double()
    by_class = {
        **({} if areas is None else {"auc": areas}),
        "f1": 2 * hit / (2 * hit + false + missed),
        "sensitivity": hit / (hit + missed),
        "specificity": rejected / (rejected + false),
        "precision": hit / (hit + false),
    }
    means = {name: _mean(values) for name, values in by_class.items() if name != "precision"}
    means["balanced_accuracy"] = means["sensitivity"]
    if several:  # of each class, whether a sample has it: mean recall of the two answers
        means["balanced_accuracy"] = _mean((by_class["sensitivity"] + by_class["specificity"]) / 2)
    elif len(hit) == 2:
        means |= {name: _mean(by_class[name][1:]) for name in ("sensitivity", "specificity")}
    if calibration is not None and calibration[0].sum() > 0:
        means["calibration_error"] = calibration_error(calibration)
    return ClassMetrics(
        {name: value for name in NAMES if (value := means.get(name)) is not None},
        {name: [None if value != value else value for value in values.tolist()] for name, values in by_class.items()},
    )


def _mean(values: Tensor) -> float | None:
    """The mean over classes for which the metric is defined; None: for none."""
    known = values[~values.isnan()]
    return float(known.mean()) if len(known) else None
