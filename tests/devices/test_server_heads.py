"""Several teachers for one student: what a client learns from their mean is what it would learn from all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedstill.core.errors import InputError
from fedstill.core.message import part
from fedstill.core.protocols import Engine
from fedstill.core.streams import Streams
from fedstill.devices.server_heads import mean_teacher, teacher_weights
from fedstill.distillation.logits import soft_targets
from fedstill.runtime.run import execute

from .test_fedgkt import SPLIT, TASK, log_softmax, site


def test_the_gradient_is_the_weighted_sum_over_teachers() -> None:
    """At temperature 3, with other weights for each sample."""
    generator = torch.Generator().manual_seed(0)
    teachers = (3 * torch.randn(3, 5, 4, generator=generator)).log_softmax(dim=2)
    weights = torch.rand(3, 5, generator=generator)
    weights /= weights.sum(dim=0)
    student = torch.randn(5, 4, generator=generator, requires_grad=True)
    separate = sum(
        weights[k, n] * soft_targets(student[n : n + 1].log_softmax(1), teachers[k, n : n + 1], 3.0) / 5
        for k in range(3)
        for n in range(5)
    )
    (expected,) = torch.autograd.grad(separate, student)
    single = soft_targets(student.log_softmax(1), mean_teacher(teachers, weights, 3.0), 3.0)
    (found,) = torch.autograd.grad(single, student)
    torch.testing.assert_close(found, expected)
    assert expected.abs().max() > 0.1


def test_by_hand() -> None:
    """At temperature 2 probabilities go by square roots: (0.8, 0.2) is (2/3, 1/3), and (0.1, 0.9) is (1/4, 3/4)."""
    teachers = torch.tensor([[[0.8, 0.2]], [[0.1, 0.9]]]).log()
    equal = mean_teacher(teachers, teacher_weights(teachers, torch.tensor([0]), "uniform"), 2.0)
    mean = [(2 / 3 + 1 / 4) / 2, (1 / 3 + 3 / 4) / 2]
    assert (equal / 2).exp().tolist() == [pytest.approx(mean)]
    weights = teacher_weights(teachers, torch.tensor([0]), "labels")
    assert weights.flatten().tolist() == pytest.approx([8 / 9, 1 / 9])
    unequal = mean_teacher(teachers, weights, 2.0)
    first = 8 / 9 * 2 / 3 + 1 / 9 / 4
    assert (unequal / 2).exp().tolist() == [pytest.approx([first, 1 - first])]


@pytest.mark.parametrize("weights", ["uniform", "labels"])
def test_clients_are_sent_the_mean_of_all_heads(weights: str) -> None:
    """Linear heads of a perceptron, in numpy; each is trained, from its own weights, and continues its own Adam."""
    one = site(7, 5, server_heads=3, head_weights=weights)
    start = one.server
    names = [
        "model/parameters/head.weight",
        "heads/1/model/parameters/head.weight",
        "heads/2/model/parameters/head.weight",
    ]
    assert len({tuple(start[name].flatten().tolist()) for name in names}) == 3
    replies = [one.ask(client) for client in (0, 1)]
    server = one.method.aggregate(start, replies, one.context(0))
    assert not any(torch.equal(start[name], server[name]) for name in names)
    assert {name.split("/optimiser")[0] for name in server if "optimiser/0/steps" in name} == {
        "optimiser/0/steps",
        "heads/1",
        "heads/2",
    }
    for client, reply in enumerate(replies):
        features, labels = reply.message["features"].double().numpy(), reply.message["labels"].numpy()
        spoken = []
        for place in ("", "heads/1/", "heads/2/"):
            weight, bias = (
                server[f"{place}model/parameters/head.{kind}"].double().numpy() for kind in ("weight", "bias")
            )
            spoken.append(log_softmax(features @ weight.T + bias))
        right = np.stack([np.exp(one[np.arange(len(labels)), labels]) for one in spoken])
        shares = right / right.sum(axis=0) if weights == "labels" else np.full(right.shape, 1 / 3)
        expected = sum(share[:, None] * np.exp(log_softmax(own / 2)) for share, own in zip(shares, spoken, strict=True))
        found = np.exp(log_softmax(server[f"said/{client}/logits"].double().numpy() / 2))
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_further_heads_change_nothing_of_the_first_in_a_round() -> None:
    """What they say reaches it through clients, in the next round."""
    servers = []
    for heads in (1, 3):
        one = site(40, 30, task=SPLIT, server_heads=heads, server_batch=16)
        servers.append((one.play_round(0), one.play_round(1)))
    (single, later), (several, afterwards) = servers
    own = [name for name in single if name.startswith(("model/", "optimiser/", "facts/"))]
    assert all(torch.equal(single[name], several[name]) for name in own)
    assert not torch.equal(single["said/0/logits"], several["said/0/logits"])
    assert not torch.equal(later["model/parameters/head.0.weight"], afterwards["model/parameters/head.0.weight"])
    statistics = [several[f"{place}model/buffers/head.1.running_mean"] for place in ("", "heads/1/", "heads/2/")]
    assert not torch.equal(statistics[1], statistics[2])
    assert one.method.models(several)["split-cnn-lite"].keys() == part(single, "model/").keys()


def test_one_head_has_the_identity_and_state_that_it_had() -> None:
    one = site(6, task=TASK)
    assert "server_heads" not in one.method.settings.hashed()
    assert not [name for name in one.method.start(Streams(0)) if name.startswith("heads/")]


@pytest.mark.parametrize("extractors", ["average", "private"])
def test_engines_and_resuming_agree(
    extractors: str, tiny_plan: Any, engines: dict[str, Engine], stop_after: Any, tmp_path: Path
) -> None:
    method = {"name": "fedgkt", "server_heads": 2, "head_weights": "labels", "extractors": extractors}
    plan = tiny_plan(data="digits[:30%]", method=method, model="split-cnn-lite", training={}, rounds=2)
    checkpoints = []
    for name in ("in-process", "wire", "processes-2"):
        run = execute(plan, engines[name], tmp_path / name)
        checkpoints.append((run.path / "checkpoint.safetensors").read_bytes())
    with pytest.raises(KeyboardInterrupt):
        execute(plan, engines["in-process"], tmp_path / "interrupted", [stop_after(1)])
    resumed = execute(plan, engines["in-process"], tmp_path / "interrupted")
    checkpoints.append((resumed.path / "checkpoint.safetensors").read_bytes())
    assert len(set(checkpoints)) == 1


@pytest.mark.parametrize("setting", [{"server_heads": 0}, {"head_weights": "confidence"}])
def test_settings_that_cannot_work(tiny_plan: Any, setting: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"method.{next(iter(setting))}"):
        tiny_plan(method={"name": "fedgkt", **setting})
