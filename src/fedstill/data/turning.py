"""A figure to turn with the mouse as one HTML file that needs nothing else, not even a network."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from fedstill.core.errors import FedstillError, InputError
from fedstill.core.files import write_atomically


def write_turning(figure: Any, path: Path, title: str) -> None:
    """Plotly's figure, as high as the window, with plotly itself in the file."""
    config = {"displaylogo": False, "responsive": True}
    page = figure.to_html(include_plotlyjs=True, full_html=True, default_height="96vh", config=config)
    page = page.replace("<head>", f"<head><title>{escape(title)}</title>", 1)
    try:
        write_atomically(path, page.encode())
    except FedstillError as error:
        raise InputError(f"{path} cannot be written: {error.__cause__}") from None
