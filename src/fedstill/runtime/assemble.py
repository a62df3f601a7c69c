"""Assembling an experiment: method defaults, recipe, overlays, flags and `key=value` settings."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from fedstill.core.errors import InputError, did_you_mean
from fedstill.core.numbers import listed
from fedstill.core.registry import Registry
from fedstill.core.renamed import FORMER_SETTINGS
from fedstill.core.sections import sections
from fedstill.core.settings import ALIASES, Settings, is_mapping, setting_name
from fedstill.core.training import Training
from fedstill.data.data_settings import DataSettings, data_mapping, data_name
from fedstill.methods import methods
from fedstill.models.model_settings import ArchitectureSettings, model_mapping, model_name
from fedstill.runtime.experiment import (
    DEFAULT_PARTS,
    PARTS,
    Experiment,
    experiment_class,
    sentence,
    settings_of,
    spelt_out,
)

_BETWEEN_PAIRS = re.compile(r",(?=\s*(?:\w+=|$))")  # a comma inside a list of values is not between pairs

# Settings that are written behind a name.
_TEXTS: dict[str, Callable[[Any], Any]] = {"data": data_name, "model": model_name}
_TEXT_SETTINGS: dict[str, type[Settings]] = {"data": DataSettings, "model": ArchitectureSettings}

_TOLD = 5  # of the parts that have a setting, where none of them was chosen


def make_experiment(given: Mapping[str, Any]) -> Experiment:
    """Validate a configuration; an error is one sentence.

    A method's own defaults go below what was given, and pooled data leaves nothing to partition or to choose.
    """
    given = current_names(given)
    chosen = section_of(given, "method")
    if not isinstance(chosen, Mapping) or not isinstance(chosen.get("name"), str):
        raise InputError(f"an experiment needs a method: {did_you_mean(str(chosen), methods)}")
    method = methods[chosen["name"]]
    merged = overlay(method.defaults, given)
    if isinstance(counts := merged.get("models"), Mapping) and counts and "clients" not in given:
        merged["clients"] = sum(count for count in counts.values() if isinstance(count, int))
    if method.pooled:
        merged.update(clients=1, partition="pooled", participation="everyone", dropout="none", mitigation="none")
        merged.update(dict.fromkeys(name for name in sections if sections[name].for_many))
        merged.pop("secure", None)  # one client has no sum to hide in
    try:
        return experiment_class().model_validate(merged)
    except ValidationError as error:
        raise InputError(sentence(error, experiment_class().model_fields)) from None


def with_defaults(experiment: Experiment, defaults: Mapping[str, Any]) -> Experiment:
    """The experiment with these values wherever nothing was set; what was set, by whomever, stays."""
    given = experiment.model_dump(mode="json", exclude_unset=True)
    return make_experiment(overlay(defaults, {key: value for key, value in given.items() if value is not None}))


def overlay(base: Mapping[str, Any], *layers: Mapping[str, Any]) -> dict[str, Any]:
    """Later layers win; sections are merged, except that another part's name starts its section afresh.

    >>> overlay({"partition": {"name": "dirichlet", "alpha": 1}}, {"partition": "iid", "rounds": 2})
    {'partition': {'name': 'iid'}, 'rounds': 2}
    """
    result = current_names(base)
    for layer in map(current_names, layers):
        for key in layer:
            old, new = section_of(result, key), section_of(layer, key)
            merges = key != "models" and isinstance(old, dict) and isinstance(new, dict)  # models are one value
            if merges and new.get("name") in (None, old.get("name")):
                result[key] = {**old, **new}
            else:
                result[key] = new
    return result


def current_names(given: Mapping[str, Any]) -> dict[str, Any]:
    """What was given, with sections by their current names, and `name:key=value` read as on the command line.

    >>> current_names({"cure": "mimic", "rounds": 2, "partition": "dirichlet:alpha=0.1"})
    {'mitigation': 'mimic', 'rounds': 2, 'partition': {'name': 'dirichlet', 'alpha': 0.1}}
    """
    for former, now in FORMER_SETTINGS.items():
        if former in given and now in given:
            raise InputError(f"{former} is another name of {now}, which is set too: leave one of them out")
    named = {FORMER_SETTINGS.get(key, key): value for key, value in given.items()}
    return {key: _TEXTS[key](value) if key in _TEXTS else set_part(key, value) for key, value in named.items()}


def current_key(key: str) -> str:
    """A dotted path, with its section by the current name.

    >>> current_key("cure"), current_key("cure.name"), current_key("rounds")
    ('mitigation', 'mitigation.name', 'rounds')
    """
    section, dot, rest = key.partition(".")
    return FORMER_SETTINGS.get(section, section) + dot + rest


def assignments(texts: Iterable[str], example: str = "training.rate=0.01") -> Iterator[tuple[str, Any]]:
    """Settings as people write them, one by one; the example is for who wrote one that cannot be read.

    >>> list(assignments(["rounds=3", "training.optimiser = adam"]))
    [('rounds', 3), ('training.optimiser', 'adam')]
    """
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise InputError(f"cannot read the setting {text!r}: write key=value, e.g. {example}")
        yield current_key(key.strip()), parse_value(value.strip())


def override(given: Mapping[str, Any], texts: Iterable[str]) -> dict[str, Any]:
    """Apply `key=value` settings: dotted paths, or a bare name where only one section has it.

    >>> override({"method": "fedavg", "partition": "dirichlet"}, ["rounds=3", "alpha=0.1"])
    {'method': 'fedavg', 'partition': {'name': 'dirichlet', 'alpha': 0.1}, 'rounds': 3}
    """
    result = current_names(given)
    for key, value in assignments(texts):
        result = override_value(result, key, set_part(key, value))
    return result


def set_part(key: str, value: Any) -> Any:
    """A value as `--set` has it: of what is chosen by name, also `name:key=value`.

    >>> set_part("attack", "nan:share=0.3"), set_part("data", "npz:a=b.npz")
    ({'name': 'nan', 'share': 0.3}, 'npz:a=b.npz')
    """
    return named_part(value) if key in PARTS and isinstance(value, str) else value


def override_value(given: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """One setting, by dotted path or by a name that only one section has."""
    plain = "." in key or key in experiment_class().model_fields
    path = key.split(".") if plain else place_of(key, {**sections_in(given), **_TEXT_SETTINGS}, Experiment)
    if path[0] == "data" and len(path) > 1:
        return {**given, "data": data_name(assign(data_mapping(str(given.get("data", "digits"))), path[1:], value))}
    if path[0] == "model" and len(path) > 1:
        if given.get("model") is None:
            raise InputError(f"{key} needs the name of the model too: set model, e.g. model=cnn-bn:norm=group")
        return {**given, "model": model_name(assign(model_mapping(str(given["model"])), path[1:], value))}
    if len(path) == 2 and (kind := _kind_of(path[0], section_of(given, path[0]))) is not None:
        path = [path[0], setting_name(path[1], kind.model_fields)]
    return assign(given, path, value)


def place_of(key: str, sections: Mapping[str, type[Settings]], whole: type[Settings]) -> list[str]:
    """The path of a bare name: it stands in one section, or is refused with the names that would do."""
    places = [section for section, kind in sections.items() if key in kind.model_fields]
    if not places and key in ALIASES:
        return place_of(ALIASES[key], sections, whole)
    if len(places) > 1:  # a setting that was added later gives way to one that had the name before
        places = [section for section in places if key not in sections[section].all_added_later()] or places
    if len(places) == 1:
        return [places[0], key]
    if places:
        raise InputError(f"the setting {key!r} is ambiguous: write {' or '.join(f'{p}.{key}' for p in places)}")
    others = [name for section in sections if section in PARTS for name in _having(key, PARTS[section])]
    if others:
        more = [f"{len(others) - _TOLD} more"] if len(others) > _TOLD else []
        raise InputError(f"unknown setting {key!r}: nothing chosen has it, only {listed(others[:_TOLD] + more)}")
    nested = {field for kind in sections.values() for field in kind.model_fields}
    raise InputError(f"unknown setting {key!r}: {did_you_mean(key, {*whole.model_fields, *nested})}")


def _having(key: str, registry: Registry[Any]) -> list[str]:
    return [name for name in registry.names() if key in settings_of(registry[name]).model_fields]


def assign(given: Mapping[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    """What was given, with this value at the end of the path; a part's bare name on the way is spelt out."""
    key, *rest = path
    if not rest:
        return {**given, key: value}
    inner = section_of(given, key)
    return {**given, key: assign(inner if isinstance(inner, Mapping) else {}, rest, value)}


