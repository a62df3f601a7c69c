"""A million clients: time to plan, time of a round and peak memory, compared with ten thousand on the same data.

Each run is a process of its own: `python -m benchmarks.population DATA OUT CLIENTS`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import numpy as np

from benchmarks.job_fedavg import peak_bytes
from benchmarks.processes import JobError, job
from benchmarks.report import Findings, Row
from benchmarks.setting import fedavg
from benchmarks.sizes import Size
from benchmarks.timing import Ratio
from fedstill.runtime.launch import launch

COHORT, ROUNDS, SIDE = 20, 5, 8
PLAN = 30.0  # seconds of processor time


def measure(size: Size, folder: Path) -> Findings:
    few, many = size.crowds
    data = _write(folder / "data.npz", many)
    try:
        runs = {
            clients: [
                job("benchmarks.population", data, folder / f"{clients}-{again}", clients) for again in range(size.jobs)
            ]
            for clients in size.crowds
        }
    except JobError as error:
        return Findings([Row("population", "failed", note=str(error))])

    def ratio(what: str) -> Ratio:
        return Ratio.of([one[what] for one in runs[many]], [one[what] for one in runs[few]])

    plan = [one["plan"] for one in runs[many]]
    note = f"{COHORT} of them take part in each of {ROUNDS} rounds; images of {SIDE} x {SIDE}, one for each"
    return Findings(
        [
            Row(f"plan of {many:,} clients, seconds", Ratio.of(plan, [1.0] * len(plan)), PLAN, note=note),
            Row(f"round of {many:,} clients / {few:,}", ratio("round"), 1.5),
            Row(f"peak memory, {many:,} clients / {few:,}", ratio("peak"), 1.5, note="the same data"),
        ]
    )


def _write(path: Path, samples: int) -> Path:
    draws = np.random.default_rng(0)
    labels = draws.integers(0, 10, samples)
    images = draws.integers(0, 255, (samples, SIDE, SIDE), dtype=np.uint8)
    np.savez(path, x_train=images, y_train=labels, x_test=images[:200], y_test=labels[:200])
    return path


class _Clock:
    """Processor time at the end of each round."""

    def __init__(self) -> None:
        self.planned = 0.0
        self.ends: list[float] = []

    def start(self, experiment: Any, journal: Any) -> None:
        self.planned = process_time()

    def round(self, record: Any) -> None:
        self.ends.append(process_time())

    def note(self, text: str) -> None: ...
    def warn(self, text: str) -> None: ...
    def finish(self) -> None: ...


def main(data: str, out: str, clients: int) -> None:
    clock, began = _Clock(), process_time()
    participation = {"name": "random", "number": COHORT}
    experiment = fedavg(Path(data), clients, ROUNDS, model="mlp", participation=participation)
    launch(experiment, out=Path(out), observers=[clock])
    rounds = np.diff(clock.ends).tolist()
    print(json.dumps({"plan": clock.planned - began, "round": median(rounds), "peak": peak_bytes()}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
