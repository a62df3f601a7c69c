"""Which runs differ in one thing only, so that the difference of their results can be put down to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fedstill.report.facts import Facts

Pair = tuple[Facts, Facts]


def skewed_pairs(runs: Sequence[Facts]) -> Iterator[Pair]:
    """(equal shards, other shards): alike in everything but the partition."""
    for equal in runs:
        if equal.experiment.partition.name != "iid":
            continue
        for other in runs:
            if other.experiment.partition.name != "iid" and _without(equal, "partition") == _without(
                other, "partition"
            ):
                yield equal, other


def lonely_pairs(runs: Sequence[Facts]) -> Iterator[Pair]:
    """(together, alone): alike in everything but the method."""
    for together in runs:
        if together.alone or together.pooled:
            continue
        for alone in runs:
            if alone.alone and _without(together, "method") == _without(alone, "method"):
                yield together, alone


def pooled_pairs(runs: Sequence[Facts]) -> Iterator[Pair]:
    """(pooled, federated): the same data, model and seed; of each method, only its most accurate federation.

    Rounds and local training have other meanings where all data is in one place, and may differ.
    """
    for pooled in runs:
        if not pooled.pooled:
            continue
        best: dict[str, Facts] = {}
        for other in runs:
            if other.pooled or other.alone or _ground(other) != _ground(pooled):
                continue
            held = best.get(other.experiment.method.name)
            if held is None or (other.accuracy() or 0.0) > (held.accuracy() or 0.0):
                best[other.experiment.method.name] = other
        yield from ((pooled, other) for other in best.values())


def _without(run: Facts, section: str) -> dict[str, Any]:
    return {key: value for key, value in run.experiment.model_dump(mode="json").items() if key != section}


def _ground(run: Facts) -> tuple[str, str | None, int]:
    return run.experiment.data, run.experiment.model, run.experiment.seed
