"""What tests of methods on scenes share: rooms of few points, and a detector small enough to train in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import nn

from fedstill.core.dataset import ArrayDataset
from fedstill.core.kinds import load_state
from fedstill.core.streams import Streams
from fedstill.core.task import Tensors
from fedstill.detection.detection_task import Detection
from fedstill.detection.rooms import CLASSES, make_rooms
from fedstill.models import build_model, duplicate

POINTS = 256


@dataclass(frozen=True)
class SmallDetection(Detection):
    """Detection with a tiny detector, with Dropout and BatchNorm, whatever its name."""

    dropout: float = 0.1

    def build(self, architecture: str, state: Tensors | None = None, streams: Streams | None = None) -> nn.Module:
        if state is None:
            with (streams or Streams(0)).ambient("initialise"):
                return tiny_detector(self.shape, len(self.classes), self.dropout)
        model = duplicate(_template(self.shape, len(self.classes), self.dropout))
        load_state(model, state)
        return model


def tiny_detector(shape: tuple[int, ...], classes: int, dropout: float) -> nn.Module:
    return build_model(
        "small-detr3d-lite",
        shape,
        classes,
        width=16,
        heads=2,
        encoder_layers=2,
        decoder_layers=2,
        feedforward=16,
        tokens=24,
        neighbours=8,
        queries=9,
        candidates=16,
        prompts=3,
        dropout=dropout,
    )


@cache
def _template(shape: tuple[int, ...], classes: int, dropout: float) -> nn.Module:
    with Streams(0).ambient("initialise"):
        return tiny_detector(shape, classes, dropout)


SCENES = SmallDetection(CLASSES, (POINTS, 3), ("tiny",))
STEADY = replace(SCENES, dropout=0.0)


@cache
def _rooms(number: int, first: int) -> ArrayDataset:
    made = make_rooms(number, points=POINTS, first=first, seen=4)
    columns = (torch.as_tensor(column) for column in (made.points, made.classes, made.boxes))
    return ArrayDataset(**dict(zip(("inputs", "labels", "boxes"), columns, strict=True)))


def rooms(number: int, first: int = 0) -> ArrayDataset:
    """Scenes with boxes, the same whenever they are asked for."""
    return _rooms(number, first)


def bare(data: ArrayDataset) -> ArrayDataset:
    """The same scenes with nothing in them to be found."""
    return ArrayDataset(**{**data.columns, "labels": torch.full_like(data.columns["labels"], -1)})
