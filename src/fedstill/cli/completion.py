"""What a shell offers after TAB: names with their sentences, and runs. Quick, for a person waits: nothing is imported.

Names come from `names.json`, which `fedstill reference` writes and a test compares with what is registered. Parts of
plugins and data sets of the user's own are not in it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import typer

FILE = "names.json"
_MOST = 200  # runs that are offered
Offered = list[tuple[str, str]]


@cache
def _names() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(files("fedstill.cli").joinpath(FILE).read_text(encoding="utf-8"))
    return content


def named(*shelves: str) -> Callable[[str], Offered]:
    """Offers the names on these shelves of `fedstill list`.

    >>> named("methods")("fedp")
    [('fedprox', 'FedAvg whose clients are pulled towards the shared model.')]
    """

    def offer(incomplete: str) -> Offered:
        return [
            (name, sentence)
            for shelf in shelves
            for name, sentence in _names()[shelf].items()
            if name.startswith(incomplete)
        ]

    return offer


def one_of(*words: str) -> Callable[[str], list[str]]:
    """Offers some words.

    >>> one_of("last", "best", "selected")("b")
    ['best']
    """

    def offer(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return offer


def layers(kind: str) -> Callable[[typer.Context, str], list[str]]:
    """Offers the presets, or the variants, of the recipe that was typed before."""

    def offer(ctx: typer.Context, incomplete: str) -> list[str]:
        recipe = next((ctx.params[key] for key in ("recipe", "experiment", "source") if ctx.params.get(key)), None)
        known: dict[str, list[str]] = _names()[kind]
        every = known.get(recipe, []) if recipe in known else sorted({name for some in known.values() for name in some})
        return [name for name in every if name.startswith(incomplete)]

    return offer


def runs(incomplete: str) -> list[str]:
    """Folders of runs that go on as typed, and folders that hold some; before anything is typed, those in `runs`."""
    found = []
    for folder in _folders(incomplete or "runs/"):
        if (folder / "config.json").is_file():
            found.append(str(folder))
        elif next(folder.glob("*/config.json"), None) is not None:
            found.append(f"{folder}/")
        if len(found) == _MOST:
            break
    return found


def _folders(typed: str) -> Iterator[Path]:
    path = Path(typed)
    above, begun = (path, "") if typed.endswith("/") else (path.parent, path.name)
    try:
        every = sorted(above.iterdir())
    except OSError:
        return
    yield from (one for one in every if one.name.startswith(begun) and one.is_dir())
