"""Clipping of logits in the losses of clients and server, against the rule worked out with plain torch."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fedstill
from fedstill.core.errors import InputError
from fedstill.core.streams import Streams
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.plan import make_plan
from fedstill.shared_image.logit_clipping import clip_norm, clipped_loss

TINY: dict[str, Any] = {
    "data": "digits[:30%]",
    "model": "cnn",
    "clients": 3,
    "rounds": 2,
    "training": {"epochs": 1, "batch": 32},
}
SHORT: dict[str, Any] = {"name": "feddf", "proxy": "digits", "samples": 60, "steps": 4, "batch": 32}


def test_three_lengths() -> None:
    """Of norm 5 to 2.5; of norm 1, above 0.4, also to 2.5, which lengthens it; of norm 0.3 unchanged."""
    rows = torch.tensor([[3.0, 0.0, -4.0], [0.6, 0.0, 0.8], [0.3, 0.0, 0.0]])
    rows = rows - rows.mean(dim=1, keepdim=True)
    rows = rows / rows.norm(dim=1, keepdim=True) * torch.tensor([[5.0], [1.0], [0.3]])
    found = clip_norm((rows + 7).log_softmax(dim=1), 2.5)  # a constant on all logits changes nothing
    expected = torch.stack([rows[0] / 2, rows[1] * 2.5, rows[2]]).log_softmax(dim=1)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_equal_logits_have_a_gradient() -> None:
    same = torch.zeros(2, 3, requires_grad=True)
    clip_norm(same.log_softmax(dim=1), 2.5)[:, 0].sum().backward()
    assert same.grad is not None
    assert bool(same.grad.isfinite().all())


def test_a_clients_loss_is_the_cross_entropy_of_clipped_logits() -> None:
    """And it is bounded: with ten classes and a norm of 2.5, no logit can be more than 2.5 above the mean."""
    plan = make_plan(make_experiment({**TINY, "method": {**SHORT, "clip_logits": 2.5}}))
    task, batch = plan.task, plan.clients.data.batch(torch.arange(16))
    output = task.forward(task.build("cnn", streams=Streams(1)), batch)
    logits = output.log_probabilities - output.log_probabilities.mean(dim=1, keepdim=True)
    scale = torch.where(logits.norm(dim=1) > 0.4, 2.5 / logits.norm(dim=1), 1.0)[:, None]
    expected = F.cross_entropy(logits * scale, batch["labels"])
    found = clipped_loss(task, 2.5)(output, batch, {})
    assert list(found) == list(task.terms)
    torch.testing.assert_close(found["cross-entropy"], expected)
    sure = F.one_hot(batch["labels"], 10).float() * 1000
    best = F.nll_loss(clip_norm(sure.log_softmax(dim=1), 2.5), batch["labels"])
    assert float(best) == pytest.approx(math.log(1 + 9 * math.exp(-2.5 * math.sqrt(10 / 9))))


def test_clipping_changes_what_clients_and_server_learn(tmp_path: Path) -> None:
    """Clients alone, with steps that move nothing; and the server alone, from clients that do not move."""
    still = {"epochs": 1, "batch": 32, "rate": 1e-30}
    for changes, settings in (({}, {"rate": 1e-30}), ({"training": still}, {})):
        runs = [
            fedstill.run({**TINY, **changes, "method": {**SHORT, **settings, **clip}}, out=tmp_path)
            for clip in ({}, {"clip_logits": 2.5})
        ]
        assert runs[0].sha256 != runs[1].sha256


def own_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels)


def test_with_a_loss_of_ones_own_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"clip_logits changes the cross-entropy, which training.loss replaces: leave"):
        fedstill.run({**TINY, "method": {**SHORT, "clip_logits": 2.5}}, loss=own_loss, out=tmp_path)
