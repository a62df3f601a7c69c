"""A federated round of PointNet++ that measures BatchNorm statistics once after its epochs, against one that does not.

One thread, the teacher at its published size, batches of 24 clouds of 1,024 points, five epochs a round. Training sees
augmented clouds; statistics are measured on clouds without augmentation, which have no dropped points to skip. Training
steps and passes alternate, in processor time. The plain path is what each pass would take through hooks on plain torch.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import process_time

import torch
from torch import Tensor, nn

from benchmarks.pointnet2 import CLASSES, Pair, augmented, some_clouds
from benchmarks.report import DifferenceError, Findings, Row
from benchmarks.sizes import Size
from benchmarks.timing import Ratio, interleave, one_thread
from fedstill.core.dataset import ArrayDataset
from fedstill.core.kinds import norm_layers
from fedstill.core.streams import Streams
from fedstill.methods.recalibration import recalibrate
from fedstill.tasks.classification import Classification

EPOCHS = 5  # of a round at the published size
TARGET = 1.15
CLOSE = 1e-3  # of a standard deviation, and of a variance: both paths sum in single precision


def measure(size: Size, folder: Path) -> Findings:
    small = size.rounds <= 2
    batch, points = (4, 256) if small else (24, 1024)
    findings = Findings()
    with one_thread():
        for kind, clouds in some_clouds(batch, points).items():
            batches = [augmented(clouds, Streams(0).draw("augment", kind, number)) for number in range(4)]
            findings.rows.append(_row(max(2, size.rounds // 2), Pair("pointnet2", points, batches), clouds, kind))
    return findings


def _row(repetitions: int, pair: Pair, clouds: Tensor, kind: str) -> Row:
    model = pair.ours
    again = measuring(model, clouds)
    again()
    fast = _statistics(model)
    model.extractor.fast = False
    ((plain,),) = interleave(1, again, clock=process_time)
    if not _agree(fast, _statistics(model)):
        raise DifferenceError(f"{kind}: statistics differ from those of the plain path")
    model.extractor.fast = True
    steps, passes = interleave(repetitions, pair.train(model), again, clock=process_time)
    rounds = [EPOCHS * step for step in steps]
    ratio = Ratio.of([each + once for each, once in zip(rounds, passes, strict=True)], rounds)
    note = f"a step {median(steps):.3g} s, its clouds measured {median(passes):.3g} s, by the plain path {plain:.3g} s"
    return Row(f"teacher round, recalibrated, {kind}", ratio, TARGET, "lower", note)


def measuring(model: nn.Module, clouds: Tensor) -> Callable[[], None]:
    """One pass of recalibration over a batch."""
    task = Classification(tuple(map(str, range(CLASSES))), tuple(clouds.shape[1:]), ("pointnet2",))
    data = ArrayDataset(inputs=clouds, labels=torch.arange(len(clouds)) % CLASSES)

    def forward() -> None:
        recalibrate(model, task, data, Streams(0), len(data))

    return forward


def _statistics(model: nn.Module) -> list[tuple[Tensor, Tensor]]:
    layers = norm_layers(model).values()
    return [
        (layer.running_mean.clone(), layer.running_var.clone())
        for layer in layers
        if layer.running_mean is not None and layer.running_var is not None
    ]


def _agree(ours: list[tuple[Tensor, Tensor]], plain: list[tuple[Tensor, Tensor]]) -> bool:
    """Whether means and variances of all channels agree; a channel of equal numbers has a variance of rounding only."""
    for (mean, variance), (expected, spread) in zip(ours, plain, strict=True):
        deviation = spread.sqrt() + 1e-6
        if ((mean - expected).abs() / deviation).max() > CLOSE:
            return False
        if ((variance - spread).abs() / (spread + 1e-6)).max() > CLOSE:
            return False
    return True
