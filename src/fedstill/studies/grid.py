"""From a recipe's grid to experiments: every combination of the values listed, each called by its labels.

    grid:
      partition: [iid, {name: dirichlet, alpha: 0.1}]     # a part, with settings or without
      method: [fedavg, {label: FedAvg-SGD, method: fedavg, training: {optimiser: sgd}}]
      buffers?: [average, as-parameters]                  # a setting, spelt as after `--set`
      seed: [7, 42, 123]

A mapping with a `label` sets several things at once. An axis of nothing but such mappings may have any name. A question
mark says that the setting is left out where a cell's parts do not have it; with what then becomes equal run once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from typing import Any

from fedstill.core.errors import InputError
from fedstill.core.training import Training
from fedstill.runtime.assemble import current_key, make_experiment, overlay, override_value, section_of
from fedstill.runtime.experiment import PARTS, Experiment, experiment_class, settings_of

SEED = "seed"  # the axis that tables take mean and standard deviation over
Assignment = tuple[str, Any]


@dataclass(frozen=True)
class Value:
    """One value of an axis: what it is called, and what it sets."""

    label: str
    sets: tuple[Assignment, ...]


@dataclass(frozen=True)
class Taught:
    """What an audit has to know of a student, as configured: which control is run is another matter."""

    objective: str
    labels: str  # the label mode
    hard_label_weight: float  # of the objective with labels


@dataclass(frozen=True)
class GridCell:
    """One combination: its labels by axis, the configuration as put together, and the experiment that it makes."""

    labels: dict[str, str]
    given: dict[str, Any]
    experiment: Experiment
    teacher: GridCell | None = None  # whose run is to teach, in the second stage of a study
    taught: Taught | None = None

    def __str__(self) -> str:
        return called(self.labels) or self.experiment.method.name


def called(labels: Mapping[str, str]) -> str:
    """A combination in words; labels that are mere numbers need their axis' name.

    >>> called({"partition": "iid", "method": "fedavg", "seed": "7"})
    'iid, fedavg, seed 7'
    """
    return ", ".join(
        label if label[:1].isalpha() and label not in ("true", "false", "none") else f"{axis} {label}"
        for axis, label in labels.items()
    )


def read_axes(grid: Mapping[str, Sequence[Any]]) -> dict[str, tuple[Value, ...]]:
    """The grid's values with their labels, which must differ within an axis."""
    axes: dict[str, tuple[Value, ...]] = {}
    for axis, raw in grid.items():
        name = axis.removesuffix("?")
        if name in axes:
            raise InputError(f"the grid has {name!r} twice, with a question mark and without")
        axes[name] = tuple(_read_value(axis, value) for value in raw)
    for axis, values in axes.items():
        labels = [value.label for value in values]
        if twice := next((label for label in labels if labels.count(label) > 1), None):
            raise InputError(f"two values of the grid's {axis!r} are called {twice!r}: give one another `label`")
    return axes


def expand(
    experiment: Mapping[str, Any], axes: Mapping[str, Sequence[Value]], settings: Mapping[str, Any]
) -> Iterator[GridCell]:
    """Every combination, in the order written (the last axis varies fastest), each a valid experiment.

    `settings` are the user's own: they come last, over whatever the grid says.
    """
    perhaps = {key for values in axes.values() for value in values for key, _ in value.sets} | set(settings)
    for key in sorted(perhaps):
        if key.endswith("?") and not _anywhere(key.removesuffix("?")):
            raise InputError(f"no part has the setting {key.removesuffix('?')!r}")
    for combination in product(*axes.values()):
        labels = {axis: value.label for axis, value in zip(axes, combination, strict=True)}
        try:
            check_conflicts(axes, combination)
            given = lay(experiment, chain.from_iterable(value.sets for value in combination))
            given = lay(given, settings.items())
            yield GridCell(labels, given, make_experiment(given))
        except InputError as error:
            where = f"the experiment {called(labels)}: " if labels else ""
            raise InputError(f"{where}{error}") from None


