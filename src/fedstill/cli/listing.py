"""`fedstill list`: everything that can be chosen by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from fedstill.cli.screen import console, print_json, table
from fedstill.core.errors import InputError, did_you_mean
from fedstill.core.numbers import size
from fedstill.core.plugins import use_plugins
from fedstill.core.registry import Registry
from fedstill.data.catalogue import datasets
from fedstill.data.partitions import partitions
from fedstill.distillation import objectives
from fedstill.engines import engines
from fedstill.methods import methods
from fedstill.methods.wrappers.attacks import attacks
from fedstill.methods.wrappers.mitigations import mitigations
from fedstill.methods.wrappers.privacy import privacies
from fedstill.models import models
from fedstill.participation import dropouts, policies
from fedstill.runtime.method_traffic import MODEL, client_traffic
from fedstill.runtime.recipes import recipe_names


def _registered(registry: Registry[object]) -> Callable[[], dict[str, str]]:
    return lambda: {name: registry.summary(name) for name in registry}


SHELVES: dict[str, Callable[[], dict[str, str]]] = {
    "methods": _registered(methods),  # type: ignore[arg-type]
    "objectives": _registered(objectives),  # type: ignore[arg-type]
    "attacks": _registered(attacks),  # type: ignore[arg-type]
    "privacy": _registered(privacies),  # type: ignore[arg-type]
    "datasets": _registered(datasets),  # type: ignore[arg-type]
    "models": _registered(models),  # type: ignore[arg-type]
    "partitions": _registered(partitions),  # type: ignore[arg-type]
    "participation": _registered(policies),  # type: ignore[arg-type]
    "dropouts": _registered(dropouts),  # type: ignore[arg-type]
    "mitigations": _registered(mitigations),  # type: ignore[arg-type]
    "engines": _registered(engines),  # type: ignore[arg-type]
    "recipes": lambda: recipe_names(study=False),
    "studies": lambda: recipe_names(study=True),
}

FORMER_SHELVES = {"cures": "mitigations"}  # names of earlier releases


def show(what: str | None, plugins: Sequence[Path], as_json: bool) -> None:
    use_plugins(plugins)
    what = FORMER_SHELVES.get(what, what) if what else None
    if what is not None and what not in SHELVES:
        raise InputError(f"cannot list {what!r}: {did_you_mean(what, SHELVES)}")
    shown = {name: shelf() for name, shelf in SHELVES.items() if what in (None, name)}
    if as_json:
        print_json(shown)
        return
    for name, parts in shown.items():
        if not parts and what is None:
            continue
        table(name, ("name", "what it is"), sorted(parts.items()))
        console.print()


def show_traffic(what: str | None, plugins: Sequence[Path], as_json: bool) -> None:
    """What a client of each method sends and receives in a round, measured."""
    if what != "methods":
        raise InputError("--traffic tells what methods send: write `fedstill list methods --traffic`")
    use_plugins(plugins)
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
