"""`fedstill list`: everything that can be chosen by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any

import typer

from fedstill.cli.options import Json, Plugin, named
from fedstill.cli.screen import console, print_json, table
from fedstill.core.errors import InputError, did_you_mean
from fedstill.core.numbers import size
from fedstill.core.registry import Registry
from fedstill.core.settings import Settings

# The section of an experiment in which a name is chosen.
_SECTIONS = {
    "methods": "method",
    "objectives": "objective",
    "attacks": "attack",
    "privacy": "privacy",
    "partitions": "partition",
    "participation": "participation",
    "dropouts": "dropout",
    "mitigations": "mitigation",
    "secure": "secure",
}
FORMER_SHELVES = {"cures": "mitigations"}  # names of earlier releases


def list_(
    what: Annotated[
        str | None,
        typer.Argument(
            help="What to list, e.g. methods, models or studies, or one name of these, e.g. fedprox; default: all.",
            autocompletion=named("shelves", "methods", "objectives", "models", "datasets", "partitions"),
        ),
    ] = None,
    traffic: Annotated[bool, typer.Option("--traffic", help="Show the measured traffic of each method.")] = False,
    plugin: Plugin = None,
    json: Json = False,
) -> None:
    """List all that has a name, or show one of it with its settings."""
    from fedstill.core.plugins import use_plugins

    if traffic and what != "methods":
        raise InputError("--traffic tells what methods send: write `fedstill list methods --traffic`")
    use_plugins(plugin or [])
    if traffic:
        _show_traffic(json)
    else:
        _show_names(what, json)


def shelves() -> dict[str, Callable[[], dict[str, str]]]:
    """By shelf, what gives its names with their sentences: only what is listed need be imported."""
    from fedstill.data.catalogue import datasets
    from fedstill.data.partitions import partitions
    from fedstill.distillation import objectives
    from fedstill.engines import engines
    from fedstill.methods import methods
    from fedstill.methods.wrappers.choices import aggregations, attacks, mitigations, privacies
    from fedstill.models import models
    from fedstill.participation import dropouts, policies
    from fedstill.runtime.recipes import recipe_names

    registries: dict[str, Registry[Any]] = {
        "methods": methods,
        "objectives": objectives,
        "attacks": attacks,
        "privacy": privacies,
        "datasets": datasets,
        "models": models,
        "partitions": partitions,
        "participation": policies,
        "dropouts": dropouts,
        "mitigations": mitigations,
        "secure": aggregations,
        "engines": engines,
    }
    return {
        **{shelf: partial(_sentences, registry) for shelf, registry in registries.items()},
        "recipes": partial(recipe_names, study=False),
        "studies": partial(recipe_names, study=True),
    }


def _sentences(registry: Registry[Any]) -> dict[str, str]:
    return {name: registry.summary(name) for name in registry}


def _show_names(what: str | None, as_json: bool) -> None:
    every = shelves()
    what = FORMER_SHELVES.get(what, what) if what else None
    if what is not None and what not in every:
        _show_part(what, every, as_json)
        return
    shown = {name: shelf() for name, shelf in every.items() if what in (None, name)}
    if as_json:
        print_json(shown)
        return
    for name, parts in shown.items():
        if not parts and what is None:
            continue
        table(name, ("name", "what it is"), sorted(parts.items()))
        console.print()


def _show_part(name: str, every: Mapping[str, Callable[[], dict[str, str]]], as_json: bool) -> None:
    """What a name means wherever it is known, with its settings and their defaults."""
    held = {shelf: names for shelf, listed in every.items() if name in (names := listed())}
    found = [
        {"shelf": shelf, "name": name, "what": names[name], **_details(shelf, name)} for shelf, names in held.items()
    ]
    found += _section(name)
    if not found:
        known = [*every, *dict.fromkeys(one for listed in every.values() for one in listed()), *_sections()]
        raise InputError(f"cannot list {name!r}: {did_you_mean(name, known)}")
    if as_json:
        print_json({"found": found})
        return
    for one in found:
        console.print(f"{name} ({one['shelf']}): {one['what']}", soft_wrap=True)
        for title in ("where it comes from", "sizes", "presets", "variants"):
            if one.get(title):
                console.print(f"{title}: {one[title]}", soft_wrap=True)
        if one.get("settings"):
            heads = tuple(one["settings"][0])
            table("", heads, [tuple(row.values()) for row in one["settings"]])


def _sections() -> list[str]:
    """Sections of an experiment that have settings of their own, such as `training`, whatever is chosen elsewhere."""
    from fedstill.cli.reference import section_settings
    from fedstill.runtime.experiment import PARTS, experiment_class

    return [name for name in experiment_class().model_fields if name not in PARTS and section_settings(name)]


def _section(name: str) -> list[dict[str, Any]]:
    from fedstill.cli.reference import section_settings

    if name not in _sections():
        return []
    return [
        {"shelf": "section of an experiment", "name": name, "what": kind.__doc__, "settings": _setting_rows(kind)}
        for kind in section_settings(name)
    ]


def _details(shelf: str, name: str) -> dict[str, Any]:
    """Settings of a part, sizes of a model, the source of a data set, presets and variants of a recipe."""
    from fedstill.cli.reference_page import model_sizes
    from fedstill.data.bundle import datasets
    from fedstill.data.file_sources import FromFiles
    from fedstill.models import models
    from fedstill.runtime.experiment import PARTS, settings_of
    from fedstill.runtime.recipes import recipe_layers

    if shelf == "models":
        return {"sizes": model_sizes(models[name])}
    if shelf == "datasets":
        loader = datasets[name]
        return {"where it comes from": loader.get if isinstance(loader, FromFiles) else "built in"}
    if shelf in ("recipes", "studies"):
        return {kind: ", ".join(layers) for kind, layers in recipe_layers()[name].items()}
    section = _SECTIONS.get(shelf)
    if section is None:
        return {}
    return {"settings": _setting_rows(settings_of(PARTS[section][name]))}


def _setting_rows(kind: type[Settings]) -> list[dict[str, str]]:
    from fedstill.cli.reference_page import SETTING_HEADS, plain_text, setting_rows

    return [dict(zip(SETTING_HEADS, map(plain_text, row), strict=True)) for row in setting_rows(kind)]


def _show_traffic(as_json: bool) -> None:
    """What a client of each method sends and receives in a round, measured."""
    from fedstill.methods import methods
    from fedstill.runtime.method_traffic import MODEL, client_traffic

    measured = {name: client_traffic(name) for name in methods if not methods[name].pooled}
    if as_json:
        print_json({name: None if found is None else vars(found) for name, found in measured.items()})
        return
    usual = client_traffic("fedavg")
    assert usual is not None
    rows = [
        (name, size(found.up), size(found.down), f"{found.up / usual.up:.2f}")
        for name, found in measured.items()
        if found
    ]
    title = f"a client's round, {MODEL} on digits, after its first"
    table(title, ("method", "sent", "received", "sent / fedavg"), rows, right=(1, 2, 3))
