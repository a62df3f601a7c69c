"""Parts of an experiment in a few words."""

from __future__ import annotations

from typing import Any

from fedstill.runtime.experiment import Choice


def part(choice: Choice) -> str:
    """A part with its first setting, which is its main one by convention, and whatever else is not as usual.

    >>> from fedstill.runtime.experiment import choose
    >>> part(choose("partition", {"name": "dirichlet", "alpha": 0.1})), part(choose("partition", "iid"))
    ('dirichlet, alpha 0.1', 'iid')
    """
    changed = changed_settings(choice)
    held = choice.settings.model_dump(mode="json")
    first = next(iter(type(choice.settings).model_fields), None)
    told = {first: held[first], **changed} if first and _own(choice, first) else changed
    return ", ".join([choice.name, *(f"{name.replace('_', ' ')} {value}" for name, value in told.items())])


def changed_settings(choice: Choice) -> dict[str, Any]:
    """The settings that differ from the part's own defaults; required ones always do."""
    held = choice.settings.model_dump(mode="json")
    fields = type(choice.settings).model_fields
    usual = {name: field.get_default(call_default_factory=True) for name, field in fields.items()}
    return {name: held[name] for name in held if getattr(choice.settings, name) != usual[name]}


def _own(choice: Choice, setting: str) -> bool:
    """Whether a setting is of this part, and not one that all parts of its kind share."""
    return setting in type(choice.settings).__annotations__
