"""Markdown that reads well on a code host and in an editor."""

from __future__ import annotations

import re
from collections.abc import Sequence


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; bars in its cells would end them.

    >>> print(table(("name", "what"), [("a", "b|c")]))
    | name | what |
    |---|---|
    | a | b\\|c |
    """
    lines = [heads, *rows]
    written = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
    return "\n".join([written[0], "|" + "---|" * len(heads), *written[1:]])


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
