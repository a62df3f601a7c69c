"""Weights that a run starts from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedstill.core.errors import InputError
from fedstill.core.kinds import state_of
from fedstill.core.message import Message, part
from fedstill.core.streams import Streams
from fedstill.models import build_model
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.plan import make_plan

MLP = {"method": "fedavg", "data": "digits", "model": "mlp", "clients": 2, "rounds": 1}


def written(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    path.write_bytes(Message(tensors).encode())
    return path


def some_weights() -> dict[str, torch.Tensor]:
    state = state_of(build_model("mlp", (1, 8, 8), 10))
    name = min(state)
    return {name: torch.full_like(state[name], 0.25)}


def test_named_weights_are_laid_over_the_model_that_is_drawn(tmp_path: Path) -> None:
    weights = some_weights()
    file = written(tmp_path / "some.safetensors", weights)
    plain, started = (make_plan(make_experiment({**MLP, **more})) for more in ({}, {"initial": {"file": str(file)}}))
    before, after = (part(plan.method.start(Streams(0)), "model/") for plan in (plain, started))
    assert before.keys() == after.keys()
    for name, tensor in after.items():
        assert torch.equal(tensor, weights[name] if name in weights else before[name])


def test_a_run_is_named_by_the_weights_and_not_by_their_file(tmp_path: Path) -> None:
    weights = some_weights()
    files = [written(tmp_path / name, weights) for name in ("a", "b")]
    others = written(tmp_path / "c", {name: 2 * tensor for name, tensor in weights.items()})
    same, equal, other = (
        make_plan(make_experiment({**MLP, "initial": {"file": str(file)}})).identity for file in (*files, others)
    )
    assert same == equal != other
    assert make_plan(make_experiment(MLP)).identity not in (same, other)


def test_a_models_whole_file_of_a_run_fits(tmp_path: Path) -> None:
    state = state_of(build_model("mlp", (1, 8, 8), 10))
    file = written(tmp_path / "model-last.safetensors", {f"mlp/{name}": tensor for name, tensor in state.items()})
    plan = make_plan(make_experiment({**MLP, "initial": {"file": str(file)}}))
    started = part(plan.method.start(Streams(0)), "model/")
    assert all(torch.equal(started[name], tensor) for name, tensor in state.items())


@pytest.mark.parametrize(
    ("tensors", "sentence"),
    [
        ({"parameters/nobody": torch.zeros(1)}, "do not fit mlp: it has no tensor 'parameters/nobody'"),
        ({"parameters/head.bias": torch.zeros(3)}, "'parameters/head.bias' is 3, not 10"),
        ({}, "holds no weights"),
    ],
)
def test_weights_that_do_not_fit_are_refused(tmp_path: Path, tensors: dict[str, torch.Tensor], sentence: str) -> None:
    file = written(tmp_path / "other.safetensors", tensors)
    with pytest.raises(InputError, match="safetensors") as refused:
        make_plan(make_experiment({**MLP, "initial": {"file": str(file)}}))
    assert sentence in str(refused.value)


def test_a_file_that_is_missing_damaged_or_another_is_refused(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    damaged.write_bytes(b"no tensors")
    file = written(tmp_path / "some", some_weights())
    for initial, sentence in (
        ({"file": str(tmp_path / "none")}, "fedstill pretrain"),
        ({"file": str(damaged)}, "cannot be read"),
        ({"file": str(file), "sha256": "0" * 64}, "other weights than the run began with"),
    ):
        with pytest.raises(InputError, match=sentence):
            make_plan(make_experiment({**MLP, "initial": initial}))
