"""What runs are called beside each other: by what they differ in, since folders are named by hashes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedstill.report.descriptions import changed_settings
from fedstill.runtime.experiment import PARTS, Experiment

_SILENT = {"sha256", "file", "run"}  # of weights from elsewhere: no words for a title


def titles(experiments: Sequence[Experiment], folders: Sequence[str]) -> list[str]:
    """One for each: its method, and what differs between runs of any one method.

    What only goes with another method, as centralised training has one client, is not said. Of equal ones the end of
    the folder's name tells them apart.
    """
    told = [dict(_flat(_said(one))) for one in experiments]
    by_method: dict[str, list[dict[str, Any]]] = {}
    for one in told:
        by_method.setdefault(one["method.name"], []).append(one)
    paths = dict.fromkeys(path for one in told for path in one)
    differing = ["method.name"]
    differing += [path for path in paths if any(_differs(path, group) for group in by_method.values())]
    named = [", ".join(piece for path in differing if (piece := _piece(path, one.get(path)))) for one in told]
    often = Counter(named)
    return [
        name if often[name] == 1 else f"{name} ({folder.rpartition('-')[2][:8]})"
        for name, folder in zip(named, folders, strict=True)
    ]


def _differs(path: str, told: Sequence[Mapping[str, Any]]) -> bool:
    return len({str(one.get(path)) for one in told}) > 1


def _said(experiment: Experiment) -> dict[str, Any]:
    """All of an experiment, but of parts chosen by name only what is not as usual."""
    chosen = {section: getattr(experiment, section) for section in PARTS}
    parts = {section: {"name": one.name, **changed_settings(one)} for section, one in chosen.items() if one is not None}
    initial = {"initial": f"from {Path(experiment.initial.file).name}"} if experiment.initial else {}
    return {**experiment.model_dump(mode="json"), **parts, **initial}


def _flat(given: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in given.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif name not in _SILENT and not (isinstance(value, list) and value and isinstance(value[0], Mapping)):
            yield f"{prefix}{name}", value


def _piece(path: str, value: Any) -> str:
    """A setting in a few words; what is absent needs none, nor what is off, but for parts: there it is usually on.

    >>> [_piece("seed", 7), _piece("dropout.name", "none"), _piece("dropout.replace", True), _piece("model", "cnn")]
    ['seed 7', '', 'replace', 'cnn']
    >>> _piece("seed", 0)
    'seed 0'
    >>> _piece("method.local_weights", False)
    'no local weights'
    """
    section, _, leaf = path.rpartition(".")
    word = leaf.replace("_", " ")
    if value is False and section in PARTS:
        return f"no {word}"
    absent = value is None or value is False or value in ([], {})  # 0 is something to say
    if absent or (leaf == "name" and section != "method" and value == "none"):
        return ""
    if value is True:
        return word
    if isinstance(value, str):
        return value
    return f"{word} {value:g}" if isinstance(value, int | float) else f"{word} {value}"
