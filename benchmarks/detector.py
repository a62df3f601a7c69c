"""`detr3d` compared with a plain PyTorch implementation: a training step on one scene, and inference.

One thread, a furnished room of 20,000 points. Both models have the same weights and run alternately; what counts is
processor time, which other work on the machine changes least.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import process_time

import torch
from torch import Tensor, nn

from benchmarks.reference_detector import ReferenceDetector
from benchmarks.report import DifferenceError, Findings, Row
from benchmarks.sizes import Size
from benchmarks.timing import Ratio, interleave, one_thread
from fedstill.core.streams import Streams
from fedstill.detection.detection_losses import detection_losses
from fedstill.detection.model import PublishedDetector
from fedstill.detection.rooms import make_rooms
from fedstill.detection.rooms.furniture import CLASSES
from fedstill.models import build_model

TARGETS = {"detr3d": 3.0, "detr3d-m": 3.0}
# Tolerance for rounding, and for single neighbours that differ because the reference rounds distances differently.
CLOSE = 0.02


def measure(size: Size, folder: Path) -> Findings:
    with one_thread():
        return _measure(max(2, size.rounds // 4), small=size.rounds <= 2)


def _measure(repetitions: int, small: bool) -> Findings:
    scenes = make_rooms(1, points=1024 if small else 20_000)
    findings = Findings()
    for name, target in TARGETS.items():
        pair = Pair(name, scenes.points, scenes.classes, scenes.boxes, small)
        pair.check()
        for what, action in (("training", pair.train), ("inference", pair.infer)):
            theirs, ours = interleave(repetitions, action(pair.theirs), action(pair.ours), clock=process_time)
            note = f"ours {median(ours):.3g} s, plain torch {median(theirs):.3g} s a scene"
            findings.rows.append(
                Row(f"{name}, {what}, {len(scenes.points[0]):,} points", Ratio.of(theirs, ours), target, "higher", note)
            )
    return findings


class Pair:
    """Our model and the reference with the same weights, for one scene."""

    def __init__(self, name: str, points: Tensor, labels: Tensor, boxes: Tensor, small: bool) -> None:
        sizes = {"tokens": 128, "queries": 16} if small else {}
        with Streams(0).ambient("benchmark", name):
            ours = build_model(name, tuple(points.shape[1:]), len(CLASSES), **sizes)
        assert isinstance(ours, PublishedDetector)
        self.ours, self.theirs = ours, ReferenceDetector(ours)
        self.points, self.labels, self.boxes = points, labels, boxes

    def check(self) -> None:
        """Check that both compute the same function."""
        with torch.no_grad():
            one, other = (model.eval()(self.points).features for model in (self.ours, self.theirs))
        apart = float((one - other).abs().mean() / other.abs().mean())
        if not apart < CLOSE:
            raise DifferenceError(f"features differ from plain torch's by {apart:.3g} of their size")

    def train(self, model: nn.Module) -> Callable[[], None]:
        def step() -> None:
            model.train().zero_grad()
            # A new tensor in each step: positions of tokens are kept for the latest batch.
            losses = detection_losses(model(self.points.clone()), self.labels, self.boxes)
            torch.stack(list(losses.terms().values())).sum().backward()

        step()
        return step

    def infer(self, model: nn.Module) -> Callable[[], None]:
        def forward() -> None:
            with torch.inference_mode():
                model.eval()(self.points.clone())

        forward()
        return forward
