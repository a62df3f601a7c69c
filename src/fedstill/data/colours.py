"""The colours of every picture of data."""

from __future__ import annotations

from matplotlib.colors import LinearSegmentedColormap

INK = "#22333b"
FAINT = "#7d8f96"
ACCENT = "#2a7f9e"
SHADES = LinearSegmentedColormap.from_list("still", ["#ffffff", "#cfe6ea", "#6db3c4", "#2a7f9e", "#12435c"])
# From shadow to light, for surfaces: never so light that it is lost on white paper.
SURFACE = ["#0b2533", "#12435c", "#2a7f9e", "#63b1c3", "#b4dde3"]
LIT = LinearSegmentedColormap.from_list("lit", SURFACE)
