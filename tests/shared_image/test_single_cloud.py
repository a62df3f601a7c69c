"""`fedstill run single-image` where the shared datum is a cloud, and what is refused of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedstill
from fedstill.core.protocols import Engine
from fedstill.data.heads import make_heads
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.plan import make_plan
from fedstill.runtime.result import Run
from fedstill.shared_image.patch_sources import cloud_source

Call = Callable[..., tuple[int, str, str]]

POINTS = 48
METHOD: dict[str, Any] = {
    "name": "single-image",
    "patches": {"count": 40},
    "samples": 20,
    "steps": 2,
    "batch": 16,
    "selection": {"kmeans": 4},
}
SMALL = ("epochs=1", "training.batch=32", "samples=20", "steps=2", "method.batch=16", "method.patches.count=40")
SETTINGS = [word for one in (*SMALL, "method.selection.kmeans=4", f"points={POINTS}") for word in ("--set", one)]
RUN = ["run", "single-image", "--model", "pointnet-tiny", "--clients", "2", *SETTINGS]
OWN = ["--data", "npz:heads.npz", "--rounds", "1"]


@pytest.fixture
def heads(tmp_path: Path) -> str:
    """A few small heads in an archive, which is read sooner than the built-in ones are made."""
    clouds, labels = make_heads(per_class=10, points=300)
    np.savez(tmp_path / "heads.npz", x=clouds, y=labels)
    return f"npz:{tmp_path / 'heads.npz'}"


def answer(call: Call, *words: str) -> dict[str, Any]:
    code, out, err = call(*words, "--json")
    assert code == 0, err
    return dict(json.loads(out))


def test_patches_of_a_built_in_head(call: Call) -> None:
    """Once weights have been sent, only indices go down and logits come up: 20 rows of 4 classes in two bytes."""
    result = answer(call, *RUN, "--data", "heads", "--set", "image=heads:0", "--rounds", "2")
    first, second = Run(result["run"]).journal
    assert first.accepted == second.accepted == (0, 1)
    logits = 2 * 20 * 4 * 2
    assert logits < second.bytes.up < logits + 2 * 500
    assert first.bytes.up > 10 * second.bytes.up


def test_a_cloud_from_a_file_is_as_good_as_a_sample(call: Call, heads: str) -> None:
    """The same points in a file of their own give the same run; another head gives another."""
    for row in (3, 4):
        np.savez(f"scan{row}.npz", points=cloud_source(f"{heads}:{row}"))
    sources = ("npz:heads.npz:3", "cloud:scan3.npz", "cloud:scan4.npz")
    hashes = [answer(call, *RUN, *OWN, "--set", f"image={source}")["sha256"] for source in sources]
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.parametrize("points", [None, POINTS])
def test_patches_have_the_models_number_of_points(heads: str, points: int | None) -> None:
    """256 is what the model decides where nobody else does; a number that is given counts."""
    given = {"data": heads, "model": "pointnet-tiny", "clients": 2, "method": {**METHOD, "image": f"{heads}:0"}}
    plan = make_plan(make_experiment({**given, **({} if points is None else {"points": points})}))
    assert plan.clients.proxy is not None
    inputs = plan.clients.proxy.data.batch(torch.arange(8))["inputs"]
    assert inputs.shape == (8, points or 256, 3) == (8, *plan.task.shape)
    torch.testing.assert_close(inputs.norm(dim=2).amax(dim=1), torch.ones(8))


def test_engines_agree(engines: dict[str, Engine], heads: str, tmp_path: Path) -> None:
    """Two architectures, and workers that cut the patches for themselves."""
    given = {
        "data": heads,
        "models": {"pointnet-tiny": 2, "small-pointnet-tiny": 1},
        "points": POINTS,
        "rounds": 2,
        "training": {"epochs": 1, "batch": 32},
        "method": {**METHOD, "image": f"{heads}:0"},
    }
    runs = [
        fedstill.run(given, engine=engines[name], out=tmp_path / name) for name in ("in-process", "wire", "processes-2")
    ]
    assert len({run.sha256 for run in runs}) == 1
    assert len({tuple(record.to_json() for record in run.journal) for run in runs}) == 1
    assert set(runs[-1].result.extra_models) == {"pointnet-tiny", "small-pointnet-tiny"}
    assert all(record.accepted == (0, 1, 2) for record in runs[-1].journal)


MISTAKES = {
    "an image": ("china", "china cannot be cut into patches for clouds: these need one of the sources of clouds"),
    "row": ("npz:heads.npz:99", "there is no 99"),
    "data set": ("head:0", "did you mean 'heads'"),
    "few points": ("cloud:few.npy", "a cloud of 30 points is too small for patches of 48"),
    "not finite": ("cloud:nan.npz", "60 of 60 points are NaN or infinite"),
    "damaged": ("cloud:bad.ply", "bad.ply"),
    "a picture": ("cloud:a.png", "a.png is no cloud"),
    "missing": ("cloud:none.ply", "there is no file none.ply"),
}


@pytest.mark.usefixtures("heads")
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_gets_one_sentence_and_writes_nothing(call: Call, name: str) -> None:
    np.save("few.npy", np.random.default_rng(1).normal(size=(30, 3)))
    np.savez("nan.npz", points=np.full((60, 3), np.nan))
    Path("bad.ply").write_text("ply\nnonsense")
    Path("a.png").write_bytes(b"\x89PNG")
    before = sorted(Path().iterdir())
    source, sentence = MISTAKES[name]
    code, out, err = call(*RUN, *OWN, "--set", f"image={source}")
    assert (code, out) == (2, "")
    assert sentence in err
    assert len(err.splitlines()) == 1
    assert sorted(Path().iterdir()) == before
