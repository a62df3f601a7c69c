"""Seconds per round of each method relative to FedAvg, with the same local training and without evaluation.

Methods alternate round by round in one process and thread, so that all meet the same load on the machine.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks.data import write_images
from benchmarks.report import Findings, Row
from benchmarks.setting import fedavg
from benchmarks.sizes import Size
from benchmarks.timing import Ratio, interleave
from fedstill.core.task import Tensors
from fedstill.engines import InProcess
from fedstill.methods import methods
from fedstill.runtime.client_store import ClientStore
from fedstill.runtime.plan import make_plan
from fedstill.runtime.round import Federation

# The cost of the extra passes of a method: two forward passes are two thirds of a training step.
TARGETS = {"fedprox": 1.05, "scaffold": 1.1, "feddyn": 1.1, "ditto": 2.1, "moon": 1.9}
CLIENTS, MODEL = 4, "cnn-bn"
ALIKE = {"epochs": 1, "batch": 32, "optimiser": "sgd", "rate": 0.01, "momentum": 0.0}


def measure(size: Size, folder: Path) -> Findings:
    images, kind = write_images(folder, size.samples // 4)
    names = ["fedavg", *(name for name in methods if name != "fedavg" and has_rounds(name))]
    proxy = {"proxy": f"npz:{images}", **size.distillation}
    # Required settings for image data.
    needs = {"fed3d": {"share": "all"}, "feddf": proxy, "fedmd": proxy, "single-image": size.distillation | size.pool}
    runners = {name: _Runner(images, {"name": name, **needs.get(name, {})}, folder / name) for name in names}
    runners["fedavg, recalibrated"] = _Runner(images, {"name": "fedavg", "buffers": "recalibrate"}, folder / "again")
    for runner in runners.values():
        runner()  # the first round has no previous models and cold caches
    times = dict(zip(runners, interleave(size.rounds, *runners.values()), strict=True))
    baseline = median(times["fedavg"])
    findings = Findings([Row("FedAvg, seconds a round", f"{baseline:.3g}", note=f"{kind}; {MODEL}, {CLIENTS} clients")])
    for name, taken in times.items():
        if name != "fedavg":
            written = median(runners[name].store.seconds[-size.rounds :])
            note = (
                f"including {written / baseline:.2f} for writing clients' state" if written > 0.005 * baseline else ""
            )
            findings.rows.append(
                Row(f"round of {name} / fedavg", Ratio.of(taken, times["fedavg"]), TARGETS.get(name), note=note)
            )
    return findings


def has_rounds(method: str) -> bool:
    """False for pooled training and for methods between peers, which have one round of arbitrary length."""
    return not methods[method].pooled and methods[method].defaults.get("rounds") != 1


class _TimedStore(ClientStore):
    """Counts the seconds spent writing client state to disk, by round."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, CLIENTS)
        self.seconds = [0.0]

    def stage(self, client: int, round: int, state: Tensors) -> None:
        began = perf_counter()
        super().stage(client, round, state)
        self.seconds[-1] += perf_counter() - began


class _Runner:
    """The federation of one method; each call runs the next round."""

    def __init__(self, images: Path, method: dict[str, Any], folder: Path) -> None:
        plan = make_plan(fedavg(images, CLIENTS, 1000, method=method, model=MODEL, training=ALIKE))
        engine = InProcess()
        engine.open(plan.clients)
        folder.mkdir()
        self.store = _TimedStore(folder / "clients")
        self.federation = Federation(plan.method, plan.participants, engine, plan.profiles, plan.streams, 1000)
        self.progress = self.federation.begin(self.store)

    def __call__(self) -> None:
        self.store.seconds.append(0.0)
        self.progress, _ = self.federation.run_round(self.progress, self.store)
        self.store.committed()
