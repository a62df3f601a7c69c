"""Options that describe an experiment: the same ones, declared once, in every command that is given one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, get_type_hints

from fedstill.cli.options import (
    Clients,
    Cut,
    Data,
    Dropout,
    Model,
    Participation,
    Plugin,
    Preset,
    Query,
    Rounds,
    Seed,
    Set,
    Variant,
)
from fedstill.core.errors import InputError

if TYPE_CHECKING:  # at run time only when a command is called: help need not wait for torch
    from fedstill.runtime.experiment import Experiment

Command = Callable[..., None]


@dataclass(frozen=True, kw_only=True)
class Flags:
    """What was given on the command line, over what the method or recipe says."""

    data: Data = None
    model: Model = None
    partition: Cut = None
    participation: Participation = None
    dropout: Dropout = None
    clients: Clients = None
    rounds: Rounds = None
    seed: Seed = None
    query: Query = None
    set_: Set = None
    preset: Preset = None
    variant: Variant = None
    plugin: Plugin = None

    def assemble(self, name: str) -> Experiment:
        """The experiment of that name, a method's or a recipe's, with these laid over it."""
        from fedstill.core.plugins import use_plugins
        from fedstill.runtime.assemble import make_experiment
        from fedstill.runtime.recipes import given_by

        use_plugins(self.plugin or ())
        return make_experiment(self.over(given_by(name, self.preset, self.variant)))

    def over(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What was given with these laid over it; refuses a setting that has two values on the command line."""
        from fedstill.runtime.assemble import assignments, overlay, override, section_of, set_part
        from fedstill.runtime.experiment import PARTS, spelt_out

        layer, typed = self._layer(), list(self.set_ or ())
        for key, value in assignments(typed):
            section, _, below = key.partition(".")
            chosen, other = section_of(layer, section), set_part(key, value)
            if below:
                chosen = chosen.get(below) if isinstance(chosen, Mapping) else None
            elif section in PARTS:
                other = spelt_out(section, other)
            if section in layer and chosen is not None and chosen != other:
                option = "--query" if section == "queries" else f"--{section}"
                raise InputError(f"{option} and `--set {key}={value}` contradict each other: leave one of them out")
        return override(overlay(given, layer), typed)

    def _layer(self) -> dict[str, Any]:
        from fedstill.runtime.assemble import named_part, parse_value

        plain = {key: getattr(self, key) for key in ("data", "model", "clients", "rounds", "seed")}
        parts: dict[str, Any] = {
            key: named_part(text) for key in ("partition", "participation") if (text := getattr(self, key)) is not None
        }
        if self.dropout is not None:
            rate = parse_value(self.dropout)
            parts["dropout"] = rate if isinstance(rate, int | float) else named_part(self.dropout)
        queries = {"queries": {"by_hand": parse_queries(self.query)}} if self.query else {}
        return {**{key: value for key, value in plain.items() if value is not None}, **parts, **queries}


def parse_queries(words: Sequence[str]) -> dict[int, list[int]]:
    """Classes by client, as written on the command line.

    >>> parse_queries(["3:7,8", "0:1", "3:2"])
    {3: [7, 8, 2], 0: [1]}
    """
    queries: dict[int, list[int]] = {}
    for word in words:
        if re.fullmatch(r"\d+:\d+(,\d+)*", word) is None:
            raise InputError(f"cannot read the query {word!r}: write client:class,class, e.g. 3:7,8, both by number")
        client, _, classes = word.partition(":")
        queries.setdefault(int(client), []).extend(map(int, classes.split(",")))
    return queries


def with_flags(*left_out: str, **defaults: Any) -> Callable[[Command], Command]:
    """Give a command the options of `Flags`, but for those left out, in the place of its parameter `flags`.

    >>> @with_flags("data", rounds=3)
    ... def train(name: str, flags: Flags, quiet: bool = False) -> None:
    ...     print(name, flags.model, flags.rounds, quiet)
    >>> train(name="fedavg", model="cnn")
    fedavg cnn 3 False
    >>> [name for name in signature(train).parameters if name in ("name", "data", "model", "flags", "quiet")]
    ['name', 'model', 'quiet']
    """
    kinds = get_type_hints(Flags, include_extras=True)
    offered = {name: kind for name, kind in kinds.items() if name not in left_out}

    def decorate(command: Command) -> Command:
        hints, shown = get_type_hints(command, include_extras=True), list[Parameter]()
        for own in signature(command).parameters.values():
            if own.name != "flags":
                shown.append(own.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[own.name]))
                continue
            for name, kind in offered.items():
                default = defaults.get(name)
                shown.append(Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind))

        def called(**given: Any) -> None:
            typed = {name: given.pop(name, defaults.get(name)) for name in offered}
            command(flags=Flags(**typed), **given)

        called.__name__, called.__doc__, called.__module__ = command.__name__, command.__doc__, command.__module__
        called.__annotations__ = {one.name: one.annotation for one in shown}
        called.__signature__ = signature(command).replace(parameters=shown)  # type: ignore[attr-defined]
        return called

    return decorate
