"""Proxy data: a share, another data set, files that nobody labelled; labels of other classes are never read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from fedstill.core.dataset import ArrayDataset
from fedstill.core.errors import InputError
from fedstill.core.kinds import state_of
from fedstill.core.message import Message
from fedstill.core.protocols import Engine
from fedstill.core.streams import Streams
from fedstill.data.catalogue import load
from fedstill.models import build_model
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.launch import distillation
from fedstill.runtime.plan import Plan, make_plan
from fedstill.runtime.result import Run
from fedstill.runtime.run import execute

DRAW = np.random.default_rng(8)
PIXELS = DRAW.integers(0, 256, (40, 8, 8), dtype=np.uint8)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("teacher") / "teacher.safetensors"
    with Streams(5).ambient("teacher"):
        path.write_bytes(Message(state_of(build_model("cnn", (1, 8, 8), 10))).encode())
    return {"file": str(path), "model": "cnn"}


def planned(teacher: Any, objective: Any = "vanilla", labels: str = "use", **settings: Any) -> Plan:
    given = {"rounds": 1, "seed": 3, "training": {"batch": 16}, **distillation(teacher, "mlp", objective, labels)}
    given["method"] |= settings
    return make_plan(make_experiment(given))


def archive(path: Path, **arrays: Any) -> str:
    np.savez(path, **arrays)
    return f"npz:{path}"


def inputs_of(plan: Plan) -> Tensor:
    data = plan.clients.data
    return data.batch(torch.arange(len(data)))["inputs"]


def test_the_training_split_is_the_proxy_unless_another_is_named(teacher: Any) -> None:
    assert torch.equal(inputs_of(planned(teacher)), load("digits").train.batch(torch.arange(1438))["inputs"])


def test_a_share_is_drawn_evenly_and_is_the_same_in_every_label_mode(teacher: Any) -> None:
    """A tenth of 1438 digits: 144, and of each class its tenth, to one sample."""
    plans = {labels: planned(teacher, labels=labels, share=0.1) for labels in ("use", "no-ce", "withhold")}
    labels = plans["use"].clients.data.labels()
    whole = load("digits").train.labels()
    assert labels is not None
    assert whole is not None
    assert len(labels) == 144
    assert (torch.bincount(labels) - torch.bincount(whole) / 10).abs().max() < 1
    assert plans["withhold"].clients.data.labels() is None
    for plan in plans.values():
        assert torch.equal(inputs_of(plan), inputs_of(plans["use"]))
        assert plan.profiles[0].samples == 144


@pytest.mark.parametrize("share", [0.0001, 0.0007])
def test_a_share_that_makes_no_batch_is_refused(teacher: Any, share: float) -> None:
    with pytest.raises(InputError, match=r"of the proxy's 1,438 samples makes no batch of two"):
        planned(teacher, share=share)


def test_another_set_with_the_same_classes_keeps_its_labels(teacher: Any, tmp_path: Path) -> None:
    labels = np.arange(40) % 10
    name = archive(tmp_path / "digits-too.npz", x_train=PIXELS, y_train=labels, x_test=PIXELS, y_test=labels)
    plan = planned(teacher, proxy=name)
    found = plan.clients.data.labels()
    assert found is not None
    assert found.tolist() == labels.tolist()


def test_labels_of_other_classes_are_never_read(teacher: Any, tmp_path: Path) -> None:
    labels = np.arange(40) % 4
    name = archive(tmp_path / "letters.npz", x_train=PIXELS, y_train=labels, x_test=PIXELS, y_test=labels)
    for objective in ("vanilla", "dkd"):
        with pytest.raises(InputError, match="are of other classes than digits's: choose --labels withhold"):
            planned(teacher, objective, proxy=name)
    for changes in ({"labels": "no-ce"}, {"labels": "withhold"}, {"objective": "feature"}):
        data = planned(teacher, proxy=name, **changes).clients.data
        assert data.labels() is None
        assert len(data) == 40


@pytest.mark.parametrize("key", ["x", "x_train", "train_images"])
def test_an_archive_without_labels_is_a_proxy(teacher: Any, tmp_path: Path, key: str) -> None:
    name = archive(tmp_path / "pixels.npz", **{key: PIXELS})
    plan = planned(teacher, labels="withhold", proxy=name, share=0.5)
    assert len(plan.clients.data) == 20
    assert torch.equal(
        inputs_of(planned(teacher, labels="no-ce", proxy=name)),
        ArrayDataset(inputs=torch.from_numpy(PIXELS[:, None])).batch(torch.arange(40))["inputs"],
    )
    with pytest.raises(InputError, match="reads labels, and the proxy data has none: choose `withhold`"):
        planned(teacher, proxy=name)


def test_a_folder_of_images_is_a_proxy(teacher: Any, tmp_path: Path, engines: dict[str, Engine]) -> None:
    """Ten grey images of 8 x 8, by name, one of which is larger and is resized."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number, pixels in enumerate(PIXELS[:9]):
        Image.fromarray(pixels).save(folder / f"{number}.png")
    Image.fromarray(np.full((16, 16), 255, np.uint8)).save(folder / "9.png")
    (folder / "notes.txt").write_text("not an image")
    plan = planned(teacher, labels="withhold", proxy=f"folder:{folder},size=8")
    inputs = inputs_of(plan)
    assert inputs.shape == (10, 1, 8, 8)
    assert torch.equal(inputs[:9], torch.from_numpy(PIXELS[:9, None]).float() / 127.5 - 1)
    assert inputs[9].min() == 1
    run = Run(execute(plan, engines["in-process"], tmp_path / "runs").path)
    assert run.journal[0].accepted == (0,)


def test_what_cannot_be_a_proxy_is_refused(teacher: Any, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "a.png").write_bytes(b"no image")
    cases = {
        archive(tmp_path / "wide.npz", x=np.zeros((4, 9, 9), np.uint8)): r"images of shape \(1, 9, 9\), and digits",
        archive(tmp_path / "clouds.npz", x=np.ones((4, 5, 3), np.float32)): "holds clouds of shape",
        archive(tmp_path / "nan.npz", x=np.full((4, 8, 8), np.nan, np.float32)): "NaN or infinity",
        archive(tmp_path / "none.npz", x=np.zeros((0, 8, 8), np.uint8)): "holds no samples",
        archive(tmp_path / "other.npz", pictures=PIXELS): "holds pictures; expected are",
        f"npz:{tmp_path / 'absent.npz'}": "does not exist",
        f"folder:{tmp_path / 'empty'}": "empty",
        f"folder:{broken}": r"a\.png is no image",
        "digit": "did you mean 'digits'",
    }
    for name, sentence in cases.items():
        with pytest.raises(InputError, match=sentence):
            planned(teacher, labels="withhold", proxy=name)
