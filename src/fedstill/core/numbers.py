"""Formatting of numbers for readers. A no-break space keeps a number and its unit on one line."""

from __future__ import annotations

from collections.abc import Sequence

_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_UNITS = ("B", "KiB", "MiB", "GiB")
MISSING = "–"  # noqa: RUF001 (a dash is how tables say that there is nothing)


def share(value: float | None, digits: int = 2) -> str:
    """A share as a percentage.

    >>> share(0.94712), share(0.94712, 1), share(None)
    ('94.71\\xa0%', '94.7\\xa0%', '–')
    """
    return MISSING if value is None else f"{100 * value:.{digits}f}\u00a0%"


def points(difference: float) -> str:
    """A difference of two shares, without its sign.

    >>> points(-0.0612), points(0.01), points(1 - 0.9625)  # 3.75, of which binary fractions make a little less
    ('6.1\\xa0points', '1.0\\xa0point', '3.8\\xa0points')
    """
    size = f"{round(abs(100 * difference), 9):.1f}"
    return f"{size}\u00a0point" + ("" if size == "1.0" else "s")


def unit_of(count: float) -> tuple[str, int]:
    """The unit in which this many bytes read best, and its size.

    >>> unit_of(5 * 2**20)
    ('MiB', 1048576)
    """
    number = 0
    while number < len(_UNITS) - 1 and count >= 1024 ** (number + 1):
        number += 1
    return _UNITS[number], 1024**number


def size(count: float) -> str:
    """Bytes for people.

    >>> size(512), size(1536)
    ('512\\xa0B', '1.5\\xa0KiB')
    """
    unit, scale = unit_of(count)
    return f"{count / scale:.{1 if scale > 1 else 0}f}\u00a0{unit}"


def duration(seconds: float) -> str:
    """A time for people.

    >>> duration(3.94), duration(125), duration(124827)
    ('3.9\\xa0s', '2\\xa0min 5\\xa0s', '34\\xa0h 40\\xa0min')
    """
    if seconds < 60:
        return f"{seconds:.1f}\u00a0s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 120:
        return f"{minutes // 60}\u00a0h {minutes % 60}\u00a0min"
    return f"{minutes}\u00a0min {rest}\u00a0s"


def count(number: int, what: str) -> str:
    """A number of things, small ones as a word.

    >>> count(1, "round"), count(3, "class"), count(40, "way")
    ('one round', 'three classes', '40 ways')
    """
    word = _WORDS[number] if number < len(_WORDS) else f"{number:,}"
    ending = "" if number == 1 else "es" if what.endswith("s") else "s"
    return f"{word} {what}{ending}"


def listed(names: Sequence[str]) -> str:
    """Several things in one sentence.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def capital(sentence: str) -> str:
    """As it stands at a sentence's beginning; the rest is left alone."""
    return sentence[:1].upper() + sentence[1:]
