"""Commands as they are typed: usage, arguments, options."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from fedstill.cli.plain import explain_arguments
from fedstill.cli.reference.markdown import code, table

_EVERYWHERE = {"--help"}


def commands(app: typer.Typer) -> Iterator[tuple[str, Any]]:
    """Every command by what is typed to call it, in the order of the help."""
    yield from _below(typer.main.get_command(app), "fedstill")


def _below(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield name, command
        return
    for word, below in command.commands.items():
        if not below.hidden:
            yield from _below(below, f"{name} {word}")


def described(name: str, command: Any) -> str:
    explain_arguments(command)
    shown = [one for one in command.params if not set(one.opts) & _EVERYWHERE]
    arguments = [one for one in shown if one.param_type_name == "argument"]
    options = [one for one in shown if one.param_type_name == "option"]
    usage = " ".join([name, *(["[OPTIONS]"] if options else []), *map(_metavar, arguments)])
    pieces = [str(command.help), f"```\n{usage}\n```"]
    if arguments:
        pieces.append(table(("argument", "what it is"), [(code(_metavar(one)), one.help or "") for one in arguments]))
    if options:
        told = [(_option(one), _default(one), one.help or "") for one in options]
        pieces.append(table(("option", "default", "what it is"), told))
    return "\n\n".join(pieces)


def _metavar(argument: Any) -> str:
    name = argument.metavar or str(argument.name).upper()
    return name if argument.required else f"[{name}]"


def _option(option: Any) -> str:
    names = ", ".join(code(name) for name in sorted(option.opts, key=len, reverse=True))
    if option.is_flag:
        return ", ".join([names, *(code(name) for name in option.secondary_opts)])
    return f"{names} {str(option.type.name).upper()}"


def _default(option: Any) -> str:
    if option.required:
        return "required"
    value = option.default
    if value is None or option.is_flag or callable(value):
        return code("--" + option.name) if option.is_flag and value is True else ""
    return code(str(value)) if str(value) not in ("[]", "()") else ""
