"""Seconds per round with a model and data of the user's own, compared with the same as built-in parts.

Rounds of all variants take turns in one process and thread, so that they meet the same load on the machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.data import write_images
from benchmarks.report import DifferenceError, Findings, Row
from benchmarks.setting import MODEL, fedavg
from benchmarks.sizes import Size
from benchmarks.timing import Ratio
from fedstill.engines.in_process import InProcess
from fedstill.models import Classifier
from fedstill.runtime.assemble import make_experiment, override_value
from fedstill.runtime.given_objects import named_objects
from fedstill.runtime.plan import Simulation, make_plan
from fedstill.runtime.run import Attempt, opened


class Images(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Images that are read one by one, as from files."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return self.images[row], int(self.labels[row])


class OwnCnn(nn.Module):
    """The built-in `cnn` as a user would write it: it returns raw logits."""

    def __init__(self, built: Classifier) -> None:
        super().__init__()
        self.extractor, self.head = built.extractor, built.head

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.head(self.extractor(inputs))
        return logits


def measure(size: Size, folder: Path) -> Findings:
    images, kind = write_images(folder, size.samples)
    with np.load(images) as held:
        train, test = ((held[f"x_{part}"][:, None], held[f"y_{part}"].astype(np.int64)) for part in ("train", "test"))
    lazy = tuple(Images(torch.from_numpy(x), torch.from_numpy(y)) for x, y in (train, test))
    findings = Findings()
    for clients in size.federations:
        plain = make_plan(fedavg(images, clients, size.rounds + 1))
        own = OwnCnn(plain.task.build(MODEL, streams=plain.streams.at("model", MODEL)))
        objects = [{"data": (train, test), "model": own}, {"data": lazy, "model": own}]
        plans = [plain, *(_with_objects(plain, each) for each in objects)]
        times = _rounds_by_turns(plans, folder / f"runs-{clients}")
        what = f"round of {clients} clients, own model and "
        findings.rows += [
            Row(what + "arrays / built-in", Ratio.of(times[1], times[0]), 1.03, note=kind),
            Row(what + "torch data set / built-in", Ratio.of(times[2], times[0]), note="samples are read one by one"),
        ]
    return findings


def _with_objects(plain: Simulation, objects: Mapping[str, Any]) -> Simulation:
    named, bundle = named_objects(objects)
    given = plain.experiment.model_dump(mode="json", exclude_unset=True)
    for key, value in named.items():
        given = override_value(given, key, value)
    return make_plan(make_experiment(given), bundle=bundle)


def _rounds_by_turns(plans: list[Simulation], out: Path) -> list[list[float]]:
    """The seconds of each plan's rounds without the first, which warms up."""
    times: list[list[float]] = [[] for _ in plans]
    with ExitStack() as stack:
        engines = [stack.enter_context(InProcess()) for _ in plans]
        folders = [stack.enter_context(opened(plan, out)) for plan in plans]
        attempts = [Attempt(*each) for each in zip(plans, engines, folders, strict=True)]
        while attempts[0].goes_on:
            for attempt, taken in zip(attempts, times, strict=True):
                began = perf_counter()
                progress = attempt.round()
                taken.append(perf_counter() - began)
                attempt.keep(progress, taken[-1])
    accuracies = [attempt.progress.journal[-1].accuracy or 0.0 for attempt in attempts]
    if len(set(accuracies)) > 1:
        raise DifferenceError(f"the same model on the same data has other accuracies as an object: {accuracies}")
    return [taken[1:] for taken in times]
