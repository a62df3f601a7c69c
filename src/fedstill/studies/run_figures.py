"""What a study keeps of a run: its figures, and which test samples each of its models got right."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np

from fedstill.core.records import Evaluation, RoundRecord
from fedstill.runtime.result import Run
from fedstill.tasks.task_choice import own_measures

Figures = dict[str, float | None]


def figures_of(run: Run) -> Figures:
    """What a study keeps of a run."""
    result, journal = run.result, run.journal
    evaluations = {record.round: record.evaluation for record in journal if record.evaluation is not None}
    every = list(evaluations.values())
    last = every[-1]
    first_contact = sum(record.bytes.first_contact or 0 for record in journal)
    accuracy, class_accuracy, personal = result.accuracy, result.class_accuracy, result.personal
    figures: dict[str, Any] = {
        "accuracy": accuracy.get("last"),
        "class_accuracy": class_accuracy.get("last"),
        "best": accuracy.get("best"),
        "best_class_accuracy": class_accuracy.get("best"),
        "selected": accuracy.get("selected"),
        "validation": last.validation.get("accuracy"),
        "constant": last.test.get("constant"),
        "best_constant": _constant(evaluations.get(result.round_of.get("best", 0))),
        "selected_constant": _constant(evaluations.get(result.round_of.get("selected", 0))),
        "finite": int(last.finite),
        "non_finite": sum(not one.finite for one in every) / len(every),
        "batchnorm_gain": result.batchnorm and result.batchnorm.gain,
        "negative_variances": max(one.negative_variances for one in every),
        "personal": personal and personal.mean,
        "personal_std": personal and personal.std,
        "personal_own": personal and personal.own_mean,
        **{name: last.test.get(name) for name in own_measures()},  # of some tasks only
        **(last.further.test if last.further is not None else {}),
        "bytes_up": result.bytes.up,
        "bytes_down": result.bytes.down,
        "bytes_round": (result.bytes.up + result.bytes.down - first_contact) / len(journal),
        "bytes_first_contact": first_contact or None,
        "seconds": round(run.seconds, 1),
        **{f"extra_models.{name}": value for name, value in result.extra_models.items()},
        **{f"site.{name}": metrics["accuracy"] for name, metrics in (result.by_site or {}).items()},
        **{f"method_metrics.{name}": value for name, value in result.method_metrics.items()},
        **_mean_losses(journal),
        "ceiling": result.ceiling,
        **{f"teacher.{number}": teacher.metrics["accuracy"] for number, teacher in enumerate(result.teachers)},
        **{f"teacher.{number}.recalibrated": teacher.recalibrated for number, teacher in enumerate(result.teachers)},
    }
    return {name: _number(value) for name, value in figures.items()}


def _constant(evaluation: Evaluation | None) -> float | None:
    return None if evaluation is None else evaluation.test.get("constant")


def _mean_losses(journal: Sequence[RoundRecord]) -> dict[str, float]:
    """Each loss term over the rounds that had it: a round nobody replied in has none."""
    names = dict.fromkeys(name for record in journal for name in record.loss)
    return {f"loss.{name}": fmean(record.loss[name] for record in journal if name in record.loss) for name in names}


def _number(value: Any) -> float | None:
    """Six digits are more than any accuracy has; what is not a number is left out, since JSON has no word for it."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value if isinstance(value, int) else round(value, 6)


def correct_by(run: Run) -> dict[str, str]:
    """By model, which test samples it got right."""
    labels = run.test_labels
    found = {which: run.predictions(which) for which in ("last", "best", "selected")}
    if labels is None:
        return {}
    return {
        which: packed([one == label for one, label in zip(said, labels, strict=True)])
        for which, said in found.items()
        if said is not None
    }


def samples_by_class(labels: Sequence[int], classes: int) -> list[int]:
    """How many test samples there are of each class."""
    return [labels.count(number) for number in range(classes)]


def packed(bits: Sequence[bool]) -> str:
    """Yes and no as text: their number, and hexadecimal digits of four each.

    >>> packed([True, False, True, True, False]), unpacked("5:b0")
    ('5:b0', (True, False, True, True, False))
    """
    digits = np.packbits(np.array(bits, dtype=bool)).tobytes().hex()
    return f"{len(bits)}:{digits[: -(-len(bits) // 4)]}"


def unpacked(text: str) -> tuple[bool, ...]:
    number, _, digits = text.partition(":")
    count = int(number)
    if not 0 <= count <= 4 * len(digits):
        raise ValueError(f"{text!r} is too short for {number} answers")
    bits = np.frombuffer(bytes.fromhex(digits + "0" * (len(digits) % 2)), np.uint8)  # two digits a byte
    return tuple(np.unpackbits(bits, count=count).astype(bool).tolist())
