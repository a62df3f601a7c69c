"""How far estimates of CPU time and memory are from what studies then take: `python -m benchmarks --only estimates`.

Each study is estimated in a process of its own with an empty cache, as by the first `fedstill study --dry-run` on a
machine, and then run in another process. CPU seconds are compared, not seconds by the clock, so that other programs
disturb less; both processes leave out what importing the package takes. Only data sets that are built in are used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.processes import job
from benchmarks.report import Findings, Row
from benchmarks.sizes import Size

ALLOWED = 0.3
TINY = {"rounds": 1, "students.rounds": 1}
# By title: a recipe or a mapping, and the settings laid over it.
STUDIES: dict[str, tuple[Any, dict[str, Any]]] = {
    "images, four methods": (
        {
            "about": "Digits in skewed shards.",
            "experiment": {
                "data": "digits",
                "model": "cnn",
                "clients": 10,
                "rounds": 8,
                "partition": {"name": "dirichlet", "alpha": 0.3},
                "training": {"epochs": 2, "batch": 16},
            },
            "grid": {"method": ["fedavg", "fedprox", "moon", "scaffold"], "seed": [7, 42]},
        },
        {},
    ),
    "point clouds, teachers and students": (
        "clinical-grid:tiny",
        {
            "model": "pointnet2-lite",
            "points": 256,
            "rounds": 3,
            "students.model": "small-pointnet2-lite",
            "students.rounds": 12,
        },
    ),
    "a fleet with dropout": ("dropout:lite", {"data": "digits", "rounds": 12, "seed": 7}),
    "queries to peers": (
        "query:lite",
        {
            "data": "digits",
            "queries.under": 10,
            "training.epochs": 20,
            "partition": "pathological",
            "method": ["local-only", "ensemble", "naive-kd", "qkt"],
            "seed": 7,
        },
    ),
}


def measure(size: Size, folder: Path) -> Findings:
    short = size.rounds == 1
    findings = Findings()
    lines = [("study", "runs", "CPU s estimated", "CPU s taken", "MiB estimated", "MiB taken", "CPU s to estimate")]
    for number, (title, (recipe, settings)) in enumerate(STUDIES.items()):
        if short and number != 1:
            continue
        given = json.dumps([recipe, {**settings, **(TINY if short else {})}])
        place = {"FEDSTILL_CACHE": str(folder / f"cache-{number}"), "FEDSTILL_ESTIMATES": "measure"}
        told = job("benchmarks.job_estimates", "estimate", given, folder / f"none-{number}", environment=place)
        taken = job("benchmarks.job_estimates", "run", given, folder / f"out-{number}", environment=place)
        lines.append((title, str(told["runs"]), *_figures(told, taken), f"{told['measuring']:.1f}"))
        findings.rows += [
            _row(f"CPU time estimated / taken, {title}", told["seconds"] / taken["seconds"]),
            _row(f"peak memory estimated / taken, {title}", told["memory"] / taken["memory"]),
        ]
    findings.tables["Estimates before and figures after"] = lines
    return findings


def _figures(told: Mapping[str, float], taken: Mapping[str, float]) -> list[str]:
    seconds = [f"{one['seconds']:.1f}" for one in (told, taken)]
    return [*seconds, *(f"{one['memory'] / 2**20:.0f}" for one in (told, taken))]


def _row(what: str, ratio: float) -> Row:
    within = "within" if 1 - ALLOWED <= ratio <= 1 + ALLOWED else "not within"
    return Row(what, f"{ratio:.2f}", note=f"{within} {ALLOWED:.0%}")
