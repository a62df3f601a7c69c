"""Records and settings as flat numbers and texts, which is what trackers keep."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any

from fedstill.core.records import RoundRecord

_NAMES = {
    "evaluation/test/": "test/",
    "evaluation/further/test/": "test/",
    "evaluation/validation/": "validation/",
    "evaluation/further/validation/": "validation/",
    "evaluation/": "evaluation/",
    "bytes/": "traffic/",
    "loss/": "training/",
    "method_metrics/": "method/",
}
_COUNTED = {"sampled": "clients/sampled", "accepted": "clients/accepted", "failures": "clients/failed"}
_ODD = re.compile(r"[^\w./ -]")  # what MLflow does not take in the name of a metric


def round_metrics(record: RoundRecord) -> dict[str, float]:
    """All numbers of a round, those of slices too, by names with slashes; lists of clients are counted.

    >>> from fedstill.core.records import TrafficRecord
    >>> record = RoundRecord(
    ...     round=1, sampled=(0, 1), accepted=(0,), failures=(), bytes=TrafficRecord(up=8, down=9), work=1.0,
    ...     loss={"ce": 0.5}, method_metrics={},
    ... )
    >>> round_metrics(record)["training/ce"], round_metrics(record)["clients/sampled"]
    (0.5, 2.0)
    """
    content = record.to_dict()
    metrics = {name: float(len(content[key])) for key, name in _COUNTED.items()}
    metrics["clients/skipped_round"] = float("skipped" in content)
    left_out = {*_COUNTED, "round", "skipped", "replacements", "surveys"}
    for name, value in flattened({key: value for key, value in content.items() if key not in left_out}):
        if isinstance(value, int | float):
            metrics[_named(name)] = float(value)
    return metrics


def _named(name: str) -> str:
    begun = next((begun for begun in _NAMES if name.startswith(begun)), "")
    return metric_name(_NAMES.get(begun, "") + name.removeprefix(begun))


def metric_name(name: str) -> str:
    """A name that every tracker takes, of a metric, a setting or a tag.

    >>> metric_name("bytes/class 'a' (%)")
    'bytes/class _a_ ___'
    """
    return _ODD.sub("_", name)


def flattened(content: Mapping[Any, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested mappings by path; lists are leaves.

    >>> dict(flattened({"a": {"b": 1, "c": [2]}, "d": None}))
    {'a/b': 1, 'a/c': [2], 'd': None}
    """
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{above}{key}/")
        else:
            yield f"{above}{key}", value


def finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """Those that a store of numbers takes.

    >>> finite({"a": 1.0, "b": float("nan")})
    {'a': 1.0}
    """
    return {name: value for name, value in metrics.items() if isfinite(value)}
