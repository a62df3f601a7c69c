"""Sanity checks of every run, at its end: predictions, rounds, classes and data that make its accuracy doubtful."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import sqrt

from fedstill.core.numbers import count, points, share
from fedstill.core.records import DataCheck, RunChecks
from fedstill.data.readers.raw import SKIPPED
from fedstill.runtime.cautions import EndedRun, run_cautions

FELL = 0.05  # a last round this far below the best one is worth a sentence
CARRIED = 0.15  # accuracy so far above the mean over classes is that of frequent classes
SURE = 3.0  # standard errors of an accuracy on the test samples
WHOLE = 1 - 1e-6  # of the predictions: one class
REPEATED = 0.01  # of the test samples: so many repeat others


@run_cautions.register("predictions")
def prediction_cautions(ended: EndedRun) -> list[str]:
    """A model that was never changed; outputs that are not finite or always name one class."""
    if ended.journal and all(one.skipped is not None for one in ended.journal):
        return ["every round was skipped: the last model is the one that training began with"]
    last = next((one.evaluation for one in reversed(ended.journal) if one.evaluation is not None), None)
    if last is None:
        return []
    if not last.finite:
        return ["weights or outputs are not finite after the last round: its accuracy says nothing"]
    if (last.test.get("constant") or 0.0) >= WHOLE:
        return ["the last model predicts the same class for every test sample"]
    return []


@run_cautions.register("rounds")
def round_cautions(ended: EndedRun) -> list[str]:
    """A last round far below the best one, which the test data has chosen."""
    best, last = ended.result.accuracy.get("best"), ended.result.accuracy.get("last")
    if best is None or last is None or best - last <= max(FELL, SURE * _error(float(last), ended)):
        return []
    return [
        f"the last round is {points(best - last)} below the best, round {ended.result.round_of['best']}, which was"
        " chosen on the test data: report the last model, or set a validation share and report the selected one"
    ]


@run_cautions.register("baseline")
def baseline_cautions(ended: EndedRun) -> list[str]:
    """Accuracy that the most frequent class explains."""
    accuracy, majority = ended.result.accuracy.get("last"), majority_share(ended.checks)
    if accuracy is None or majority is None:
        return []
    if accuracy <= majority + SURE * _error(float(accuracy), ended):
        return [
            f"the accuracy of {share(accuracy)} is not clearly above {share(majority)}, the share of the most frequent"
            " class of the test samples"
        ]
    by_class = ended.result.class_accuracy.get("last")
    if by_class is not None and accuracy - by_class > CARRIED:
        return [
            f"frequent classes carry the accuracy: {share(accuracy)} of the samples, {share(by_class)} on average over"
            f" classes; the most frequent class has {share(majority)} of the test samples"
        ]
    return []


@run_cautions.register("reference")
def reference_cautions(ended: EndedRun) -> list[str]:
    """Accuracy that clients reach alone, or a student without its teacher."""
    if ended.reference is None:
        return []
    found = ended.reference.caution(ended.result.accuracy.get("last"), _samples(ended))
    return [] if found is None else [found]


@run_cautions.register("data")
def data_cautions(ended: EndedRun) -> list[str]:
    """What was doubtful when it was read; test samples that were trained on, or that repeat each other."""
    found = [] if ended.checks is None else list(ended.checks.doubts or ())
    data = None if ended.checks is None else ended.checks.data
    if data is None or data.not_checked is not None or not data.test:
        return found
    return [*found, *_repeated(data)]


def _repeated(data: DataCheck) -> Iterator[str]:
    if data.shared:
        yield (
            f"{data.shared:,} of {count(data.test, 'test sample')} {'is' if data.shared == 1 else 'are'} among the"
            " training samples, with the same inputs: accuracy counts what was trained on"
        )
    if (data.test_repeats or 0) > REPEATED * data.test:
        yield f"{data.test_repeats:,} of {count(data.test, 'test sample')} repeat others: it is a smaller test set"


def majority_share(checks: RunChecks | None) -> float | None:
    """What always predicting the most frequent class of the test data would get right; None where it is not known."""
    counts: Sequence[int] = [] if checks is None else checks.class_counts
    return max(counts) / sum(counts) if sum(counts) else None


def skipped_files(checks: RunChecks | None) -> list[str]:
    """The notes on files that were left out since they cannot be read."""
    return [] if checks is None else [note for note in checks.notes or () if note.startswith(SKIPPED)]


def baseline_sentence(checks: RunChecks | None) -> str | None:
    """What an accuracy is to be held against, and what was not checked of the data."""
    majority = majority_share(checks)
    data = None if checks is None else checks.data
    told = [] if majority is None else [f"the most frequent class alone would score {share(majority)}"]
    if data is not None and data.not_checked is not None:
        told.append(f"test samples were not looked for in the training data ({data.not_checked})")
    return "; ".join(told) or None


def _error(accuracy: float, ended: EndedRun) -> float:
    """The standard error of an accuracy on the test samples; 0 where their number is not known."""
    samples = _samples(ended)
    return sqrt(accuracy * (1 - accuracy) / samples) if samples else 0.0


def _samples(ended: EndedRun) -> int:
    """The number of test samples; 0 where it is not known."""
    return sum(ended.checks.class_counts) if ended.checks is not None else 0
