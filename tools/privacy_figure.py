"""Draws accuracy against epsilon from the figures of the benchmark `privacy`, into docs/figures/privacy.png.

python -m benchmarks --only privacy --json privacy.json
python tools/privacy_figure.py privacy.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from matplotlib.figure import Figure

PICTURE = Path(__file__).parents[1] / "docs" / "figures" / "privacy.png"
# Column of the table, and what a line's epsilon is of.
LINES = (
    ("client-level", "epsilon: public", "client-level at the server: a client, from the public", "o-", "tab:blue"),
    ("distributed", "epsilon: public", "distributed: a client, from the public", "s-", "tab:orange"),
    ("distributed", "server", "distributed: a client, from the server", "s--", "tab:orange"),
    ("record-level", "epsilon: public", "record-level: one record, from everybody", "^-", "tab:green"),
)


def drawn(lines: list[list[str]]) -> Figure:
    """The figure of a table, whose first line is its header."""
    head, *rows = lines
    figure = Figure(figsize=(7, 4), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    accuracy = head.index("accuracy (%)")
    for name, column, label, style, colour in LINES:
        points = [(float(row[head.index(column)]), float(row[accuracy])) for row in rows if row[0] == name]
        axes.semilogx(*zip(*points, strict=True), style, color=colour, label=label)
    (without,) = (float(row[accuracy]) for row in rows if row[0] == "none")
    axes.axhline(without, color="grey", linestyle=":", label="without privacy")
    axes.set(xlabel="epsilon (delta 0.001): smaller hides more", ylabel="accuracy (%)", ylim=(0, 100))
    axes.set_xticks([3, 10, 30, 100, 300], ["3", "10", "30", "100", "300"])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", fontsize=8)
    return figure


def main(file: str) -> None:
    (lines,) = json.loads(Path(file).read_text())["privacy"]["tables"].values()
    drawn(lines).savefig(PICTURE)


if __name__ == "__main__":
    main(sys.argv[1])
