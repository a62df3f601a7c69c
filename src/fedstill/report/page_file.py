"""A page as a file, with its figures as files beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedstill.core.files import writable_folder, write_atomically
from fedstill.report.page import PageSection, render
from fedstill.report.static import draw_files


def write_page(
    path: Path, template: str, sections: Sequence[PageSection], figures: Path | None = None, **context: Any
) -> Path:
    """One HTML file that opens from disk without a network; into the folder `figures`, if there is one, go the figures
    as SVG and PNG files."""
    writable_folder(path.parent)
    page = render(template, sections, figures="" if figures is None else figures.name, **context)
    if figures is not None:
        draw_files([figure for section in sections for figure in section.figures], figures)
    write_atomically(path, page.encode())
    return path
