"""Markdown that reads well on a code host and in an editor."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fedstill.core.table import markdown_rows


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
