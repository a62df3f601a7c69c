"""The colours of every picture of data."""

from __future__ import annotations

from colorsys import hsv_to_rgb

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, to_hex, to_rgb

INK = "#22333b"
FAINT = "#7d8f96"
ACCENT = "#2a7f9e"
SHADES = LinearSegmentedColormap.from_list("still", ["#ffffff", "#cfe6ea", "#6db3c4", "#2a7f9e", "#12435c"])
# From shadow to light, for surfaces: never so light that it is lost on white paper.
SURFACE = ["#0b2533", "#12435c", "#2a7f9e", "#63b1c3", "#b4dde3"]
# Things that differ in kind, told apart also by most who do not see all colours; neighbours in the list differ most.
SEVERAL = ["#2a7f9e", "#e69f00", "#b0518f", "#3f9b57", "#d1495b", "#7fb8e6", "#8a6d3b", "#6457a6", "#9aa84b", "#7d8f96"]
LIT = LinearSegmentedColormap.from_list("lit", SURFACE)


def part_colours(count: int) -> list[str]:
    """As many colours as there are parts.

    >>> part_colours(2), len(set(part_colours(50)))
    (['#2a7f9e', '#e69f00'], 50)
    """
    if count <= len(SEVERAL):
        return SEVERAL[:count]
    return [to_hex(hsv_to_rgb(number / count, 0.75, 0.55 + 0.3 * (number % 2))) for number in range(count)]


def box_colours(count: int) -> list[str]:
    """As many colours as there are classes of things in scenes, none of them the grey of the room around.

    >>> box_colours(10)[:-1] == part_colours(9), box_colours(10)[-1]
    (True, '#22333b')
    """
    return [*SEVERAL[:-1], INK][:count] if count <= len(SEVERAL) else part_colours(count)


def surface_of(colour: str) -> LinearSegmentedColormap:
    """From shadow to light, for a surface of this colour."""
    base = np.array(to_rgb(colour))
    return LinearSegmentedColormap.from_list(colour, [0.3 * base, 0.65 * base, base, base + 0.5 * (1 - base)])
