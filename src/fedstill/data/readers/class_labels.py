"""Names of classes as tables have them: their order, numbers in place of names, missing ones."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress

_WHOLE = re.compile(r"\d+(\.0*)?")  # a spreadsheet writes 1 as 1.0 where a cell of the column is empty
# As programs write an empty cell.
MISSING_LABELS = frozenset({"nan", "na", "n/a", "#n/a", "#na", "<na>", "nat", "null"})


def without_missing(labels: list[str], classes: tuple[str, ...]) -> list[str]:
    """Labels, empty where one is missing; a class that is called so was given by its name.

    >>> without_missing(["ill", "NaN", "NA"], ()), without_missing(["NA"], ("NA", "B"))
    (['ill', '', ''], ['NA'])
    """
    return ["" if label.lower() in MISSING_LABELS and label not in classes else label for label in labels]


def sorted_names(names: set[str]) -> tuple[str, ...]:
    """Names in order, as numbers if all are.

    >>> sorted_names({"10", "9"}), sorted_names({"b", "a"}), sorted_names({"1", "01", "0"})
    (('9', '10'), ('a', 'b'), ('0', '01', '1'))
    """
    whole = all(name.removeprefix("-").isdecimal() for name in names)
    # Names that are one number in two ways have an order, too: that of a set changes from process to process.
    return tuple(sorted(sorted(names), key=int) if whole else sorted(names))


def class_of_numbers(labels: list[str], classes: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Labels, by name where they are the numbers of classes that were given, and a note that says so.

    >>> class_of_numbers(["1", "0.0"], ("healthy", "ill"))[0], class_of_numbers(["a"], ("a", "b"))
    (['ill', 'healthy'], (['a'], []))
    """
    used = {label for label in labels if label}
    numbers = {name: int(float(name)) for name in used if _WHOLE.fullmatch(name)}
    if (
        not classes
        or used & set(classes)
        or len(numbers) < len(used)
        or max(numbers.values(), default=0) >= len(classes)
    ):
        return labels, []
    named = ", ".join(
        f"{name} is {classes[number]}" for name, number in sorted(numbers.items(), key=lambda one: one[1])
    )
    return [classes[numbers[label]] if label else "" for label in labels], [
        f"labels are the numbers of classes: {named}"
    ]


def alike(names: Iterable[str]) -> list[str]:
    """Pairs of class names that are probably one: they differ in case or blanks, or are one number.

    >>> alike({"Ill", "ill ", "well"}), alike({"1", "1.0"}), alike({"1", "2"})
    (["the classes 'Ill' and 'ill ', which may be one"], ["the classes '1' and '1.0', which may be one"], [])
    """
    first: dict[str | float, str] = {}
    pairs = []
    for name in sorted(names):
        key: str | float = " ".join(name.casefold().split())
        with suppress(ValueError):
            key = float(key)
        if key in first:
            pairs.append(f"the classes {first[key]!r} and {name!r}, which may be one")
        first.setdefault(key, name)
    return pairs
