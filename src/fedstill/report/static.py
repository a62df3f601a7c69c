"""Figures as files: the same data that the page draws, drawn by matplotlib in the page's light colours.

It knows what this package's figures use of Plotly (lines, markers, bars, heatmaps, straight lines, stacked or
neighbouring axes, clouds, scenes) and no more; a figure that uses more is an error here, never a picture with holes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.markers import MarkerStyle
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogFormatterSciNotation, MultipleLocator

from fedstill.core.files import writable_folder, write_atomically
from fedstill.report.extensions import turned_figures
from fedstill.report.figure import DASHES, Figure, Key
from fedstill.report.page import style_sheet
from fedstill.report.traces import DRAW, HATCHES, LINES, MARKERS, Painter, plain

_INCH = 96.0  # pixels of a browser
_WIDTH = 760.0
_LETTER, _HANDLE = 6.0, 55.0  # pixels that a letter of the key takes, and its line with the gaps around it
_FORMATS = ("svg", "png")
_RAISED = str.maketrans("0123456789-−", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁻")  # noqa: RUF001 (a minus sign)


def figures_beside(page: Path) -> Path:
    """The folder of a page's figures, where nobody names another: `audit.html` has `audit-figures/`."""
    return page.with_name(f"{page.stem}-figures")


def draw_files(figures: Sequence[Figure], folder: Path) -> list[Path]:
    """Each figure as `<id>.svg` and `<id>.png`; the same figure gives the same bytes."""
    writable_folder(folder)
    written = []
    # A fixed salt and, below, no date.
    with words_as_they_are(), matplotlib.rc_context({"svg.hashsalt": "fedstill", "hatch.linewidth": 1.2}):
        for figure in figures:
            canvas = draw(figure)
            canvas.draw_without_rendering()  # lays it out, once for both files
            canvas.set_layout_engine(None)
            for kind in _FORMATS:
                path = folder / f"{figure.id}.{kind}"
                buffer = BytesIO()
                metadata = {"Date": None} if kind == "svg" else {}
                canvas.savefig(buffer, format=kind, dpi=150, facecolor="white", metadata=metadata)
                write_atomically(path, buffer.getvalue())
                written.append(path)
    return written


def words_as_they_are() -> AbstractContextManager[None]:
    """Where figures are made and drawn: in a name, what stands between two dollars is no formula."""
    return matplotlib.rc_context({"text.parse_math": False})


