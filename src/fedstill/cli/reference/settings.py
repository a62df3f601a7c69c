"""Settings classes as tables."""

from __future__ import annotations

import types
import typing
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from fedstill.cli.reference.markdown import code, link, table
from fedstill.core.settings import Settings
from fedstill.runtime.experiment import Choice

_TITLES = {
    "method": "Methods",
    "partition": "Partitions",
    "augmentation": "Augmentations",
    "attack": "Attacks",
    "mitigation": "Dropout mitigation",
    "objective": "Objectives",
}
_BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def settings_table(kind: type[Settings]) -> str:
    """A row for each setting: name, type with its bounds, default, description."""
    rows = [(code(name), _type(name, field), _default(field), _said(field)) for name, field in fields_of(kind)]
    return table(("setting", "type", "default", "what it is"), rows)


def fields_of(kind: type[Settings]) -> list[tuple[str, FieldInfo]]:
    return list(kind.model_fields.items())


def nested(kind: type[Settings]) -> list[type[Settings]]:
    """The settings classes that its settings are made of, directly or further down, each once."""
    found: list[type[Settings]] = []

    def visit(annotation: Any) -> None:
        if isinstance(annotation, type) and not get_args(annotation):
            if issubclass(annotation, Settings) and annotation is not Choice and annotation not in found:
                found.append(annotation)
                for _, field in fields_of(annotation):
                    visit(field.annotation)
            return
        for part in get_args(annotation):
            visit(part)

    for _, field in fields_of(kind):
        visit(field.annotation)
    return found


def heading_of(kind: type[Settings]) -> str:
    """How a settings class that is not a part's own is called in the reference."""
    return f"Settings {kind.__name__}"


def _type(name: str, field: FieldInfo) -> str:
    if _is_choice(field.annotation):
        return f"a part, see {link(section_title(name))}"
    return " ".join([spelt(field.annotation), *_bounds(field)])


def section_title(section: str) -> str:
    """The heading under which the parts are listed that an experiment's section chooses from."""
    return _TITLES.get(section, section.capitalize())


def _is_choice(annotation: Any) -> bool:
    return annotation is Choice or Choice in get_args(annotation)


def spelt(annotation: Any) -> str:
    """A type in words.

    >>> spelt(int | None), spelt(Literal["half", "full"]), spelt(dict[str, int]), spelt(tuple[float, ...])
    ('int or none', '`half` or `full`', 'dict of str to int', 'list of float')
    """
    origin, parts = get_origin(annotation), get_args(annotation)
    if annotation is type(None):
        return "none"
    if annotation is Ellipsis:
        return "..."
    if origin is Literal:
        return _either([code(str(part)) for part in parts])
    if origin in (typing.Union, types.UnionType):
        return _either([spelt(part) for part in parts])
    if origin is typing.Annotated:
        return spelt(parts[0])
    if origin is dict or getattr(origin, "__name__", "") == "Mapping":
        return f"dict of {spelt(parts[0])} to {spelt(parts[1])}"
    if origin is tuple and len(parts) == 2 and parts[1] is not Ellipsis:
        return f"pair of {spelt(parts[0])} and {spelt(parts[1])}"
    if origin in (list, tuple):
        return f"list of {spelt(parts[0])}"
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return link(heading_of(annotation), annotation.__name__)
    return str(getattr(annotation, "__name__", annotation))


def _either(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _bounds(field: FieldInfo) -> list[str]:
    found = []
    for rule in field.metadata:
        found += [
            f"{sign} {_number(bound)}"
            for key, sign in _BOUNDS.items()
            if (bound := getattr(rule, key, None)) is not None
        ]
    return found


def _number(value: Any) -> str:
    return (
        f"{value:,}"
        if isinstance(value, int) and value < 2**40
        else f"2^{value.bit_length() - 1}"
        if isinstance(value, int)
        else f"{value:g}"
    )


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "none"
    if isinstance(value, Choice):
        return code(value.name)
    if isinstance(value, Settings):
        return "its defaults"
    if isinstance(value, bool):
        return code(str(value).lower())
    if isinstance(value, list | tuple | dict) and not value:
        return "empty"
    return code(", ".join(map(str, value)) if isinstance(value, list | tuple | dict) else str(value))


def _said(field: FieldInfo) -> str:
    return field.description or ""
