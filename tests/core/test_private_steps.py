"""Private steps: records are sampled independently, and their gradients clipped one by one."""

from __future__ import annotations

from itertools import pairwise
from math import sqrt
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedstill.core.dataset import Subset
from fedstill.core.fit import Learner, Schedule, fit, task_loss
from fedstill.core.optimisers import Sgd
from fedstill.core.private_steps import PrivateSteps, steps_of
from fedstill.core.protocols import Meter
from fedstill.core.streams import Streams
from fedstill.models.classifier import ChannelsLast

STREAMS = Streams(4)


def mean_of(private: PrivateSteps, gradients: list[list[Tensor]], batch: int, sizes: tuple[int, ...]) -> list[Tensor]:
    parameters = [nn.Parameter(torch.zeros(size)) for size in sizes]
    private.set_gradients(parameters, iter(gradients), batch, private.normal(STREAMS))
    return [one.grad for one in parameters if one.grad is not None]


def test_gradients_are_clipped_over_all_tensors_and_divided_by_the_expected_batch() -> None:
    """(3, 0, 4) is 5 long and halved by C = 2.5; (0, 1, 0) stays; what is not finite adds nothing."""
    some = [
        [torch.tensor([3.0, 0.0]), torch.tensor([4.0])],
        [torch.tensor([0.0, 1.0]), torch.tensor([0.0])],
        [torch.tensor([float("nan"), 0.0]), torch.tensor([0.0])],
        [torch.tensor([float("inf"), 0.0]), torch.tensor([0.0])],
        [torch.zeros(2), torch.zeros(1)],
    ]
    first, second = mean_of(PrivateSteps(2.5, 0.0, False), some, 4, (2, 1))
    assert first.tolist() == [1.5 / 4, 1.0 / 4]
    assert second.tolist() == [2.0 / 4]


@pytest.mark.parametrize("system", [False, True])
def test_a_step_without_records_is_noise(system: bool) -> None:
    """z C / batch = 2 * 0.5 / 4."""
    (noise,) = mean_of(PrivateSteps(0.5, 2.0, system), [], 4, (20_000,))
    assert stats.kstest(noise.numpy() / 0.25, "norm").pvalue > 1e-3


@pytest.mark.parametrize("system", [False, True])
def test_every_record_is_taken_with_the_same_chance_in_every_step(system: bool) -> None:
    """1,000 records in batches of 100: ten steps an epoch, a tenth of the records in each, and not a fixed number."""
    private = PrivateSteps(1.0, 1.0, system)
    epochs = [list(private.sampled(1000, 100, STREAMS.at(epoch))) for epoch in range(20)]
    assert {len(steps) for steps in epochs} == {10} == {steps_of(1000, 100)}
    counts = torch.stack([torch.bincount(rows, minlength=1000) for steps in epochs for rows in steps])
    assert int(counts.max()) == 1
    assert float(counts.double().mean()) == pytest.approx(0.1, abs=4 * sqrt(0.09 / 200_000))
    sizes = counts.sum(dim=1).double()
    assert float(sizes.std()) == pytest.approx(sqrt(90), rel=0.25)
    taken = counts.sum(dim=0).double()  # binomial over records too
    assert float(taken.std()) == pytest.approx(sqrt(200 * 0.09), rel=0.15)
    both = [int((one & other).sum()) for one, other in pairwise(counts)]
    assert sum(both) / len(both) == pytest.approx(10, rel=0.15)  # steps do not know of each other
    assert [len(rows) for rows in private.sampled(5, 16, STREAMS)] == [5]  # all of them, where a batch holds more
    assert list(private.sampled(0, 16, STREAMS)) == []


@pytest.mark.parametrize("model", ["mlp", "cnn", "cnn-bn:norm=group"])
def test_a_step_equals_per_sample_gradients_by_vmap(
    model: str, tiny_plan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One step over all records, against torch's own per-sample gradients."""
    monkeypatch.setattr(ChannelsLast, "forward", lambda _, x: x)  # vmap cannot change the layout of memory
    plan = tiny_plan(model=model)
    data, task = plan.clients.data, plan.method.task
    rows = torch.arange(12)
    batch = data.batch(rows)
    learner_model = task.build(task.architectures[0], streams=STREAMS)
    learner_model.eval()
    weights = {name: one.detach().clone() for name, one in learner_model.named_parameters()}

    def loss(given: dict[str, Tensor], inputs: Tensor, label: Tensor) -> Tensor:
        found = functional_call(learner_model, given, (inputs[None],))
        logits = found[0] if isinstance(found, tuple) else found
        return nn.functional.cross_entropy(logits, label[None])

    each = vmap(grad(loss), in_dims=(None, 0, 0), randomness="error")(weights, batch["inputs"], batch["labels"])
    norms = torch.stack([one.flatten(1).norm(dim=1) for one in each.values()]).norm(dim=0)
    clip = float(norms.median())
    factors = (clip / norms).clamp(max=1)
    wanted = {name: weights[name] - 0.5 * torch.einsum("i,i...->...", factors, one) / 12 for name, one in each.items()}

    for part in learner_model.modules():  # no dropout in training mode either: both see the same model
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    private = PrivateSteps(clip, 0.0, False)
    learner = Learner(learner_model, task_loss, Sgd(learner_model.parameters(), 0.5), STREAMS, private=private)
    meter = Meter()
    (trained,) = fit([learner], task, Subset(data, rows), Schedule(range(1), 12), STREAMS, meter)
    assert (trained.steps, trained.terms, meter.forward) == (1, {}, 12)
    for name, one in learner_model.named_parameters():
        assert torch.allclose(one.detach(), wanted[name], atol=2e-6), name
    assert int((factors < 1).sum()) >= 4
