"""Published detectors in a federation: their heads have BatchNorm, which is learnt, sent and checked like any other."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedstill
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


PLUGIN = """
from fedstill.detection.model import PublishedDetector, detects, feature_columns
from fedstill.detection.model.detector_sizes import PublishedSizes
from fedstill.models import models

SIZES = PublishedSizes(
    width=16, heads=2, encoder_layers=1, decoder_layers=1, feedforward=8, decoder_feedforward=12, tokens=24, radius=0.5,
    neighbours=8, floor=0.0, queries=6, candidates=0, prompts=3, angle_bins=1, dropout=0.1, head_dropout=0.3,
)

@detects(96, {"optimiser": "adamw", "rate": 1e-3, "batch": 2})
@models.register("tiny-published")
def tiny_published(shape, classes):
    return PublishedDetector(SIZES, classes, "tiny-published", channels=feature_columns(shape))
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plugin with a tiny published detector, and coloured scenes."""
    folder = tmp_path_factory.mktemp("published")
    (folder / "tiny.py").write_text(PLUGIN)
    for split, count in (("train", 6), ("test", 2)):
        (folder / "scenes" / split).mkdir(parents=True)
        for number in range(count):
            cloud = np.random.default_rng([number, count]).uniform(0, 1, (120, 6))
            box = {"boxes": [[0.5, 0.5, 0.5, 1, 1, 1, 0]], "labels": [number % 2], "classes": ["crate", "shelf"]}
            np.savez(folder / "scenes" / split / f"{number}", points=cloud, **box)
    return folder


def trained(files: Path, out: Path, **more: Any) -> fedstill.Run:
    settings: dict[str, Any] = {"model": "tiny-published", "clients": 2, "rounds": 2, "training": {"epochs": 1}}
    settings |= {"points": 96, "detection": {"features": "colour,height"}}
    data = f"folder:{files / 'scenes'}"
    return fedstill.run("fedavg", data=data, plugins=[files / "tiny.py"], out=out, **settings, **more)


@pytest.fixture(scope="module")
def in_one_process(files: Path, tmp_path_factory: pytest.TempPathFactory) -> fedstill.Run:
    return trained(files, tmp_path_factory.mktemp("one"))


@pytest.mark.parametrize("engine", ["wire", "processes"])
def test_engines_agree_on_heads_with_batchnorm(
    engine: str, files: Path, in_one_process: fedstill.Run, tmp_path: Path
) -> None:
    made = trained(files, tmp_path, engine=engine, workers=1)
    assert made.sha256 == in_one_process.sha256
    assert made.accuracy == in_one_process.accuracy
    state = in_one_process.model().state_dict()
    norms = [name for name in state if name.startswith("heads.") and name.endswith("running_mean")]
    assert norms
    assert all(state[name].abs().max() > 0 for name in norms)


def test_a_run_with_such_heads_goes_on_where_it_was_killed(
    files: Path, in_one_process: fedstill.Run, tmp_path: Path
) -> None:
    def stop(record: Any) -> None:
        if record.round == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(files, tmp_path, callbacks=stop)
    made = trained(files, tmp_path)
    assert len(made.journal) == 2
    assert made.sha256 == in_one_process.sha256
