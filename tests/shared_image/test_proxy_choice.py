"""What a run's model chooses of the shared samples, and what it says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import fedstill
from fedstill.core.errors import InputError
from fedstill.data.catalogue import load
from fedstill.runtime.checkpoint import candidates
from fedstill.runtime.result import Run
from fedstill.shared_image.patches import PatchSettings, make_patches
from fedstill.shared_image.proxy_choice import chosen_by

TINY: dict[str, Any] = {
    "data": "digits",
    "model": "cnn",
    "clients": 3,
    "rounds": 1,
    "training": {"epochs": 1, "batch": 64},
}
IMAGE: dict[str, Any] = {
    "name": "single-image",
    "image": "noise:64x64",
    "patches": {"count": 90},
    "samples": 20,
    "steps": 2,
    "batch": 16,
    "selection": {"kmeans": 5, "prune": 0.5},
}
SAMPLES: dict[str, Any] = {"proxy": "digits", "samples": 30, "steps": 2, "batch": 16}


def run(out: Path, method: Any, **changes: Any) -> Run:
    return fedstill.run({**TINY, "method": method, **changes}, out=out)


def asked(of: Run) -> list[int]:
    """The samples that the last round was about, as the server's state has them."""
    found, _ = candidates(of.path)
    return found[0].server["selected"].tolist()


@pytest.mark.parametrize(
    "method",
    [IMAGE, {"name": "feddf", **SAMPLES}, {"name": "feddf", **SAMPLES, "selection": {"kmeans": 0, "prune": 0}}],
    ids=["selected", "fixed", "drawn"],
)
def test_they_are_what_the_next_round_is_about(method: dict[str, Any], tmp_path: Path) -> None:
    """A run of two rounds plays the first as a run of one round does, and its second is about what that one chooses."""
    short, long = run(tmp_path, method), run(tmp_path, method, rounds=2)
    chosen = chosen_by(short)
    assert chosen.rows.tolist() == asked(long)
    assert (chosen.rounds, chosen.accuracy) == (1, short.accuracy)
    assert chosen_by(long).rounds == 2


def test_what_the_model_makes_of_them(tmp_path: Path) -> None:
    """By the patches, cut here again, and the model in evaluation mode."""
    one = run(tmp_path, IMAGE)
    chosen = chosen_by(one)
    pool = make_patches("noise:64x64", (1, 8, 8), "image", PatchSettings(count=90))
    inputs = pool.batch(chosen.rows)["inputs"]
    with torch.inference_mode():
        logits, features = one.model().eval()(inputs)
    assert torch.equal(chosen.inputs, inputs)
    assert torch.equal(chosen.classes, logits.argmax(dim=1))
    torch.testing.assert_close(chosen.embeddings, features)
    assert (chosen.shared, chosen.kind, chosen.pool, chosen.whose) == ("patches:noise:64x64", "image", 90, "")


def test_the_best_model_chooses_after_its_own_round(tmp_path: Path) -> None:
    one = run(tmp_path, IMAGE, rounds=3)
    best = int(one.result.round_of["best"])
    chosen = chosen_by(one, "best")
    assert (chosen.rounds, chosen.accuracy) == (best, one.best_accuracy)


def test_of_mixed_architectures_the_first_chooses(tmp_path: Path) -> None:
    mixed = run(tmp_path, IMAGE, model=None, models={"mlp": 2, "cnn": 1})
    chosen = chosen_by(mixed)
    assert chosen.whose == "mlp"
    assert chosen.accuracy == mixed.journal[-1].evaluation.extra_models["mlp"]["accuracy"]


def test_a_clients_own_model(tmp_path: Path) -> None:
    own = run(tmp_path, {"name": "fedmd", **SAMPLES})
    with pytest.raises(InputError, match="name one with --client"):
        chosen_by(own)
    chosen = chosen_by(own, client=1)
    assert (chosen.whose, chosen.accuracy) == ("client 1", None)
    assert chosen.rows.tolist() == asked(own)
    inputs = load("digits").train.batch(chosen.rows)["inputs"]
    with torch.inference_mode():
        assert torch.equal(own.model(client=1).eval()(inputs)[0].argmax(dim=1), chosen.classes)


def test_runs_that_share_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"fedavg, the method of .*, asks nobody .* one of .*feddf, .*single-image"):
        chosen_by(run(tmp_path, "fedavg"))


def test_a_run_with_replayed_losses_is_known_by_its_samples_too(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("round,client\n1,1\n")
    made = run(tmp_path, IMAGE, dropout={"name": "trace", "file": str(tmp_path / "trace.csv")})
    assert len(chosen_by(made).rows) == 20


def test_another_image_under_the_same_name_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "shared.png"
    draw = np.random.default_rng(0)
    Image.fromarray(draw.integers(0, 255, (64, 64, 3), np.uint8)).save(file)
    one = run(tmp_path, {**IMAGE, "image": f"image:{file}"})
    assert len(chosen_by(one).rows) == 20
    Image.fromarray(draw.integers(0, 255, (64, 64, 3), np.uint8)).save(file)
    with pytest.raises(InputError, match="the shared samples here are not those of"):
        chosen_by(one)


def test_unfinished_runs_have_nothing_to_show(tmp_path: Path) -> None:
    one = run(tmp_path, IMAGE)
    (one.path / "result.json").unlink()
    (one.path / "model-last.safetensors").unlink()
    with pytest.raises(InputError, match="it is not finished"):
        chosen_by(Run(one.path))
