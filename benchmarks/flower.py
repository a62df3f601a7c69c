"""A small complete job compared with Flower's simulation engine, from starting the process to its end.

A tenth of 100 clients train in each of five rounds, with the same CNN, data file, batches per client and central
evaluation. Start-up time is included on both sides, because a user who tries an idea waits for it.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from statistics import median

from benchmarks.data import write_images
from benchmarks.processes import JobError, job
from benchmarks.report import Findings, Row
from benchmarks.sizes import Size
from benchmarks.timing import Ratio, interleave

TARGET = 4.0
CLIENTS = 100
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


def measure(size: Size, folder: Path) -> Findings:
    what = f"{size.job_rounds}-round job of {CLIENTS} clients, Flower / Fedstill"
    if not all(importlib.util.find_spec(module) for module in ("flwr", "ray")):
        return Findings([Row(what, "not measured", TARGET, "higher", "not installed: pip install 'flwr[simulation]'")])
    images, kind = write_images(folder, size.job_samples)
    numbers = (CLIENTS, CLIENTS // 10, size.job_rounds)
    accuracies: dict[str, float] = {}
    parts: list[dict[str, float]] = []

    def ours() -> None:
        # A new folder each time: a finished run would not run again.
        out = folder / f"run-{len(list(folder.iterdir()))}"
        done = job("benchmarks.job_fedavg", images, out, *numbers)
        accuracies["Fedstill"] = done["accuracy"]
        parts.append(done["seconds"])

    def flower() -> None:
        home = folder / "flower-home"
        home.mkdir(exist_ok=True)
        accuracies["Flower"] = job(
            "benchmarks.job_flower", images, *numbers, environment={**QUIET, "FLWR_HOME": str(home)}
        )["accuracy"]

    try:
        fedstill, other = interleave(size.jobs, ours, flower)
    except JobError as error:
        return Findings([Row(what, "failed", TARGET, "higher", str(error))])
    learnt = ", ".join(f"{name} {accuracy:.3f}" for name, accuracy in accuracies.items())
    ours_by_part = ", ".join(f"{part} {median(one[part] for one in parts):.2g} s" for part in parts[0])
    note = f"{kind}; {median(other):.3g} s / {median(fedstill):.3g} s ({ours_by_part}); accuracy: {learnt}"
    return Findings([Row(what, Ratio.of(other, fedstill), TARGET, "higher", note)])
