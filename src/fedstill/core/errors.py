"""Exceptions, by who has to act on them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher, get_close_matches

_LISTED = 12  # of many names that are known, so many are told
_NEAR, _SAME = 0.6, 0.8  # from 0 to 1: what is less alike was not meant; what is more, surely
_ALSO_CALLED = {"lr": "rate"}  # elsewhere, in a word that is not at all alike


class FedstillError(Exception):
    """One clear sentence for the user; the command line prints it without a traceback."""

    exit_code = 1


class InputError(FedstillError):
    """The input was wrong, and nothing has been done yet (exit code 2)."""

    exit_code = 2


class BusyError(InputError):
    """Another process is working on it."""


class UnusableError(InputError):
    """There can be no result, which is one: a teacher that says no numbers, an objective that labels alone can judge.

    A study writes it down and does not count it as a failure.
    """


class MissingDataError(InputError):
    """Data beside the experiment's own, by name, that is not here or does not fit."""

    def __init__(self, name: str, sentence: str) -> None:
        super().__init__(sentence)
        self.name = name


class RunError(FedstillError):
    """Something failed while running; what was committed before is kept (exit code 1)."""


class EndsRunError(RunError):
    """Ends the run although a single client raised it: the others' results would be wrong, too."""


class DataChangedError(EndsRunError):
    """Samples are no longer what the run's identity was made of."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The tail of a sentence about an unknown name.

    >>> did_you_mean("fedvag", ["fedavg", "centralised"])
    "did you mean 'fedavg'? Known: centralised, fedavg"
    >>> did_you_mean("learning_rate", ["encoder_rate", "rate"])
    "did you mean 'rate'? Known: encoder_rate, rate"
    >>> did_you_mean("zebra", ["fedavg", "fedavg"])
    'known: fedavg'
    >>> did_you_mean("zebra", [])
    'there are none'
    """
    names = sorted(set(known))
    if not names:
        return "there are none"
    near = _nearest(name.lstrip("-"), {one.lstrip("-"): one for one in names})
    return f"did you mean {near!r}? Known: {_listed(name, names)}" if near else f"known: {_listed(name, names)}"


def _nearest(name: str, known: Mapping[str, str]) -> str | None:
    """What is nearly the same; else one of its words, of several the last; else what is somewhat like it."""
    words = [_ALSO_CALLED.get(word, word) for word in re.split(r"[\W_]+", name)]
    parts = [word for word in reversed(words) if word in known]
    near = get_close_matches(name, known, n=1, cutoff=_SAME) or parts or get_close_matches(name, known, 1, _NEAR)
    return known[near[0]] if near else None


def _listed(name: str, names: Sequence[str]) -> str:
    """All names, or of many those that are most like it, and how many there are beside."""
    if len(names) <= _LISTED + 3:  # to leave out one or two helps nobody
        return ", ".join(names)
    alike = sorted(names, key=lambda one: -SequenceMatcher(None, one, name).ratio())
    return f"{', '.join(sorted(alike[:_LISTED]))} and {len(names) - _LISTED} more"
