"""Which models are meant where several runs are named."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedstill.core.errors import InputError


def paired(runs: Sequence[Path], architectures: Sequence[str], option: str) -> list[tuple[Path, str | None]]:
    """Each run with the architecture that is meant: one for all, one each, or of a single run as many as are named.

    >>> [(run.name, model) for run, model in paired([Path("a"), Path("b")], ["cnn"], "--architecture")]
    [('a', 'cnn'), ('b', 'cnn')]
    """
    names: Sequence[str | None] = architectures or [None]
    if len(names) == 1 or len(runs) == 1:
        return [(run, name) for run in runs for name in names]
    if len(names) != len(runs):
        raise InputError(f"{option} is given {len(names)} times for {len(runs)} runs: give it once, or once for each")
    return list(zip(runs, names, strict=True))
