"""What can go wrong, by who has to act on it."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class FedstillError(Exception):
    """One clear sentence for the person at the keyboard; the command line prints it without a traceback."""

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


class RunError(FedstillError):
    """Something failed while running; what was committed before is kept (exit code 1)."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The tail of a sentence about an unknown name.

    >>> did_you_mean("fedvag", ["fedavg", "centralised"])
    "did you mean 'fedavg'? Known: centralised, fedavg"
    >>> did_you_mean("zebra", ["fedavg"])
    'known: fedavg'
    >>> did_you_mean("zebra", [])
    'there are none'
    """
    names = sorted(known)
    if not names:
        return "there are none"
    listed = ", ".join(names)
    near = get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}? Known: {listed}" if near else f"known: {listed}"
