"""`fedstill list`: everything that can be chosen by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import typer

from fedstill.cli.options import Json, Plugin, named
from fedstill.cli.screen import console, print_json, table
from fedstill.core.errors import InputError, did_you_mean
from fedstill.core.numbers import size
from fedstill.core.registry import Registry

FORMER_SHELVES = {"cures": "mitigations"}  # names of earlier releases


def list_(
    what: Annotated[
        str | None,
        typer.Argument(
            help="What to list, e.g. methods, objectives, models, datasets, recipes or studies; default: all.",
            autocompletion=named("shelves"),
        ),
    ] = None,
    traffic: Annotated[bool, typer.Option("--traffic", help="Show the measured traffic of each method.")] = False,
    plugin: Plugin = None,
    json: Json = False,
) -> None:
    """List methods, models, data sets etc., with a sentence each."""
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
    from fedstill.methods.wrappers.choices import attacks, mitigations, privacies
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
        raise InputError(f"cannot list {what!r}: {did_you_mean(what, every)}")
    shown = {name: shelf() for name, shelf in every.items() if what in (None, name)}
    if as_json:
        print_json(shown)
        return
    for name, parts in shown.items():
        if not parts and what is None:
            continue
        table(name, ("name", "what it is"), sorted(parts.items()))
        console.print()


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