def lay(given: Mapping[str, Any], assignments: Iterable[Assignment]) -> dict[str, Any]:
    """Lay settings over a configuration: first the choice of parts, then what is inside them.

    Another part's name starts its section afresh, so a part's settings must come after its name, wherever the grid
    lists them.

    >>> lay({"method": "fedavg"}, [("buffers", "recalibrate"), ("method", "fedavgm")])
    {'method': {'name': 'fedavgm', 'buffers': 'recalibrate'}}
    """
    result = dict(given)
    for key, value in sorted(assignments, key=_depth):
        if key.endswith("?"):
            key = key.removesuffix("?")
            if not _has(result, key):
                continue
        is_section = key in experiment_class().model_fields
        result = overlay(result, {key: value}) if is_section else override_value(result, key, value)
    return result


def _depth(assignment: Assignment) -> int:
    key, value = assignment
    if key not in experiment_class().model_fields:
        return 2
    return int(isinstance(value, Mapping) and "name" not in value)


def _has(given: Mapping[str, Any], key: str) -> bool:
    """Whether a part of this configuration has a setting of that name."""
    section, _, name = key.rpartition(".")
    kinds: dict[str, Any] = {"training": Training}
    for part, registry in PARTS.items():
        chosen = section_of(given, part)
        if isinstance(chosen, Mapping) and chosen.get("name") in registry:
            kinds[part] = settings_of(registry[chosen["name"]])
    return any(name in kind.model_fields for part, kind in kinds.items() if section in ("", part))


def _anywhere(key: str) -> bool:
    """Whether there is a part with such a setting at all: else its name is misspelt."""
    section, _, name = key.rpartition(".")
    if section in ("", "training") and name in Training.model_fields:
        return True
    return any(
        name in settings_of(registry[part]).model_fields
        for where, registry in PARTS.items()
        if section in ("", where)
        for part in registry
    )


def _read_value(axis: str, value: Any) -> Value:
    axis = current_key(axis)
    if not isinstance(value, Mapping):
        return Value(label_of(value), ((axis, value),))
    if not all(isinstance(key, str) for key in value):
        raise InputError(f"the grid's {axis!r}: {value!r} is not a mapping from settings to values")
    settings = {current_key(key): inner for key, inner in value.items() if key != "label"}
    if "label" not in value:
        if axis not in experiment_class().model_fields:
            raise InputError(f"the grid's {axis!r}: a value that sets several things needs a `label` (got {value!r})")
        return Value(label_of(value), ((axis, settings),))
    label = value["label"]
    if isinstance(label, Mapping | list) or label is None or not str(label).strip():
        raise InputError(f"the grid's {axis!r}: a `label` must be a few words (got {label!r})")
    if not settings:
        raise InputError(f"the grid's {axis!r}: the value called {label!r} sets nothing")
    if "name" in settings:
        return Value(str(label), ((axis, settings),))
    return Value(str(label), tuple(settings.items()))


def label_of(value: Any) -> str:
    """What a value without a label is called: as it would be written on the command line.

    >>> label_of("iid"), label_of(7), label_of(None), label_of({"name": "dirichlet", "alpha": 0.1})
    ('iid', '7', 'none', 'dirichlet:alpha=0.1')
    """
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        pairs = ",".join(f"{key}={label_of(inner)}" for key, inner in value.items() if key != "name")
        return f"{value['name']}:{pairs}".removesuffix(":") if "name" in value else pairs
    return value if isinstance(value, str) else json.dumps(value, default=str)


def check_conflicts(axes: Mapping[str, Sequence[Value]], combination: Sequence[Value]) -> None:
    """Two axes that set the same thing would make one of them say what is not so."""
    setters: dict[str, str] = {}
    for axis, value in zip(axes, combination, strict=True):
        for place in {place for key, inner in value.sets for place in _places(key, inner)}:
            if setters.setdefault(place, axis) != axis:
                raise InputError(f"the grid's {setters[place]!r} and {axis!r} both set {place!r}")


def _places(key: str, value: Any) -> Iterator[str]:
    """The settings that an assignment touches, as dotted paths."""
    key = key.removesuffix("?")
    if isinstance(value, Mapping):
        for inner, below in value.items():
            yield from _places(f"{key}.{inner}", below)
    else:
        yield f"{key}.name" if key in PARTS else key
