"""What runs are called beside each other: by what they differ in, since folders are named by hashes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedstill.report.descriptions import changed_settings
from fedstill.runtime.experiment import PARTS, Experiment

_SILENT = {"sha256", "file", "run"}  # of weights from elsewhere: no words for a title
_LEADING = ("data", "model")  # most settings are chosen to go with these


def titles(experiments: Sequence[Experiment], folders: Sequence[str]) -> list[str]:
    """One for each: its method, data and model, and what differs between runs with the same ones.

    What only goes with another method, data set or model, as centralised training has one client, is left out. The end
    of the folder's name tells equal ones apart.
    """
    told = [dict(_flat(_said(one))) for one in experiments]
    differing = _in_titles(told)
    named = [", ".join(piece for path in differing if (piece := setting_text(path, one.get(path)))) for one in told]
    often = Counter(named)
    return [
        name if often[name] == 1 else f"{name} ({folder.rpartition('-')[2][:8]})"
        for name, folder in zip(named, folders, strict=True)
    ]


def differing_settings(experiments: Sequence[Experiment]) -> list[dict[str, Any]]:
    """Of each, the settings in which any two of them differ, by path; None where one has no such setting."""
    told = [dict(_flat(_said(one))) for one in experiments]
    differing = [path for path in _paths(told) if _differs(path, told)]
    return [{_short(path): one.get(path) for path in differing} for one in told]


def all_settings(experiment: Experiment) -> dict[str, Any]:
    """An experiment's settings by path."""
    given = experiment.model_dump(mode="json")
    return {_short(path): value for path, value in _flat({**given, "teachers": teachers_text(given["teachers"])})}


def teachers_text(teachers: Sequence[Mapping[str, Any]]) -> str | None:
    """Whose student a run is; None without teachers.

    >>> teachers_text([{"run": "runs/fedavg-digits-40cac02555237b1a"}, {"file": "weights/old.safetensors"}])
    'from fedavg-digits-40cac025, old.safetensors'
    """
    names = [_teacher_name(one) for one in teachers]
    return f"from {', '.join(names)}" if names else None


def _teacher_name(teacher: Mapping[str, Any]) -> str:
    if run := teacher.get("run"):
        rest, _, digest = Path(str(run)).name.rpartition("-")
        return f"{rest}-{digest[:8]}" if rest else digest
    if file := teacher.get("file"):
        return Path(str(file)).name
    return str(teacher.get("call") or teacher.get("model"))


def settings_in_titles(experiments: Sequence[Experiment]) -> set[str]:
    """Of those, the ones that `titles` tells."""
    return set(map(_short, _in_titles([dict(_flat(_said(one))) for one in experiments])))


def _in_titles(told: Sequence[Mapping[str, Any]]) -> list[str]:
    by_method: dict[str, list[Mapping[str, Any]]] = {}
    for one in told:
        by_method.setdefault(one["method.name"], []).append(one)
    differing = [path for path in _paths(told) if any(_tells(path, group) for group in by_method.values())]
    return ["method.name", *differing]


def _tells(path: str, group: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a setting tells apart runs of one method, beyond what their data and model do."""
    if path in _LEADING:
        return _differs(path, group)
    alike: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for one in group:
        alike.setdefault(tuple(str(one.get(name)) for name in _LEADING), []).append(one)
    return any(_differs(path, some) for some in alike.values())


def _short(path: str) -> str:
    """A part is called by its section: `method` for `method.name`."""
    return path.removesuffix(".name")


def _paths(told: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(path for one in told for path in one))


def _differs(path: str, told: Sequence[Mapping[str, Any]]) -> bool:
    return len({str(one.get(path)) for one in told}) > 1


def _said(experiment: Experiment) -> dict[str, Any]:
    """All of an experiment, but of parts chosen by name only what is not as usual."""
    chosen = {section: getattr(experiment, section) for section in PARTS}
    parts = {section: {"name": one.name, **changed_settings(one)} for section, one in chosen.items() if one is not None}
    initial = {"initial": f"from {Path(experiment.initial.file).name}"} if experiment.initial else {}
    given = experiment.model_dump(mode="json")
    return {**given, **parts, **initial, "teachers": teachers_text(given["teachers"])}


def _flat(given: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in given.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif name not in _SILENT and not (isinstance(value, list) and value and isinstance(value[0], Mapping)):
            yield f"{prefix}{name}", value


def setting_text(path: str, value: Any) -> str:
    """A setting in a few words; what is absent needs none, nor what is off, but for parts: there it is usually on.

    >>> given = {"seed": 7, "dropout.name": "none", "dropout.replace": True, "model": "cnn"}
    >>> [setting_text(path, value) for path, value in given.items()]
    ['seed 7', '', 'replace', 'cnn']
    >>> setting_text("seed", 0)
    'seed 0'
    >>> setting_text("method.local_weights", False)
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
