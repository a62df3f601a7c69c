"""Translation of records that earlier versions wrote: run folders of format 2, results files of format 1.

Each function leaves current content as it is, so that readers can call it without knowing which they have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_EVALUATION = ("finite", "validation", "personal", "negative_variances")
_FIGURES = {"bytes_once": "bytes_first_contact", "fleet.stand_ins": "fleet.replacements"}
_FIGURE_PREFIXES = {"also.": "extra_models.", "facts.": "method_metrics."}


def current_round(old: Mapping[str, Any]) -> Mapping[str, Any]:
    """A line of a journal in today's words and shape."""
    if "asked" not in old:
        return old
    fleet = dict(old.get("fleet", {}))
    new = {key: old[key] for key in ("round", "accepted", "skipped", "work", "loss")}
    new |= {
        "sampled": old["asked"],
        "failures": old["lost"],
        "bytes": _traffic(old["bytes"]),
        "method_metrics": old["facts"],
    }
    if "surveys" in old:
        new["surveys"] = [_survey(one) for one in old["surveys"]]
    if "stand_ins" in fleet:
        new["replacements"] = fleet.pop("stand_ins")
    if fleet:
        new["fleet"] = fleet
    if "metrics" in old:
        evaluation = {key: old[key] or None if key == "personal" else old[key] for key in _EVALUATION}
        new["evaluation"] = {**evaluation, "test": old["metrics"], "extra_models": old["also"]}
        if "sites" in old:
            new["evaluation"]["sites"] = _sites(old["sites"])
    return new


def current_result(old: Mapping[str, Any]) -> Mapping[str, Any]:
    """A run's result in today's words and shape."""
    if "lost" not in old:
        return old
    new = {key: value for key, value in old.items() if key not in ("lost", "also", "facts")}
    return new | {
        "failures": old["lost"],
        "extra_models": old["also"],
        "method_metrics": old["facts"],
        "personal": old["personal"] or None,
        "bytes": _traffic(old["bytes"]),
        "teachers": [_teacher(one) for one in old["teachers"]],
    }


def current_checkpoint(old: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a checkpoint says in words: pre-training kept its notes as the only line of a journal."""
    if "notes" in old:
        return old
    journal = old["journal"]
    rounds = [record for record in journal if "round" in record]
    return {**old, "journal": rounds, "notes": {} if rounds or not journal else journal[0]}


def current_figure(name: str) -> str:
    """The name of a figure of a study's run.

    >>> current_figure("bytes_once"), current_figure("also.average"), current_figure("accuracy")
    ('bytes_first_contact', 'extra_models.average', 'accuracy')
    """
    for old, new in _FIGURE_PREFIXES.items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return _FIGURES.get(name, name)


def _traffic(old: Mapping[str, Any]) -> dict[str, Any]:
    return {"first_contact" if way == "once" else way: value for way, value in old.items()}


def _survey(old: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": old["name"], "sampled": old["asked"], "failures": old["lost"]}


def _sites(old: Mapping[str, Any]) -> dict[str, Any]:
    names = {"asked": "sampled", "heard": "accepted", "lost": "failures"}
    return {names.get(key, key): value for key, value in old.items()}


def _teacher(old: Mapping[str, Any]) -> dict[str, Any]:
    own = ("name", "model", "which", "recalibrated")
    metrics = {key: value for key, value in old.items() if key not in own}
    return {**{key: old[key] for key in own if key in old}, "metrics": metrics}
