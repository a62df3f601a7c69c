"""The report sections about detectors: metrics, cost, classes, and scenes with detections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np

from fedstill.core.numbers import MISSING, count, listed, size
from fedstill.core.table import Cell, Column, Table, make_table, percent, text, whole
from fedstill.detection.detection_section import MAIN, MEASURES, protocol_of
from fedstill.detection.precision_figures import precision_by_class, precision_by_recall
from fedstill.detection.report_facts import Judged, judged, owners
from fedstill.detection.scene_figure import Box, Finder, SceneView, scene_figure
from fedstill.report import descriptions
from fedstill.report.extensions import RunSections, run_sections
from fedstill.report.facts import Facts
from fedstill.report.figure import Figure
from fedstill.report.page import PageSection
from fedstill.runtime.result import Run

DRAWN = 7  # runs in one figure
_LEAST = 0.5  # the initial score threshold of shown boxes


def detection_sections(runs: Mapping[str, Run], read: Sequence[Facts]) -> list[PageSection]:
    """The sections; empty if no run detects boxes."""
    own = [one for one in read if one.detects]
    if not own:
        return []
    # Seeds are similar: the first one represents all.
    kinds = {run.experiment.model_dump_json(exclude={"seed"}): title for title, run in reversed([*runs.items()])}
    kept = [
        (index, title) for index, (title, run) in enumerate(runs.items()) if read[index].detects and run.test_scenes
    ]
    known = [
        one
        for index, title in kept
        if title in kinds.values() and (one := judged(title, index, runs[title])) is not None
    ][:DRAWN]
    # Runs on other classes cannot share a figure.
    drawn = [one for one in known if one.classes == known[0].classes]
    figures = [*precision_by_class(drawn), *precision_by_recall(drawn)] if drawn else []
    return [
        PageSection("detection", "Detection", tables=[detection_table(own)]),
        PageSection("classes", "Class by class", figures, about=_about(own, len(kept), drawn)),
        PageSection("scenes", "In the scenes", scene_figures(known)),
    ]


def _about(own: Sequence[Facts], kept: int, drawn: Sequence[Judged]) -> str:
    """A sentence about what is drawn, if that is not everything."""
    if not drawn or len(drawn) == len(own):
        return ""
    sentences = [f"Drawn: {listed([f'“{one.title}”' for one in drawn])}."]
    if len(drawn) < kept:
        sentences.append("Of runs that differ in their seeds it is the first one; report on fewer runs to see others.")
    if kept < len(own):
        sentences.append("Runs without a shared model, or evaluated where the data is, keep no boxes to draw.")
    return " ".join(sentences)


def detection_table(runs: Sequence[Facts]) -> Table:
    def metric(name: str, title: str) -> Column[Facts]:
        main = name in MAIN
        return Column(title, name, lambda run: percent(run.metric(name)), always=main)

    columns = (
        Column[Facts]("Way", "way", lambda run: text(run.title), right=False),
        Column[Facts]("Method", "method", lambda run: text(_method(run)), right=False),
        Column[Facts]("Begins with", "initial", _initial, right=False, always=False),
        Column[Facts]("Protocol", "protocol", lambda run: text(protocol_of(run.experiment)), right=False),
        *(metric(name, title) for name, title in MEASURES.items()),
        Column[Facts]("Best mAP@0.25", "map_25_best", lambda run: percent(run.accuracy("best"))),
        Column[Facts]("Rounds", "rounds", lambda run: whole(run.result.rounds)),
        Column[Facts]("Seed", "seed", lambda run: whole(run.experiment.seed)),
        Column[Facts]("Up a round", "up_round", lambda run: _traffic(run, "up")),
        Column[Facts]("Down a round", "down_round", lambda run: _traffic(run, "down")),
        Column[Facts]("Down at first contact", "down_first_contact", _first_contact, always=False),
    )
    note = (
        "mAP is average precision and AR the share of objects found at all, both as means over classes, in the test"
        " scenes after the last round; a box is right if its IoU with an object of its class is above 0.25 or 0.5."
        " The protocol says which boxes count: “published”, every class of each box with points and an objectness above"
        " 0.05, as VoteNet and 3DETR are evaluated; “strict”, the most likely class of each box only. The figures of"
        " the other one stand beside. Where sites evaluate, mAP is an estimate from histograms of scores."
        " Bytes are those of messages as they were encoded, of all clients together, as means over rounds"
    )
    once = "; what a client is sent at first contact only and then keeps stands apart, as a sum" if _kept(runs) else ""
    return make_table("detection", "Detectors, and what they sent", columns, runs, f"{note}{once}.")


def _method(run: Facts) -> str:
    """The method with its non-default settings, which distinguish the rows of an ablation."""
    choice = run.experiment.method
    changed = descriptions.changed_settings(choice)
    return ", ".join([choice.name, *(f"{name.replace('_', ' ')} {value}" for name, value in changed.items())])


def _traffic(run: Facts, way: str) -> Cell:
    """The mean over rounds, without what is sent at first contact only."""
    if run.pooled or not run.journal:
        return Cell(MISSING, None)
    traffic = [record.bytes for record in run.journal]
    mean = fmean(one.up if way == "up" else one.down - (one.first_contact or 0) for one in traffic)
    return Cell(size(mean), round(mean))


def _initial(run: Facts) -> Cell:
    """The initial weights file, if there is one."""
    initial = run.experiment.initial
    return Cell(MISSING, None) if initial is None else text(Path(initial.file).name)


def _first_contact(run: Facts) -> Cell:
    total = sum(record.bytes.first_contact or 0 for record in run.journal)
    return Cell(size(total), total) if total else Cell(MISSING, None)


def _kept(runs: Sequence[Facts]) -> bool:
    return any(record.bytes.first_contact for run in runs for record in run.journal)


def scene_figures(known: Sequence[Judged]) -> list[Figure]:
    """One figure for all runs that were tested on the same scenes."""
    groups: list[list[Judged]] = []
    for one in known:
        same = next((group for group in groups if group[0].scenes == one.scenes), None)
        if same is None:
            groups.append([one])
        else:
            same.append(one)
    return [_scenes(number, group) for number, group in enumerate(groups)]


def _scenes(number: int, group: Sequence[Judged]) -> Figure:
    group = sorted(group, key=lambda one: -one.mean(0))  # the best first
    first = group[0]
    shown = [row for row, scene in enumerate(first.scenes) if "points" in scene]
    views = [
        SceneView(
            f"test scene {row + 1}",
            np.array(first.scenes[row]["points"], np.float64),
            _boxes(first.scenes[row]["boxes"], first.scenes[row]["classes"]),
        )
        for row in shown
    ]
    finders = [
        Finder(
            one.title,
            [
                [
                    Box(box, kind, score, owner)
                    for box, kind, score, owner in zip(
                        one.found[row]["boxes"],
                        one.found[row]["classes"],
                        one.found[row]["scores"],
                        owners(one.scenes[row], one.found[row]),
                        strict=True,
                    )
                ]
                for row in shown
            ],
        )
        for one in group
    ]
    told = [_told(finder, views) for finder in finders]
    return scene_figure(
        f"scenes-{number}",
        "What there is and what was found",
        views,
        finders,
        first.classes,
        least=_LEAST,
        sentence=f"{count(len(views), 'test scene').capitalize()} with their true boxes and those found with a score of"
        f" at least {_LEAST}: {listed(told)}.",
        caption="Right is what overlaps an object of its class with an IoU above 0.25, if nothing surer does. Boxes are"
        " of the model after the last round, each with its most likely class, and those less sure than the score are"
        " hidden.",
    )


def _boxes(boxes: Sequence[Sequence[float]], kinds: Sequence[int]) -> list[Box]:
    return [Box(box, kind) for box, kind in zip(boxes, kinds, strict=True)]


def _told(finder: Finder, views: Sequence[SceneView]) -> str:
    sure = [box for boxes in finder.found for box in boxes if box.score >= _LEAST]
    right = sum(box.owner is not None for box in sure)
    there = sum(len(view.truth) for view in views)
    return f"“{finder.title}” found {right} of {there} objects, and {len(sure) - right} boxes that are not right"


run_sections.register("detection")(RunSections("results", detection_sections))