def named_part(text: str) -> str | dict[str, Any]:
    """A part as written on the command line: `name`, or `name:key=value,key=value`.

    >>> named_part("dirichlet:alpha=0.1")
    {'name': 'dirichlet', 'alpha': 0.1}
    """
    name, separator, rest = text.partition(":")
    if not separator:
        return name
    pairs = [piece.partition("=") for piece in _BETWEEN_PAIRS.split(rest)]
    if not all(key and equals for key, equals, _ in pairs):
        raise InputError(f"cannot read {text!r}: write name:key=value, e.g. dirichlet:alpha=0.1")
    return {"name": name, **{key: parse_value(value) for key, _, value in pairs}}


def parse_value(text: str) -> Any:
    """A JSON value where it is one (numbers, true, null, lists), else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def section_of(given: Mapping[str, Any], key: str) -> Any:
    """What stands under a key, with a part's bare name spelt out."""
    value = spelt_out(key, given.get(key, DEFAULT_PARTS.get(key)))
    if not is_mapping(value) or ALIASES.keys().isdisjoint(value):
        return value
    kind = _kind_of(key, value)
    if kind is None:
        return value
    named = [(setting_name(name, kind.model_fields), name) for name in value]
    if twice := [(name, old) for name, old in named if name != old and name in value]:
        raise InputError(f"{key}.{twice[0][1]} is another name of {key}.{twice[0][0]}: leave one of them out")
    return {name: value[old] for name, old in named}


def _kind_of(section: str, value: Any) -> type[Settings] | None:
    """The settings class of a section with this content, where it has one."""
    if not isinstance(value, Mapping):
        return None
    if section == "training":
        return Training
    name = value.get("name")
    if section not in PARTS or not isinstance(name, str) or name not in PARTS[section]:
        return None
    return settings_of(PARTS[section][name])


def sections_in(given: Mapping[str, Any], parts: Iterable[str] = PARTS) -> dict[str, type[Settings]]:
    """The settings classes in play, by section."""
    found: dict[str, type[Settings]] = {"training": Training}
    for key in parts:
        chosen = section_of(given, key)
        if is_mapping(chosen) and isinstance(chosen.get("name"), str):
            found[key] = settings_of(PARTS[key][chosen["name"]])
    return found
