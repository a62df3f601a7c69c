"""What a study keeps of a run: its figures, and which test samples each of its models got right."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from fedstill.runtime.result import Run
from fedstill.tasks.measures import own_measures

Figures = dict[str, float | None]


def figures_of(run: Run) -> Figures:
    """What a study keeps of a run."""
    result, journal = run.result, run.journal
    evaluated = [record for record in journal if "metrics" in record]
    last = evaluated[-1]
    once = sum(record["bytes"].get("once", 0) for record in journal)
    accuracy, class_accuracy, personal = result["accuracy"], result["class_accuracy"], result["personal"] or {}
    figures: dict[str, Any] = {
        "accuracy": accuracy.get("last"),
        "class_accuracy": class_accuracy.get("last"),
        "best": accuracy.get("best"),
        "best_class_accuracy": class_accuracy.get("best"),
        "selected": accuracy.get("selected"),
        "constant": last["metrics"].get("constant"),
        "best_constant": _constant_at(evaluated, result["round_of"].get("best")),
        "selected_constant": _constant_at(evaluated, result["round_of"].get("selected")),
        "finite": int(last["finite"]),
        "non_finite": sum(not record["finite"] for record in evaluated) / len(evaluated),
        "negative_variances": max(record.get("negative_variances", 0.0) for record in evaluated),
        "personal": personal.get("mean"),
        "personal_std": personal.get("std"),
        "personal_own": personal.get("own_mean"),
        **{name: last["metrics"].get(name) for name in own_measures()},  # of some tasks only
        "bytes_up": result["bytes"]["up"],
        "bytes_down": result["bytes"]["down"],
        "bytes_round": (result["bytes"]["up"] + result["bytes"]["down"] - once) / len(journal),
        "bytes_once": once or None,
        "seconds": round(run.seconds, 1),
        **{f"also.{name}": value for name, value in result.get("also", {}).items()},
        **{f"facts.{name}": value for name, value in result.get("facts", {}).items()},
        **_mean_losses(journal),
        "ceiling": result.get("ceiling"),
        **{f"teacher.{number}": teacher["accuracy"] for number, teacher in enumerate(result.get("teachers", []))},
        **{
            f"teacher.{number}.recalibrated": teacher.get("recalibrated")
            for number, teacher in enumerate(result.get("teachers", []))
        },
    }
    return {name: _number(value) for name, value in figures.items()}


def _constant_at(evaluated: Sequence[Mapping[str, Any]], round: int | None) -> float | None:
    found = next((record for record in evaluated if record["round"] == round), None)
    return None if found is None else found["metrics"].get("constant")


def _mean_losses(journal: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Each loss term over the rounds that had it: a round nobody replied in has none."""
    names = dict.fromkeys(name for record in journal for name in record["loss"])
    return {
        f"loss.{name}": fmean(record["loss"][name] for record in journal if name in record["loss"]) for name in names
    }


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
