"""Seconds per round of FedAvg compared with a hand-written loop: in one process, then with two workers.

A round of the hand-written loop runs between any two rounds of Fedstill in the same process and thread, so that both
meet the same load on the machine.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

from benchmarks.data import write_images
from benchmarks.machine import cores
from benchmarks.report import DifferenceError, Findings, Row
from benchmarks.setting import SameWork, fedavg
from benchmarks.sizes import Size
from benchmarks.timing import Ratio, between
from fedstill.core.kinds import state_of
from fedstill.runtime.launch import launch
from fedstill.runtime.result import Run

# Two optimiser kernels may round differently in the last bit, and training amplifies the difference in each round.
# Weights are therefore compared after the first round (they agree to about 1e-7), accuracies after all rounds.
CLOSE, ACCURACY_CLOSE = 1e-5, 0.02
# In-process and with two workers. With many clients each has little data, so that its fixed costs count.
FEW_TARGETS, MANY_TARGETS, MANY = (1.03, 0.60), (1.05, 0.65), 100


def measure(size: Size, folder: Path) -> Findings:
    images, kind = write_images(folder, size.samples)
    findings = Findings()
    for clients in size.federations:
        _compare_weights(images, clients, folder / f"weights-{clients}")
        alone = _paired(images, clients, size.rounds, folder / f"alone-{clients}", "in-process")
        workers = _paired(images, clients, size.rounds, folder / f"workers-{clients}", "processes")
        if alone.run.sha256 != workers.run.sha256:
            raise DifferenceError(f"{clients} clients: the engines in-process and processes give different bits")
        what = f"round of {clients} clients, "
        one, two = MANY_TARGETS if clients >= MANY else FEW_TARGETS
        notes = f"{kind}; loop {median(alone.loop):.3g} s a round; CPU time {alone.cpu}"
        findings.rows += [
            Row(what + "in-process / loop", Ratio.of(alone.rounds, alone.loop), one, note=notes),
            Row(what + "with its checkpoint", Ratio.of(alone.whole, alone.loop), note=alone.checkpoint_note()),
            Row(what + "2 workers / loop", Ratio.of(workers.rounds, workers.loop), two, note=workers.start_note()),
            Row(what + "with its checkpoint", Ratio.of(workers.whole, workers.loop), note=workers.checkpoint_note()),
        ]
    return findings


@dataclass
class Paired:
    """A run with the seconds of each round, and those of the hand-written loop; warm-up is left out."""

    run: Run
    rounds: list[float]
    checkpoints: list[float]
    loop: list[float]
    start: float
    cpu: Ratio  # less affected by other processes than wall-clock time

    @property
    def whole(self) -> list[float]:
        return [a + b for a, b in zip(self.rounds, self.checkpoints, strict=True)]

    def checkpoint_note(self) -> str:
        return f"checkpoint {1000 * median(self.checkpoints):.1f} ms a round"

    def start_note(self) -> str:
        return f"2 of {cores()} cores; start of the workers, not included: {self.start:.2g} s"


def _paired(images: Path, clients: int, rounds: int, out: Path, engine: str) -> Paired:
    beside = _LoopBeside(images, clients)
    run = launch(fedavg(images, clients, rounds + 1), out=out, engine=engine, workers=2, observers=[beside])
    beside.check(run)
    timing = json.loads((run.path / "timing.json").read_text())
    first, *each = timing["rounds"]
    cpu = Ratio.of(*zip(*beside.cpu[1:], strict=True))
    return Paired(run, each, timing["checkpoints"][1:], between(beside.seconds), first - median(each), cpu)


class _LoopBeside:
    """An observer that runs a hand-written round after each round of Fedstill."""

    def __init__(self, images: Path, clients: int) -> None:
        self.work = SameWork(images, clients)
        self.seconds: list[float] = []
        self.cpu: list[tuple[float, float]] = []  # Fedstill's (with its checkpoint) and the loop's
        self.since = 0.0
        self.accuracies: list[float] = []
        self.theirs: list[float] = []

    def start(self, experiment: Any, journal: Sequence[dict[str, Any]]) -> None:
        self.since = process_time()

    def round(self, record: dict[str, Any]) -> None:
        ours = process_time() - self.since
        orders = self.work.orders()
        began, cpu = perf_counter(), process_time()
        accuracy = self.work.loop.round(orders)
        self.seconds.append(perf_counter() - began)
        self.cpu.append((ours, process_time() - cpu))
        self.since = process_time()
        self.accuracies.append(accuracy)
        self.theirs.append(record.metrics["accuracy"])

    def note(self, text: str) -> None:
        pass

    def warn(self, text: str) -> None:
        pass

    def finish(self) -> None:
        pass

    def check(self, run: Run) -> None:
        """Check that both computed the same model; otherwise their times are not comparable."""
        if run.result.failures or run.result.skipped:
            raise DifferenceError("a client failed, which does not happen in the hand-written loop")
        if any(abs(a - b) > ACCURACY_CLOSE for a, b in zip(self.accuracies, self.theirs, strict=True)):
            raise DifferenceError(
                f"accuracies {self.theirs} differ from those of the hand-written loop {self.accuracies}"
            )


def _compare_weights(images: Path, clients: int, out: Path) -> None:
    beside = _LoopBeside(images, clients)
    run = launch(fedavg(images, clients, 1), out=out, observers=[beside])
    held = state_of(run.model("last"))
    for name, tensor in beside.work.loop.weights.items():
        gap = float((held[f"parameters/{name}"] - tensor).abs().max())
        if not gap <= CLOSE:
            raise DifferenceError(f"{clients} clients: {name} is {gap:.2g} away from that of the hand-written loop")
