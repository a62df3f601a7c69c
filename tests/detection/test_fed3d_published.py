"""Fed3D with a published detector: its heads have BatchNorm, which is learnt, sent and checked like any other."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

import pytest
import torch
from torch import nn

from fedstill.core.kinds import load_state, state_of
from fedstill.core.message import part
from fedstill.core.streams import Streams
from fedstill.core.task import Tensors
from fedstill.detection.detection_task import Detection
from fedstill.detection.model import part_of
from fedstill.detection.rooms import CLASSES
from fedstill.methods.recalibration import recalibrate, tracked_layers
from fedstill.models import build_model

from ..methods.sites import Site, build
from .model.test_published_detector import SMALL
from .small_scenes import POINTS, rooms

TRAINING = {"epochs": 1, "batch": 2, "rate": 2e-3, "optimiser": "adamw", "weight_decay": 0.05, "clip": 0.1}


@dataclass(frozen=True)
class SmallPublished(Detection):
    """Detection with a small masked detector, with Dropout."""

    def build(self, architecture: str, state: Tensors | None = None, streams: Streams | None = None) -> nn.Module:
        with (streams or Streams(0)).ambient("initialise"):
            sizes = {**SMALL, "dropout": 0.1, "head_dropout": 0.3}
            model = build_model("detr3d-m", self.shape, len(self.classes), **sizes)
        if state is not None:
            load_state(model, state)
        return model


TASK = SmallPublished(CLASSES, (POINTS, 3), ("tiny",))


@pytest.mark.parametrize("share", ["prompts-and-heads", "prompts", "all"])
def test_statistics_of_the_heads_learn_with_the_heads(share: str) -> None:
    method = build("fed3d", TASK, TRAINING, share=share)
    one = Site(method, TASK, [rooms(4), rooms(3, 5)], rounds=2)
    before = part(one.server, "model/")
    sent = {name for name in one.ask(0).message if name.startswith("model/buffers/")}
    assert all(any(fnmatchcase(name, line.name) for line in method.egress) for name in sent)
    after = part(one.play(), "model/")
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    norms = {name for name in before if "running" in name}
    learns = {"prompts-and-heads": {"heads"}, "prompts": set(), "all": {"heads", "encoder"}}[share]
    assert norms & changed == {name for name in norms if part_of(name) in learns}
    assert {f"model/{name}" for name in norms & changed} <= sent


def test_they_can_be_estimated_anew() -> None:
    model = TASK.build("tiny")
    layers = tracked_layers(TASK, "tiny")
    assert {name.split(".")[0] for name in layers} == {"tokens", "downsampling", "projection", "heads"}
    before = state_of(model)
    assert recalibrate(model, TASK, rooms(4), Streams(0), 2)
    after = state_of(model)
    assert all(not torch.equal(before[name], after[name]) for name in before if "running_mean" in name)
    assert all(torch.equal(before[name], after[name]) for name in before if name.startswith("parameters/"))
