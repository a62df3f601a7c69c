"""PointNet++ compared with a plain PyTorch implementation: training steps and inference of teacher and student.

One thread, batches of 24 clouds of 1,024 points with the usual augmentation (dropout of up to 7/8 of the points,
scale, shift). Both models have the same weights and batches and run alternately. Heads are sparse on the scale of a
ball. Boxes and cylinders have more points in each ball, and therefore less padding to skip.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.reference_pointnet2 import Reference
from benchmarks.report import DifferenceError, Findings, Row
from benchmarks.sizes import Size
from benchmarks.timing import Ratio, interleave, one_thread
from fedstill.core.errors import FedstillError
from fedstill.core.streams import Streams
from fedstill.data.catalogue import load
from fedstill.models import build_model

CLASSES = 40
TARGETS = {"pointnet2": ("teacher", 6.0, 7.0), "small-pointnet2": ("student", 5.0, 9.0)}
SHARE_TARGET = 0.8
# Tolerance for rounding, and for single neighbours that differ because the reference rounds distances differently.
CLOSE = 0.02


def measure(size: Size, folder: Path) -> Findings:
    with one_thread():
        return _measure(max(2, size.rounds // 4), small=size.rounds <= 2)


def _measure(repetitions: int, small: bool) -> Findings:
    batch, points = (4, 256) if small else (24, 1024)
    findings = Findings()
    for kind, clouds in some_clouds(batch, points).items():
        batches = [augmented(clouds, Streams(0).draw("augment", kind, number)) for number in range(4)]
        for name, (role, train_target, infer_target) in TARGETS.items():
            pair = Pair(name, points, batches)
            pair.check(kind)
            peak = Peak()
            theirs, ours, products = interleave(repetitions, pair.train(pair.theirs), pair.train(pair.ours), peak)
            note = f"ours {median(ours):.3g} s, reference {median(theirs):.3g} s a step"
            speed = Ratio.of(theirs, ours)
            findings.rows.append(Row(f"{role} training, {kind}", speed, train_target, "higher", note))
            if role == "teacher":
                ideal = [3 * pair.nominal() * each / peak.work for each in products]
                note = f"peak {peak.work / min(products) / 1e9:.3g} GFLOP/s; padding counted as work"
                share = Ratio.of(ideal, ours)
                findings.rows.append(Row(f"share of the sgemm peak, {kind}", share, SHARE_TARGET, "higher", note))
            theirs, ours = interleave(repetitions, pair.infer(pair.theirs), pair.infer(pair.ours))
            note = f"ours {median(ours):.3g} s, reference {median(theirs):.3g} s a batch"
            speed = Ratio.of(theirs, ours)
            findings.rows.append(Row(f"{role} inference, {kind}", speed, infer_target, "higher", note))
    return findings


class Peak:
    """Matrix products at the peak speed of one thread."""

    def __init__(self) -> None:
        self.left, self.right, self.out = torch.ones(1024, 1024), torch.ones(1024, 1024), torch.empty(1024, 1024)
        self.work = 2 * 10 * 1024**3

    def __call__(self) -> None:
        for _ in range(10):
            torch.mm(self.left, self.right, out=self.out)


class Pair:
    """Our model and the reference with the same weights and batches."""

    def __init__(self, name: str, points: int, batches: list[Tensor]) -> None:
        with Streams(0).ambient("benchmark", name):
            self.ours = build_model(name, (points, 3), CLASSES)
        first, second = self.ours.extractor.balls
        sampling = tuple((ball.centres, ball.radius, ball.neighbours) for ball in (first, second))
        self.theirs = Reference(sampling, self.ours.extractor.level1.linear1.out_features, CLASSES, 0.4)
        self.theirs.copy_from(self.ours)
        self.batches = batches
        self.labels = torch.arange(len(batches[0])) % CLASSES

    def check(self, kind: str) -> None:
        """Check that both compute the same function; this also warms up both."""
        with Streams(0).ambient("benchmark", "dropout"):
            for model in (self.ours, self.theirs):
                model.train()(self.batches[0])
        for mode in (True, False):
            with torch.no_grad():
                one, other = (model.train(mode)(self.batches[0])[1] for model in (self.ours, self.theirs))
            apart = float((one - other).abs().mean() / other.abs().mean())
            if not apart < CLOSE:
                raise DifferenceError(f"{kind}: features differ from the reference's by {apart:.3g} of their size")

    def train(self, model: nn.Module) -> Callable[[], None]:
        optimiser = torch.optim.Adam(model.parameters(), 1e-3, weight_decay=1e-4, fused=True)
        numbers = iter(range(10**6))

        def step() -> None:
            model.train()
            optimiser.zero_grad()
            F.nll_loss(model(self.batches[next(numbers) % len(self.batches)])[0], self.labels).backward()
            optimiser.step()

        step()
        return step

    def infer(self, model: nn.Module) -> Callable[[], None]:
        numbers = iter(range(10**6))

        def forward() -> None:
            model.eval()
            with torch.no_grad():
                model(self.batches[next(numbers) % len(self.batches)])

        forward()
        return forward

    def nominal(self) -> float:
        """Floating-point operations of a forward pass with every padded row computed."""
        first, second = self.ours.extractor.balls
        rows = (first.centres * first.neighbours, second.centres * second.neighbours, second.centres)
        levels = [
            count * sum(p.numel() for p in level.parameters() if p.dim() == 2)
            for count, level in zip(rows, self.ours.extractor.children(), strict=True)
        ]
        head = sum(p.numel() for p in self.ours.head.parameters() if p.dim() == 2)
        return 2.0 * len(self.batches[0]) * (sum(levels) + head)


def augmented(clouds: Tensor, rng: np.random.Generator) -> Tensor:
    """Dropout of points (they become point 0), scale and shift, drawn for each cloud."""
    batch, points, _ = clouds.shape
    dropped = torch.from_numpy(rng.random((batch, points)) <= rng.uniform(0, 0.875, (batch, 1)))
    scale = torch.from_numpy(rng.uniform(0.8, 1.25, (batch, 1, 1)))
    shift = torch.from_numpy(rng.uniform(-0.1, 0.1, (batch, 1, 3)))
    clouds = torch.where(dropped.unsqueeze(-1), clouds[:, :1], clouds)
    return (clouds * scale + shift).float().contiguous()


def some_clouds(batch: int, points: int) -> dict[str, Tensor]:
    rng = Streams(0).draw("benchmark", "clouds")
    kinds = {"heads": _some("heads", batch, points), "boxes": boxes_and_cylinders(rng, batch, points)}
    with suppress(FedstillError):  # only where the data set is available
        kinds["modelnet10"] = _some("modelnet10", batch, points)
    return kinds


def _some(name: str, batch: int, points: int) -> Tensor:
    data = load(name).train
    rows = torch.arange(batch) * (len(data) // batch)
    return data.batch(rows)["inputs"][:, :points].float()


def boxes_and_cylinders(rng: np.random.Generator, batch: int, points: int) -> Tensor:
    """Furniture-like clouds: points on a few thin boxes and cylinders, centred and scaled to the unit ball."""
    clouds = []
    for _ in range(batch):
        parts = int(rng.integers(2, 6))
        share = rng.multinomial(points, np.full(parts, 1 / parts))
        pieces = []
        for count in share:
            sides = rng.uniform((0.3, 0.3, 0.02), (1.0, 1.0, 0.2))
            where = rng.uniform(-1, 1, (count, 3))
            if rng.random() < 0.5:  # a box: push one coordinate to a face
                face = rng.integers(0, 3, count)
                where[np.arange(count), face] = np.sign(where[np.arange(count), face])
            else:  # a cylinder: round in two coordinates
                angle = np.pi * where[:, 0]
                where[:, 0], where[:, 1] = np.cos(angle), np.sin(angle)
            pieces.append(where * rng.permutation(sides) + rng.uniform(-0.5, 0.5, 3))
        cloud = np.concatenate(pieces)[rng.permutation(points)]
        cloud -= cloud.mean(0)
        clouds.append(cloud / np.linalg.norm(cloud, axis=1).max())
    return torch.from_numpy(np.stack(clouds)).float()
