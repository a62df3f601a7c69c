"""Samples of a data set to turn with the mouse: one HTML file that needs nothing else, not even a network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedstill.core.files import write_output
from fedstill.report.page import PageSection, render

TURNING = "Drag to turn; arrow keys turn it too, + and \u2212 change its size."


def write_samples_page(path: Path, name: str, about: str, sections: Sequence[PageSection]) -> None:
    """Figures of the 3-D viewer under headings, with everything they need in the file."""
    page = render("samples.html.jinja", sections, heading=name, about=about)
    write_output(path, page.encode())
