"""What commands are made of, and what slices add: commands, groups of them, and lines about a finished run.

Help is plain text with every argument explained; an unknown command or option gets one sentence.
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import ArgumentInfo, CommandFunctionType

from fedstill.core.errors import InputError, did_you_mean
from fedstill.core.logs import logging_to
from fedstill.core.registry import Registry

if TYPE_CHECKING:  # help need not wait for these
    from fedstill.core.records import RecordSection
    from fedstill.core.settings import Settings
    from fedstill.runtime.result import Run

# Typer brings its own copy of click or uses the installed one, depending on its release.
HELP = {"help_option_names": ["-h", "--help"]}
USAGE_ERROR: type[Any] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


class PlainCommand(TyperCommand):
    """A command whose help is plain text, and that suggests the option that was probably meant."""

    def get_help(self, ctx: Any) -> str:
        explain_arguments(self)
        return _unescaped(super().get_help(ctx))

    def format_arguments(self, ctx: Any, formatter: Any) -> None:
        """Typer has listed them; since 8.4 click would do it once more."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        explain_arguments(self)
        try:
            return super().parse_args(ctx, args)
        except USAGE_ERROR as error:
            raise InputError(self._sentence(ctx, error)) from None

    def _sentence(self, ctx: Any, error: Any) -> str:
        """What is wrong with what was typed, and what to type."""
        command, unknown, param = ctx.command_path, getattr(error, "option_name", None), getattr(error, "param", None)
        if isinstance(unknown, str) and hasattr(error, "possibilities"):
            known = [name for one in self.get_params(ctx) for name in one.opts if name.startswith("--")]
            setting = _setting(unknown) if "--set" in known else None
            remedy = f"it is a setting: --set {setting}=VALUE" if setting else did_you_mean(unknown, known)
            return f"`{command}` has no option {unknown!r}: {remedy}"
        if param is not None and hasattr(error, "param_type"):  # it is missing
            name = param.opts[0] if param.opts[0].startswith("-") else param.make_metavar(ctx)
            meaning = (getattr(param, "help", None) or "").rstrip(".")
            return f"`{command}` needs {name} ({meaning[:1].lower()}{meaning[1:]}): see `{command} --help`"
        return f"{error.format_message().rstrip('.')}: see `{command} --help`"


def _setting(option: str) -> str | None:
    """The setting that somebody took for an option, as they called it.

    >>> _setting("--lr"), _setting("--batch-size"), _setting("--training.rate"), _setting("--banana")
    ('lr', 'batch_size', 'training.rate', None)
    """
    from fedstill.cli.options import settings_to_type
    from fedstill.core.settings import ALIASES

    typed = option.lstrip("-").replace("-", "_")
    path = ".".join(ALIASES.get(word, word) for word in typed.split("."))
    known = [name.removesuffix("=") for name, _ in settings_to_type("")]
    return typed if any(name == path or name.endswith(f".{path}") for name in known) else None


class PlainGroup(TyperGroup):
    """Commands below one word."""

    def get_help(self, ctx: Any) -> str:
        return _unescaped(super().get_help(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help())
            raise typer.Exit
        try:
            return super().parse_args(ctx, args)
        except USAGE_ERROR as error:
            said = error.format_message().rstrip(".")
            raise InputError(
                f"{said}: options stand behind the name of a command, see `{ctx.command_path} --help`"
            ) from None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            known = [name for name, command in self.commands.items() if not command.hidden]
            raise InputError(
                f"`{ctx.command_path}` has no command {args[0]!r}: {did_you_mean(args[0], known)};"
                f" see `{ctx.command_path} --help`"
            )
        return super().resolve_command(ctx, args)


class Commands(typer.Typer):
    """A group of commands, all of them plain."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(
            cls=PlainGroup,
            rich_markup_mode=None,
            pretty_exceptions_enable=False,
            context_settings=HELP,
            **settings,
        )

    def command(self, name: str | None = None, **settings: Any) -> Callable[[CommandFunctionType], CommandFunctionType]:
        register = super().command(name, cls=PlainCommand, context_settings=HELP, **settings)

        def added(function: CommandFunctionType) -> CommandFunctionType:
            register(with_logging(function))
            return function

        return added


LogLevel = Annotated[
    str | None,
    typer.Option("--log-level", help="Show log records of this level and above: debug, info, warning or error."),
]
LogFile = Annotated[
    Path | None, typer.Option("--log-file", help="Append log records to this file instead of showing them.")
]


def with_logging(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options `--log-level` and `--log-file`.

    >>> @with_logging
    ... def count(number: int = 1) -> None:
    ...     print(number)
    >>> count(number=3, log_level="error", log_file=None)
    3
    """

    @wraps(command)
    def called(log_level: str | None, log_file: Path | None, **given: Any) -> None:
        with logging_to(log_level, log_file):
            command(**given)

    hints = typing.get_type_hints(command, include_extras=True)
    own = [one.replace(annotation=hints[one.name]) for one in signature(command).parameters.values()]
    kinds = {"log_level": LogLevel, "log_file": LogFile}
    shown = [Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=kind) for name, kind in kinds.items()]
    called.__signature__ = Signature([*own, *shown])  # type: ignore[attr-defined]
    called.__annotations__ = {one.name: one.annotation for one in (*own, *shown)}
    return called


def explain_arguments(command: Any) -> None:
    """Give arguments back what is said of them.

    Since click 8.4 arguments have a help of their own, by which that of older releases of Typer is overwritten with
    nothing; it still stands in the function's signature.
    """
    function = getattr(command.callback, "__wrapped__", command.callback)
    hints = typing.get_type_hints(function, include_extras=True)
    for one in command.params:
        for said in getattr(hints.get(one.name), "__metadata__", ()):
            if isinstance(said, ArgumentInfo) and not getattr(one, "help", None):
                one.help = said.help


def _unescaped(text: str) -> str:
    r"""Without the backslashes that Typer puts before brackets wherever rich is installed, used or not.

    >>> _unescaped(r"Folder.  \[default: runs]")
    'Folder.  [default: runs]'
    """
    return text.replace("\\[", "[")


@dataclass(frozen=True)
class RunSummary:
    """What is reported of a finished run beside the usual."""

    section: Callable[[Run], RecordSection | None]  # of what `--json` prints, under the summary's name
    show: Callable[[Run], None]  # in the terminal


commands: Registry[Callable[..., None] | Commands] = Registry("command")
documented_settings: Registry[type[Settings]] = Registry("settings for the reference")  # of commands, by heading
run_summaries: Registry[RunSummary] = Registry("summary of a run")
