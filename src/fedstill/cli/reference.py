"""`fedstill reference`: every command, part and setting as one Markdown page, written from the code.

Commands are read from the functions' own signatures: the objects that Typer makes of them differ between its releases.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from inspect import Parameter, getdoc, signature
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import typer
from pydantic.fields import FieldInfo
from typer.models import ArgumentInfo, OptionInfo

from fedstill.cli import HELP_WIDTH
from fedstill.cli.list import shelves
from fedstill.cli.options import Plugin
from fedstill.core.files import writable_file, write_atomically
from fedstill.core.plugins import use_plugins
from fedstill.core.slices import slices
from fedstill.core.table import markdown_rows

if TYPE_CHECKING:
    from fedstill.core.settings import Settings

# What a value is called in usage lines, by its type.
_KINDS: dict[Any, str] = {str: "TEXT", int: "INTEGER", float: "FLOAT", Path: "PATH"}


def reference(
    out: Annotated[Path | None, typer.Option(help="File to write (.md); default: print it.")] = None,
    names: Annotated[Path | None, typer.Option(help="Also write the names for shell completion (.json).")] = None,
    records: Annotated[Path | None, typer.Option(help="Also write the JSON Schema of records (.json).")] = None,
    plugin: Plugin = None,
) -> None:
    """Write the reference of all commands and settings, as Markdown."""
    from fedstill.cli.reference_page import reference_page
    from fedstill.cli.reference_records import schema_text

    use_plugins(plugin or [])
    for path in filter(None, (out, names, records)):
        writable_file(path)
    if names is not None:
        write_atomically(names, _names_text().encode())
    if records is not None:
        write_atomically(records, schema_text().encode())
    if out is None:
        sys.stdout.write(reference_page())
    else:
        write_atomically(out, reference_page().encode())


def _names_text() -> str:
    return json.dumps(completed_names(), indent=1, ensure_ascii=False) + "\n"


def completed_names() -> dict[str, Any]:
    """What `names.json` holds: by shelf, names with their sentences; by recipe, presets and variants."""
    from fedstill.audit.conditions import TOPICS
    from fedstill.audit.verdicts import SEVERITIES
    from fedstill.runtime.recipes import recipe_layers
    from fedstill.studies.results_table import metrics

    names = {shelf: dict(sorted(listed().items())) for shelf, listed in shelves().items()}
    layers = recipe_layers()
    return {
        **names,
        "shelves": dict.fromkeys(names, ""),
        "metrics": {name: what for name, (what, _, _) in metrics().items()},
        "findings": dict.fromkeys([*SEVERITIES, *TOPICS], ""),
        "presets": {recipe: kinds["presets"] for recipe, kinds in layers.items() if kinds["presets"]},
        "help": overview(),
        "settings": settable(),
        "slices": list(slices()),
        "values": settable_values(),
        "variants": {recipe: kinds["variants"] for recipe, kinds in layers.items() if kinds["variants"]},
    }


def settable() -> dict[str, str]:
    """What `--set` takes, with descriptions: settings of an experiment, its sections, and parts chosen in them."""
    found = {path: field.description or "" for path, field in _settable_fields()}
    return dict(sorted(found.items()))


def settable_values() -> dict[str, list[str]]:
    """By setting, the words that it takes, or its usual ones, where there are such."""
    found: dict[str, list[str]] = {}
    for path, field in _settable_fields():  # parts of one section may have settings of one name
        if words := [*dict.fromkeys([*found.get(path, []), *_words(field)])]:
            found[path] = words
    return dict(sorted(found.items()))


def _words(field: FieldInfo) -> list[str]:
    def literals(annotation: Any) -> Iterator[str]:
        if annotation is bool:
            yield from ("true", "false")
        elif get_origin(annotation) is Literal:
            yield from (word for word in get_args(annotation) if isinstance(word, str))
        elif get_origin(annotation) in (Union, UnionType, Annotated):
            for part in get_args(annotation):
                yield from literals(part)

    return [*literals(field.annotation)] or [word for word in field.examples or () if isinstance(word, str)]


def _settable_fields() -> Iterator[tuple[str, FieldInfo]]:
    from fedstill.runtime.experiment import PARTS, experiment_class

    for name, field in experiment_class().model_fields.items():
        inner = section_settings(name)
        if name in PARTS or not inner:
            yield name, field
        for kind in inner:
            yield from ((f"{name}.{key}", own) for key, own in kind.model_fields.items())


def section_settings(name: str) -> list[type[Settings]]:
    """The settings of an experiment's section: of each part that can be chosen in it, or its own; else none."""
    from fedstill.core.settings import Settings
    from fedstill.runtime.experiment import PARTS, Choice, experiment_class, settings_of

    if name in PARTS:
        return [settings_of(PARTS[name][part]) for part in PARTS[name]]
    field = experiment_class().model_fields[name]
    kinds = [kind for kind in (field.annotation, *get_args(field.annotation)) if isinstance(kind, type)]
    return [kind for kind in kinds if issubclass(kind, Settings) and kind is not Choice]


