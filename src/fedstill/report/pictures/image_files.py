"""Pictures of data as files."""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from fedstill.core.errors import InputError
from fedstill.report.pictures.colours import FAINT, INK


def head(figure: Figure, axes: Axes, place: tuple[float, float], name: str, about: str) -> None:
    """The name of what is drawn, and beside it, less strong, what is to be known about it."""
    heading = figure.text(*place, name, color=INK, fontsize=11, weight="bold", va="center")
    axes.annotate(
        about,
        (1, 0.5),
        xycoords=heading,
        xytext=(8, 0),
        textcoords="offset points",
        color=FAINT,
        fontsize=9,
        va="center",
    )


def save(figure: Figure, path: Path, dpi: int) -> None:
    """Write a picture: the same one gives the same bytes, and a class called `US$` is no formula."""
    for words in figure.findobj(Text):
        words.set_parse_math(False)
    # Marks at axes get their words while they are drawn; a fixed salt and no date keep vectors the same.
    with matplotlib.rc_context({"text.parse_math": False, "svg.hashsalt": "fedstill"}):
        metadata = {"Date": None} if path.suffix.lower() == ".svg" else {}
        try:
            figure.savefig(path, dpi=dpi, facecolor="white", metadata=metadata)
        except OSError as error:
            raise InputError(f"{path} cannot be written: {error.strerror or error}") from None
