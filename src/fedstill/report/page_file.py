"""A page as a file, with its figures as files beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

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


def link_below(page: Path, folder: Path | None) -> str:
    """A link from a page to a run's folder below its own, or to the page in it; empty where there is neither."""
    if folder is None or not folder.is_dir() or not folder.resolve().is_relative_to(page.parent.resolve()):
        return ""
    link = quote(folder.resolve().relative_to(page.parent.resolve()).as_posix())
    return f"{link}/report.html" if (folder / "report.html").is_file() else f"{link}/"
