"""Draws accuracy against epsilon from the figures of the benchmark `privacy`, into docs/figures/privacy.png.

python -m benchmarks --only privacy --json privacy.json
python tools/privacy_figure.py privacy.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

PICTURE = Path(__file__).parents[1] / "docs" / "figures" / "privacy.png"
# Column of the table, and what a line's epsilon is of.
LINES = (
    ("client-level", "epsilon: public", "client-level at the server: a client, from the public", "o-", "tab:blue"),
    ("distributed", "epsilon: public", "distributed: a client, from the public", "s-", "tab:orange"),
    ("distributed", "server", "distributed: a client, from the server", "s--", "tab:orange"),
    ("record-level", "epsilon: public", "record-level: one record, from everybody", "^-", "tab:green"),
)


# Title of a panel, and the accuracy (%) of guessing.
PANELS = {"digits": ("images (digits, 50 clients)", 10), "heads": ("point clouds (heads, 10 clients)", 25)}


def drawn(tables: dict[str, list[list[str]]]) -> Figure:
    """The figure of the tables, one panel each; the first line of a table is its header."""
    figure = Figure(figsize=(10, 4), dpi=110, layout="constrained")
    panels = figure.subplots(1, len(tables), sharey=True, squeeze=False)[0]
    for axes, (title, lines) in zip(panels, tables.items(), strict=True):
        draw(axes, *PANELS[title.rpartition(" ")[2]], lines)
    panels[0].set_ylabel("accuracy (%)")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8)
    return figure


def draw(axes: Axes, title: str, guessing: float, lines: list[list[str]]) -> None:
    head, *rows = lines
    accuracy = head.index("accuracy (%)")
    for name, column, label, style, colour in LINES:
        points = [(float(row[head.index(column)]), float(row[accuracy])) for row in rows if row[0] == name]
        axes.semilogx(*zip(*points, strict=True), style, color=colour, label=label)
    (without,) = (float(row[accuracy]) for row in rows if row[0] == "none")
    axes.axhline(without, color="grey", linestyle=":", label="without privacy")
    axes.axhline(guessing, color="grey", linewidth=0.8, label="guessing")
    axes.set(title=title, xlabel="epsilon (delta 0.001): smaller hides more", ylim=(0, 100))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.grid(alpha=0.3)


def main(file: str) -> None:
    drawn(json.loads(Path(file).read_text())["privacy"]["tables"]).savefig(PICTURE)


if __name__ == "__main__":
    main(sys.argv[1])
