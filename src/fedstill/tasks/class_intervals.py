"""Intervals of classifiers' metrics over test samples, by the bootstrap.

Test samples are drawn with replacement, as many as there are, whatever their class (not stratified), and every metric
is computed on each such sample. The interval lies between the 2.5th and the 97.5th percentile. It is about other test
samples, not about other trainings. A metric that is not defined on some draw is left out there.

Two things a bootstrap gets wrong. Where every draw gives 0 or 1, its interval would have no width: it ends at the limit
of Clopper and Pearson then. And the calibration error is too large on few samples, where bins are off by chance, and
larger still on draws of them: its interval is reflected at the error itself (the "basic" bootstrap). It begins at 0
where a model with the same confidences that is right as often as they say may have this error ("consistency
resampling", https://doi.org/10.1175/WAF993.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from fedstill.tasks.class_metrics import CALIBRATION_BINS, NAMES

MOST, LEAST = 400, 60  # resamples
_WORK = 1e7  # samples times classes times resamples, above which there are fewer resamples
_AT_ONCE = 50
LEVEL = (2.5, 97.5)  # percentiles
_CALIBRATION = "calibration_error"
Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]


def resamples_for(samples: int, classes: int) -> int:
    """How often samples are drawn again: fewer times where that would take long.

    >>> resamples_for(359, 10), resamples_for(10_000, 100)
    (400, 60)
    """
    return int(np.clip(_WORK / max(samples * classes, 1), LEAST, MOST))


def bootstrap_intervals(
    scores: Tensor, labels: Tensor, generator: np.random.Generator
) -> dict[str, tuple[float, float]]:
    """By metric, the limits of its interval; of log-probabilities (samples, classes) that are all finite.

    With labels (samples, classes) of true and false, scores are logits.
    """
    several = labels.ndim == 2
    measure = (
        _WeightedSeveral(scores.double().numpy(), labels.numpy())
        if several
        else _Weighted(scores.double().numpy(), labels.numpy())
    )
    number, samples = resamples_for(*scores.shape), len(labels)
    parts = []
    for start in range(0, number, _AT_ONCE):
        size = min(_AT_ONCE, number - start)
        drawn = generator.integers(samples, size=(size, samples))
        weights = np.stack([np.bincount(row, minlength=samples) for row in drawn]).astype(np.float64)
        parts.append(measure(weights))
    values = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    found = {
        name: (float(low), float(high))
        for name, drawn in values.items()
        if np.isfinite(drawn).any()
        for low, high in [np.nanpercentile(drawn, LEVEL)]
    }
    support = measure.support()
    for name, ends in found.items():
        if name == _CALIBRATION:
            whole = float(measure(np.ones((1, samples)))[name][0])
            found[name] = _reflected(ends, whole, measure.errors_by_chance(number, generator))
        elif ends in ((0.0, 0.0), (1.0, 1.0)):
            found[name] = _at_a_limit(ends[0], support[name])
    return found


def _reflected(ends: tuple[float, float], whole: float, by_chance: Floats) -> tuple[float, float]:
    """The interval of an error that is `whole` on all samples, from the ends that it has on draws of them."""
    low = 0.0 if whole <= np.percentile(by_chance, LEVEL[1]) else max(0.0, 2 * whole - ends[1])
    return low, max(whole, 2 * whole - ends[0])


def _at_a_limit(value: float, samples: float) -> tuple[float, float]:
    """The interval of a share that is 0 or 1 on so many samples.

    >>> [round(end, 4) for end in _at_a_limit(1.0, 8)]
    [0.6306, 1.0]
    """
    outside = float((LEVEL[0] / 100) ** (1 / max(samples, 1.0)))
    return (outside, 1.0) if value else (0.0, 1 - outside)


class _Weighted:
    """The metrics of test samples that count several times or not at all, for many such weights at once."""

    exclusive = True  # whether a sample has one class

    def __init__(self, scores: Floats, labels: npt.NDArray[np.int64]) -> None:
        self.classes = scores.shape[1]
        each = np.arange(self.classes)
        said = scores.argmax(axis=1)
        self.true = (labels[:, None] == each).astype(np.float64)
        self.said = (said[:, None] == each).astype(np.float64)
        self.right = (said == labels).astype(np.float64)
        self.confidence = np.exp(scores.max(axis=1))[:, None]
        self.places = _bins(self.confidence)
        self.gap = (self.places == np.arange(CALIBRATION_BINS)) * (self.confidence[:, 0] - self.right)[:, None]
        self.order = [_ranked(scores[:, one], self.true[:, one]) for one in each]

    def __call__(self, weights: Floats) -> Mapping[str, Floats]:
        """One value of every metric for each row of weights."""
        total = weights.sum(axis=1, keepdims=True)
        hit = weights @ (self.true * self.right[:, None])
        true, said = weights @ self.true, weights @ self.said
        with np.errstate(invalid="ignore", divide="ignore"):
            sensitivity, specificity = hit / true, (total - true - said + hit) / (total - true)
            f1 = 2 * hit / (true + said)
            areas = np.stack([self._area(weights, one) for one in range(self.classes)], axis=1)
        second = slice(1, None) if self.classes == 2 else slice(None)
        found = {
            "accuracy": weights @ self.right / total[:, 0],
            "auc": _mean(areas),
            "balanced_accuracy": _mean(sensitivity),
            "f1": _mean(f1),
            "sensitivity": _mean(sensitivity[:, second]),
            "specificity": _mean(specificity[:, second]),
            "calibration_error": np.abs(weights @ self.gap).sum(axis=1) / total[:, 0],
        }
        return {name: found[name] for name in ("accuracy", *NAMES)}

    def support(self) -> dict[str, float]:
        """About how many samples every metric rests on; that of a mean over classes is between its fewest and all."""
        positives, samples = self.true.sum(axis=0), float(len(self.true))
        negatives = samples - positives
        many = self.classes if self.exclusive else 1  # samples of one class say nothing of another
        second = slice(1, None) if self.exclusive and self.classes == 2 else slice(None)
        sensitivity, specificity = positives[second], negatives[second]
        by_class = many * _harmonic_mean(positives)
        return {
            "accuracy": samples,
            "auc": _harmonic_mean(np.minimum(positives, negatives)),
            "balanced_accuracy": by_class,
            "f1": by_class,
            "sensitivity": (many if len(sensitivity) > 1 else 1) * _harmonic_mean(sensitivity),
            "specificity": _harmonic_mean(specificity),
        }

    def errors_by_chance(self, number: int, generator: np.random.Generator) -> Floats:
        """Calibration errors of the same confidences where answers are right exactly as often as these say."""
        answers, places = self.confidence.ravel(), self.places.ravel()
        found = []
        for _ in range(number):
            gaps = answers - (generator.random(len(answers)) < answers)
            found.append(np.abs(np.bincount(places, gaps, CALIBRATION_BINS)).sum() / len(answers))
        return np.array(found)

    def _area(self, weights: Floats, one: int) -> Floats:
        """Pairs of a positive and a negative sample that are ranked right, half of those that are level, over all."""
        order, positives, first, after = self.order[one]
        negatives = np.zeros((len(weights), len(order) + 1), np.float32)
        np.cumsum(weights[:, order] * (1 - self.true[order, one]), axis=1, dtype=np.float32, out=negatives[:, 1:])
        counted = weights[:, positives]
        won = (counted * (negatives[:, first] + negatives[:, after])).sum(axis=1) / 2
        area: Floats = won / (counted.sum(axis=1) * negatives[:, -1])
        return area


class _WeightedSeveral(_Weighted):
    """The same for samples with any number of classes; accuracy is the share of right answers, by class and sample."""

    exclusive = False

    def __init__(self, scores: Floats, labels: npt.NDArray[np.bool_]) -> None:
        self.classes = scores.shape[1]
        said = scores > 0
        self.true, self.said = labels.astype(np.float64), said.astype(np.float64)
        each = (said == labels).astype(np.float64)
        self.right = each.mean(axis=1)
        self.confidence = 1 / (1 + np.exp(-np.abs(scores)))
        self.places = _bins(self.confidence)
        gap = (self.places[:, :, None] == np.arange(CALIBRATION_BINS)) * (self.confidence - each)[:, :, None]
        self.gap = gap.mean(axis=1)
        self.order = [_ranked(scores[:, one], self.true[:, one]) for one in range(self.classes)]

    def __call__(self, weights: Floats) -> Mapping[str, Floats]:
        total = weights.sum(axis=1, keepdims=True)
        hit, true, said = (weights @ one for one in (self.true * self.said, self.true, self.said))
        with np.errstate(invalid="ignore", divide="ignore"):
            sensitivity, specificity = hit / true, (total - true - said + hit) / (total - true)
            f1 = 2 * hit / (true + said)
            areas = np.stack([self._area(weights, one) for one in range(self.classes)], axis=1)
        found = {
            "accuracy": weights @ self.right / total[:, 0],
            "auc": _mean(areas),
            "balanced_accuracy": _mean((sensitivity + specificity) / 2),
            "f1": _mean(f1),
            "sensitivity": _mean(sensitivity),
            "specificity": _mean(specificity),
            "calibration_error": np.abs(weights @ self.gap).sum(axis=1) / total[:, 0],
        }
        return {name: found[name] for name in ("accuracy", *NAMES)}


class _Ranked(NamedTuple):
    """Samples by rising score; for each positive one, where in that order those of its score begin, and end."""

    order: Places
    positives: Places
    first: Places
    after: Places


def _bins(confidence: Floats) -> Places:
    """Bins include their upper limits."""
    places: Places = np.clip(np.ceil(confidence * CALIBRATION_BINS) - 1, 0, CALIBRATION_BINS - 1).astype(np.int64)
    return places


def _harmonic_mean(counts: Floats) -> float:
    """Of the numbers of samples that are not 0."""
    known = counts[counts > 0]
    return float(len(known) / (1 / known).sum()) if len(known) else 0.0


def _ranked(score: Floats, true: Floats) -> _Ranked:
    order = np.argsort(score, kind="stable")
    positives = np.flatnonzero(true)
    ranks = score[order]
    return _Ranked(
        order, positives, np.searchsorted(ranks, score[positives]), np.searchsorted(ranks, score[positives], "right")
    )


def _mean(values: Floats) -> Floats:
    """The mean over classes for which a metric is defined; NaN: for none."""
    known = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        mean: Floats = np.where(known, values, 0.0).sum(axis=1) / known.sum(axis=1)
    return mean