def overview() -> str:
    """The help of the whole command line at its usual width."""
    from fedstill.cli.app import app

    command = typer.main.get_command(app)
    context = command.make_context("fedstill", [], resilient_parsing=True, terminal_width=HELP_WIDTH)
    return command.get_help(context) + "\n"


@dataclass(frozen=True)
class Command:
    """A command: what is typed to call it, what it does, and what may follow."""

    typed: str
    help: str
    arguments: tuple[Argument, ...]
    options: tuple[Option, ...]


@dataclass(frozen=True)
class Argument:
    metavar: str
    help: str
    required: bool

    def usage(self) -> str:
        return self.metavar if self.required else f"[{self.metavar}]"


@dataclass(frozen=True)
class Option:
    names: tuple[str, ...]
    kind: Any
    default: Any
    help: str

    def usage(self) -> str:
        long_first = ", ".join(code(name) for name in sorted(self.names, key=lambda name: not name.startswith("--")))
        return long_first if self.kind is bool else f"{long_first} {_KINDS[self.kind]}"

    def default_text(self) -> str:
        if self.default is Parameter.empty:
            return "required"
        if self.default is None or self.default is False:
            return ""
        return code(self.names[0] if self.default is True else str(self.default))


def commands(app: typer.Typer, above: str = "fedstill") -> Iterator[Command]:
    """Every command below a word, in the order of the help.

    >>> app = typer.Typer()
    >>> @app.command(name="greet")
    ... def greet(name: str, loud: bool = False) -> None:
    ...     "Say hello."
    >>> [one] = commands(app, "polite")
    >>> one.typed, one.help, one.arguments[0].usage(), one.options[0].usage()
    ('polite greet', 'Say hello.', 'NAME', '`--loud`, `--no-loud`')
    """
    for registered in app.registered_commands:
        if registered.callback is not None and not registered.hidden:
            yield _command(f"{above} {registered.name}", registered.callback)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            yield from commands(group.typer_instance, f"{above} {group.typer_instance.info.name}")


def _command(typed: str, function: Any) -> Command:
    hints = get_type_hints(function, include_extras=True)
    arguments, options = list[Argument](), list[Option]()
    for one in signature(function).parameters.values():
        hint = hints[one.name]
        info = next(iter(getattr(hint, "__metadata__", ())), None)
        kind = _value_type(get_args(hint)[0] if info is not None else hint)
        if kind is typer.Context:
            continue
        text = str(getattr(info, "help", None) or "")
        required = one.default is Parameter.empty
        if isinstance(info, ArgumentInfo) or (info is None and required):
            arguments.append(Argument(getattr(info, "metavar", None) or one.name.upper(), text, required))
        else:
            options.append(Option(_names(one.name, kind, info), kind, one.default, text))
    return Command(typed, getdoc(function) or "", tuple(arguments), tuple(options))


def _value_type(hint: Any) -> Any:
    """The type of one value: without `None`, and of a list what it holds.

    >>> _value_type(list[int] | None), _value_type(Path | None), _value_type(bool)
    (<class 'int'>, <class 'pathlib.Path'>, <class 'bool'>)
    """
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (one for one in get_args(hint) if one is not NoneType)
    return get_args(hint)[0] if get_origin(hint) is list else hint


def _names(parameter: str, kind: Any, info: OptionInfo | None) -> tuple[str, ...]:
    """Inside `Annotated` the first name of an option stands where its default would: it has no other place there."""
    declared = (info.default, *(info.param_decls or ())) if info is not None else ()
    names = tuple(name for one in declared if isinstance(one, str) for name in one.split("/"))
    word = parameter.replace("_", "-")
    return names or ((f"--{word}", f"--no-{word}") if kind is bool else (f"--{word}",))


def described(command: Command) -> str:
    """A command's part of the page."""
    words = [command.typed, *(["[OPTIONS]"] if command.options else [])]
    usage = " ".join([*words, *(one.usage() for one in command.arguments)])
    pieces = [command.help, f"```\n{usage}\n```"]
    if command.arguments:
        rows = [(code(one.usage()), one.help) for one in command.arguments]
        pieces.append(table(("argument", "what it is"), rows))
    if command.options:
        lines = [(one.usage(), one.default_text(), one.help) for one in command.options]
        pieces.append(table(("option", "default", "what it is"), lines))
    return "\n\n".join(pieces)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose columns are all aligned to the left."""
    return markdown_rows(heads, rows, "|" + "---|" * len(heads))


def anchor(heading: str) -> str:
    """What code hosts make of a heading to link to it.

    >>> anchor("fedstill data list"), anchor("Method fedavg"), anchor("Wrappers: `none`")
    ('fedstill-data-list', 'method-fedavg', 'wrappers-none')
    """
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def link(heading: str, text: str | None = None) -> str:
    return f"[{text or heading}](#{anchor(heading)})"


def code(text: str) -> str:
    return f"`{text}`"