def draw(figure: Figure, kind: type[Canvas] = Canvas) -> Canvas:
    """A figure on white paper, with its title above and its key below."""
    columns = _key_columns(figure.keys)
    rows = -(-len(figure.keys) // columns)
    turned = turned_figures[figure.turns] if figure.turns else None
    height = (turned.height(figure.data[0]) if turned else figure.layout.get("height", 320)) + 45 + 20 * rows
    canvas = kind(figsize=(max(_WIDTH, figure.width) / _INCH, height / _INCH), layout="constrained")
    canvas.suptitle(figure.title, x=0.01, ha="left", fontsize=12, color=paint("var(--ink)"), weight="bold")
    if turned:
        turned.draw(canvas, figure.data[0], paint)
    else:
        painters = {pair: Painter(axes, paint, figure.layout) for pair, axes in _axes(canvas, figure.layout).items()}
        for trace in figure.data:
            DRAW[trace["type"]](painters[trace.get("xaxis", "x"), trace.get("yaxis", "y")], trace)
        for (x, y), painter in painters.items():
            _dress(painter.axes, figure.layout[_long(x)], figure.layout[_long(y)])
        for shape in figure.layout.get("shapes", []):
            _line(painters["x", "y"].axes, shape)
    if figure.keys:
        canvas.legend(
            handles=[_handle(key) for key in figure.keys],
            loc="outside lower left",
            ncols=columns,
            fontsize=8.5,
            frameon=False,
            labelcolor=paint("var(--ink)"),
            handlelength=2.6,
        )
    return canvas


def _key_columns(keys: Sequence[Key]) -> int:
    """How many lines of the key stand beside each other: four, or as many of the longest as have room.

    >>> [_key_columns([Key("a" * letters, "")] * 5) for letters in (3, 40, 400)]
    [4, 2, 1]
    """
    longest = max((len(key.label) for key in keys), default=0)
    return max(1, min(4, len(keys), int(_WIDTH / (_LETTER * longest + _HANDLE))))


def paint(name: str) -> str:
    """What a colour of the page is in daylight.

    >>> paint("var(--card)"), paint("#123456")
    ('#ffffff', '#123456')
    """
    found = re.fullmatch(r"var\((--[\w-]+)\)", name)
    return _palette()[found[1]] if found else name


@cache
def _palette() -> Mapping[str, str]:
    light = style_sheet().split("}", 1)[0]
    return dict(re.findall(r"(--[\w-]+): (#[0-9a-f]{6});", light))


def _long(name: str) -> str:
    """`x2` as layouts call it: `xaxis2`."""
    return f"{name[0]}axis{name[1:]}"


def _axes(canvas: Canvas, layout: Mapping[str, Any]) -> dict[tuple[str, str], Axes]:
    """A pair of axes above another (sharing x) in the proportions the layout gives, or several in a grid."""
    if "xaxis2" in layout:
        endings = [name.removeprefix("xaxis") for name in layout if name.startswith("xaxis")]
        # Axes without a domain stand beside each other.
        columns = len({tuple(layout[f"xaxis{ending}"].get("domain", ending)) for ending in endings})
        grid = canvas.subplots(-(-len(endings) // columns), columns, squeeze=False).flatten()
        return {(f"x{ending}", f"y{ending}"): axes for ending, axes in zip(endings, grid, strict=True)}
    if "yaxis2" in layout:
        shares = [_length(layout["yaxis2"]), _length(layout["yaxis"])]
        above, below = canvas.subplots(2, 1, sharex=True, height_ratios=shares)
        return {("x", "y"): below, ("x", "y2"): above}
    return {("x", "y"): canvas.subplots()}


def _length(axis: Mapping[str, Any]) -> float:
    low, high = axis["domain"]
    return float(high - low)


def _dress(axes: Axes, across: Mapping[str, Any], up: Mapping[str, Any]) -> None:
    """Titles, ranges, numbers and grid, as the layout wants them."""
    for axis, wanted, name in ((axes.xaxis, across, "x"), (axes.yaxis, up, "y")):
        title = wanted.get("title", {}).get("text", "")
        axis.set_label_text(plain(title), fontsize=9.5, color=paint("var(--quiet)"))
        if wanted.get("type") == "log":
            getattr(axes, f"set_{name}scale")("log")
            axis.set_major_formatter(_Powers())
            axis.set_minor_formatter(_Powers())
        if "range" in wanted:
            ends = [10**end for end in wanted["range"]] if wanted.get("type") == "log" else wanted["range"]
            getattr(axes, f"set_{name}lim")(*ends)
        elif wanted.get("autorange") == "reversed":
            axis.set_inverted(True)
        elif wanted.get("rangemode") == "tozero":
            getattr(axes, f"set_{name}lim")(0, None)
        if wanted.get("tickformat") == ".0%":
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.0f} %"))
        if "tickvals" in wanted:
            named = wanted.get("ticktext")
            axis.set_ticks(wanted["tickvals"], None if named is None else [plain(text) for text in named])
        elif isinstance(wanted.get("dtick"), int) and wanted.get("type") not in ("log", "category"):
            axis.set_major_locator(MultipleLocator(wanted["dtick"]))
        if wanted.get("showticklabels") is False:
            axis.set_ticks([])
        elif name == "x" and wanted.get("tickangle"):
            axes.tick_params(axis="x", rotation=-wanted["tickangle"])
            for text in axes.get_xticklabels():
                text.set_horizontalalignment("right")
        if wanted.get("side") == "right":
            axes.yaxis.tick_right()
            axes.yaxis.set_label_position("right")
        if wanted.get("showgrid", True):
            axis.grid(True, color=paint("var(--grid)"), linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8.5, colors=paint("var(--quiet)"), length=0, which="both")
    for spine in axes.spines.values():
        spine.set_visible(False)


class _Powers(LogFormatterSciNotation):
    """Matplotlib's labels of decades in plain letters: it writes them as formulas, which are not read here."""

    def __call__(self, value: float, position: int | None = None) -> str:
        formula = super().__call__(value, position)
        text = re.sub(r"\$|\\mathdefault", "", formula).replace(r"\times", "×")  # noqa: RUF001 (a product)
        raised = re.sub(r"\^\{(.*?)\}", lambda found: found[1].translate(_RAISED), text)
        return raised.replace("{", "").replace("}", "")


@cache
def _question_mark() -> MarkerStyle:
    """The only marker that is a letter, which matplotlib has as a formula alone."""
    with matplotlib.rc_context({"text.parse_math": True}):
        return MarkerStyle("$?$")


def _line(axes: Axes, shape: Mapping[str, Any]) -> None:
    style = {
        "color": paint(shape["line"]["color"]),
        "linestyle": LINES[shape["line"].get("dash", "solid")],
        "linewidth": shape["line"]["width"],
    }
    if shape.get("xref") == "paper":
        axes.axhline(shape["y0"], **style)
    elif shape.get("yref") == "paper":
        axes.axvline(shape["x0"], **style)
    else:
        axes.plot([shape["x0"], shape["x1"]], [shape["y0"], shape["y1"]], **style)


def _handle(key: Key) -> Line2D | Patch:
    """A line of the key, as matplotlib has it."""
    colour, name = paint(key.colour), key.label
    if key.shape == "line":
        names = {svg: dash for dash, svg in DASHES.items()}
        return Line2D([], [], color=colour, linestyle=LINES[names[key.dash]], linewidth=2, label=name)
    if key.shape in ("box", "hatched"):
        hatch = HATCHES[key.symbol] if key.shape == "hatched" else ""
        return Patch(facecolor=colour, edgecolor="white", hatch=hatch, label=name)
    if key.shape == "text":
        sign = _question_mark() if key.symbol == "?" else {"▲": "^", "┃": "|"}.get(key.symbol, "o")
        return Line2D([], [], color=colour, linestyle="", marker=sign, markersize=9, markeredgewidth=1, label=name)
    marker = "X" if key.shape == "cross" else MARKERS[key.symbol]
    face = "none" if key.shape == "open" else colour
    return Line2D([], [], color=colour, linestyle="", marker=marker, markersize=7, markerfacecolor=face, label=name)
