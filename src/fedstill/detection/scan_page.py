"""The page of the user's own scans: the clouds with the detected boxes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedstill.core.numbers import count, listed
from fedstill.core.table import Cell, Column, Table, make_table, text
from fedstill.detection.point_features import split_columns
from fedstill.detection.scans import Scan
from fedstill.detection.scene_figure import LOWEST, Box, Finder, SceneView, scene_figure
from fedstill.report.page import PageSection
from fedstill.report.page_file import write_page
from fedstill.runtime.exported_file import ExportedFile
from fedstill.runtime.result import Run

_MOST = 24  # maximum number of scans whose points a page contains


@dataclass(frozen=True)
class _Line:
    scan: str
    box: dict[str, Any]


def write_detected_page(
    run: Run | ExportedFile, scans: Sequence[Scan], least: float, path: Path, command: str = ""
) -> Path:
    """One self-contained HTML file that works offline."""
    classes = run.task.classes
    drawn = scans[:_MOST]
    views = [SceneView(scan.file.name, split_columns(scan.points)[0].double().numpy()) for scan in drawn]
    found = [
        [
            Box(box, kind, score)
            for box, score, kind in zip(
                scan.found.boxes.tolist(), scan.found.scores.tolist(), scan.found.classes.tolist(), strict=True
            )
        ]
        for scan in drawn
    ]
    told = _summary(scans, least)
    figure = scene_figure(
        "scans",
        scans[0].file.name if len(scans) == 1 else "Scans",
        views,
        [Finder(str(run.path.name), found)],
        classes,
        looks="classes",
        least=max(least, LOWEST),
        sentence=f"The points of {count(len(drawn), 'scan')} and boxes around what was found. {told[0]}",
        caption="The points that the detector saw, and what it found in them; boxes less sure than the score are"
        " hidden." + (f" The first {_MOST} scans are drawn." if len(scans) > _MOST else ""),
    )
    lines = [_Line(scan.file.name, box) for scan in scans for box in scan.sure(least)]
    return write_page(
        path,
        "page.html.jinja",
        [PageSection("scene", "What was found", [figure], [_table(lines, len(scans) > 1)] if lines else [])],
        heading=f"What is in {scans[0].file.name}" if len(scans) == 1 else f"What is in {len(scans)} scans",
        summary=told,
        caution=f"Found by {run.path.name}: a detector only knows the classes it was trained on"
        f" ({', '.join(classes)}), takes numbers for metres and z for up, and is the less to be relied on the more a"
        " scan differs from its training data. A score is what the model says of itself, not a probability that was"
        " checked.",
        command=command,
    )


def _summary(scans: Sequence[Scan], least: float) -> list[str]:
    every = Counter(box["class"] for scan in scans for box in scan.sure(least))
    where = scans[0].file.name if len(scans) == 1 else count(len(scans), "scan")
    first = f"With a score of at least {least:g}, nothing was found in {where}."
    if every:
        number, things = every.total(), listed([f"{name} ({times})" for name, times in every.most_common()])
        were = "was" if number == 1 else "were"
        first = f"With a score of at least {least:g}, {count(number, 'thing')} {were} found in {where}: {things}."
    return [first, *(f"{scan.warning}." for scan in scans if scan.warning)]


def _table(lines: Sequence[_Line], several: bool) -> Table:
    def metres(title: str, key: str, place: int) -> Column[_Line]:
        return Column(title, f"{key}_{place}", lambda one: Cell(f"{one.box[key][place]:.2f}", one.box[key][place]))

    columns = (
        *((Column[_Line]("Scan", "scan", lambda one: text(one.scan), right=False),) if several else ()),
        Column[_Line]("Class", "class", lambda one: text(one.box["class"]), right=False),
        Column[_Line]("Score", "score", lambda one: Cell(f"{one.box['score']:.2f}", one.box["score"])),
        *(metres(f"Centre {way}", "centre", place) for place, way in enumerate("xyz")),
        *(metres(f"Size {way}", "size", place) for place, way in enumerate("xyz")),
        Column[_Line](
            "Heading", "heading", lambda one: Cell(f"{np.degrees(one.box['heading']):.0f}°", one.box["heading"])
        ),
    )
    note = "In metres; sizes are along the box's own axes, and a heading turns those counter-clockwise seen from above."
    return make_table("boxes", "Boxes", columns, lines, note)
