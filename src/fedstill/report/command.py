"""The shortest command that runs an experiment again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from fedstill.config import Experiment, make_experiment, with_defaults
from fedstill.config.assemble import parse_value
from fedstill.core.queries import Queries
from fedstill.federation.defaults import DEFAULT_MODELS, decided_by
from fedstill.methods import methods
from fedstill.report.describe import changed_settings
from fedstill.tasks.detection import Detection
from fedstill.tasks.kinds import task_of

_FLAGS = ("data", "model", "clients", "rounds", "seed")
_PARTS = ("partition", "participation")


def command(experiment: Experiment) -> str:
    """`fedstill run METHOD`, with options for what differs from that method's defaults and nothing else.

    Settings are written with their section, although a bare name would do: it stays right when another part gets a
    setting of the same name.

    >>> command(make_experiment({"method": "fedavg", "partition": {"name": "dirichlet", "alpha": 0.1}, "seed": 7}))
    'fedstill run fedavg --partition dirichlet:alpha=0.1 --seed 7'
    """
    wanted = experiment.model_dump(mode="json")
    given: dict[str, Any] = {"method": {"name": experiment.method.name, **changed_settings(experiment.method)}}
    words = ["fedstill", "run", experiment.method.name]
    settings = [f"method.{name}={_value(value)}" for name, value in changed_settings(experiment.method).items()]
    base = make_experiment(given).model_dump(mode="json")
    for section in _PARTS:
        if wanted[section]["name"] != base[section]["name"]:
            changed = changed_settings(getattr(experiment, section))
            given[section] = {"name": wanted[section]["name"], **changed}
            words += [f"--{section}", _part(wanted[section]["name"], changed)]
            settings += [f"{section}.{name}={_value(value)}" for name, value in changed.items() if not _plain(value)]
    # What method, data and model make of all that decides what is left to say.
    base = _without_saying(experiment, make_experiment(given)).model_dump(mode="json")
    for client, classes in (wanted["queries"] or {}).get("by_hand", {}).items():
        if classes:  # naming nobody's classes is the same as not naming the client, as long as somebody is named
            words += ["--query", f"{client}:{','.join(map(str, classes))}"]
    for section in ("fleet", "clusters"):
        if (devices := getattr(experiment, section)) is not None:
            settings.append(f"{section}={json.dumps(devices.model_dump(mode='json', exclude_defaults=True))}")
    for path, value in _differences(base, {**wanted, "queries": None, "fleet": None, "clusters": None}):
        if path in _FLAGS and value is not None:
            words += [f"--{path}", str(value)]
        else:
            settings.append(f"{path}={_value(value)}")
    settings += _asking(wanted["queries"])
    return shlex.join([*words, *(word for setting in settings for word in ("--set", setting))])


def _asking(queries: Mapping[str, Any] | None) -> list[str]:
    """Settings of queries that are not as usual; where all are, one that is, or nobody would ask."""
    if queries is None:
        return []
    usual = Queries().model_dump(mode="json")
    changed = {name: value for name, value in queries.items() if name != "by_hand" and value != usual[name]}
    if not changed and not queries["by_hand"]:
        changed = {"classes": queries["classes"]}
    return [f"queries.{name}={_value(value)}" for name, value in changed.items()]


def _without_saying(experiment: Experiment, base: Experiment) -> Experiment:
    """What the data's kind and the model would fill in by themselves, as they did in an experiment that was run."""
    if experiment.augmentation is None:
        return base
    kind = "image" if experiment.points is None else "scene" if task_of(str(experiment.model)) is Detection else "cloud"
    decided = decided_by(kind, experiment.model, methods[experiment.method.name])
    return with_defaults(base, {**decided, "model": DEFAULT_MODELS[kind]})


def _differences(base: Mapping[str, Any], wanted: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The settings, by dotted path, in which the wanted configuration is not the base."""
    for key, value in wanted.items():
        before = base.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            yield from _differences(before, value, f"{prefix}{key}.")
        elif value != before:
            yield f"{prefix}{key}", value


def _part(name: str, settings: Mapping[str, Any]) -> str:
    plain = [f"{key}={_value(value)}" for key, value in settings.items() if _plain(value)]
    return f"{name}:{','.join(plain)}" if plain else name


def _plain(value: Any) -> bool:
    """Whether a value can stand in `name:key=value,key=value`."""
    return "," not in _value(value)


def _value(value: Any) -> str:
    """As `--set` reads it back: text that would be read as something else is quoted."""
    if isinstance(value, str) and parse_value(value) == value and value == value.strip():
        return value
    return json.dumps(value)
