"""Local updates of the user's own: batches, generators and what they report."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedstill
from fedstill.core.dataset import ArrayDataset
from fedstill.core.errors import InputError
from fedstill.core.kinds import state_of
from fedstill.core.local_updates import Loader, UpdateContext, takes_context, update_locally
from fedstill.core.own_training import local_updates
from fedstill.core.protocols import Client, Profile, RoundContext
from fedstill.core.streams import Streams
from fedstill.core.training import Training
from fedstill.tasks.classification import Classification

_NAME = "of-this-test"
SHORT: dict[str, Any] = {"data": "digits[:30%]", "model": "mlp", "clients": 2, "training": {"epochs": 2, "batch": 64}}


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    local_updates.forget(_NAME)


def client(samples: int = 10) -> Client:
    task = Classification(("a", "b", "c"), (1, 2, 2), ("mlp",))
    made = torch.Generator().manual_seed(1)
    data = ArrayDataset(inputs=torch.rand(samples, 1, 2, 2, generator=made), labels=torch.arange(samples) % 3)
    return Client(Profile(4, samples, "mlp"), task, data, Streams(5).at("client", 4))


def updated(update: Any, one: Client, model: nn.Module | None = None, **settings: Any) -> Any:
    local_updates.register(_NAME)(update)
    training = Training(local_update=_NAME, batch=4, **settings)
    context = RoundContext(1, 6, 8, "train", Streams(5))
    return update_locally(one, model or one.task.build("mlp"), training, context, one.data, one.streams)


def test_the_loader_gives_each_sample_once_an_epoch_in_another_order_each_time() -> None:
    one = client(9)  # the last batch, of one sample, is skipped
    loader = Loader(one, one.data, 4, one.streams)
    epochs = [[(tuple(inputs.shape), inputs.flatten(1).sum(1)) for inputs, _ in loader] for _ in range(2)]
    assert [shape for shape, _ in epochs[0]] == [(4, 1, 2, 2)] * 2
    assert len(loader) == 2
    assert loader.steps == 4
    first, second = (torch.cat([sums for _, sums in epoch]) for epoch in epochs)
    assert not torch.equal(first, second)
    assert len(first.unique()) == 8
    again = Loader(client(9), one.data, 4, one.streams)
    assert torch.equal(torch.cat([inputs.flatten(1).sum(1) for inputs, _ in again]), first)
    assert (one.meter.forward, one.meter.backward) == (16, 16)


def test_it_is_told_where_it_is_and_reports_its_loss_and_steps() -> None:
    seen: list[UpdateContext] = []

    def update(model: nn.Module, loader: Any, context: UpdateContext) -> float:
        seen.append(context)
        assert model.training
        return float(sum(1 for _ in loader for _ in range(2)))

    done = updated(update, client(), schedule="step", step_every=1, step_factor=0.5, rate=0.4, epochs=3)
    assert (done.steps, done.terms) == (3, {"loss": 6.0})
    assert seen == [UpdateContext(1, 6, 4, 0.2, 3, 4, torch.device("cpu"))]
    assert updated(lambda model, loader: None, client()).terms == {"loss": 0.0}
    assert updated(lambda model, loader: {"loss": 2}, client()).terms == {"loss": 2.0}
    assert updated(lambda model, loader: 1 / 0, client(1)).steps == 0  # nothing to train on: it is not called
    with pytest.raises(TypeError, match=r"a number or {'loss': number}, not 'accuracy'"):
        updated(lambda model, loader: {"accuracy": 1.0}, client())


def test_generators_are_seeded_by_the_clients_streams_and_put_back() -> None:
    def drawn(one: Client) -> float:
        return float(
            updated(lambda model, loader: random.random() + np.random.rand() + torch.rand(()).item(), one).terms["loss"]
        )

    outside = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    first = drawn(client())
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == outside
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    assert drawn(client()) == first
    other = client()
    other.streams = Streams(6).at("client", 4)
    assert drawn(other) != first


def test_only_functions_of_two_or_three_are_taken() -> None:
    assert takes_context(lambda model, loader, context: None)
    assert not takes_context(lambda model, loader: None)
    assert takes_context(lambda *given: None)
    with pytest.raises(InputError, match=r"must be a function of \(model, loader\) or of \(model, loader, context\)"):
        takes_context(lambda model: None)


def step_by_hand(model: nn.Module, loader: Any, context: UpdateContext) -> float:
    optimiser = torch.optim.SGD(model.parameters(), lr=context.rate, momentum=0.9, fused=True)
    total = 0.0
    for _ in range(context.epochs):
        for inputs, labels in loader:
            optimiser.zero_grad()
            loss = F.nll_loss(model(inputs)[0], labels)
            loss.backward()
            optimiser.step()
            total += loss.item()
    return total / (context.epochs * len(loader))


def noisy(model: nn.Module, loader: Any) -> None:
    """Draws from every global generator."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    for inputs, labels in loader:
        optimiser.zero_grad()
        scale = 1 + 0.1 * random.random() + 0.1 * np.random.rand() + 0.1 * torch.rand(())
        (scale * F.nll_loss(model(inputs)[0], labels)).backward()
        optimiser.step()


def test_an_update_by_hand_is_an_explicit_loop() -> None:
    one, other = client(12), client(12)
    model, expected = one.task.build("mlp"), other.task.build("mlp")
    done = updated(step_by_hand, one, model, epochs=2, rate=0.1)
    optimiser = torch.optim.SGD(expected.parameters(), lr=0.1, momentum=0.9, fused=True)
    losses = []
    for epoch in range(2):
        order = torch.from_numpy(other.streams.draw("order", epoch).permutation(12))
        for rows in order.split(4):
            batch = other.data.batch(rows)
            loss = F.nll_loss(expected(batch["inputs"])[0], batch["labels"])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
    ours, theirs = state_of(model), state_of(expected)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert done.terms["loss"] == pytest.approx(sum(losses) / 6)
    assert done.steps == 6


def test_a_run_equals_built_in_training_and_itself_in_workers_and_after_resuming(tmp_path: Any) -> None:
    plain = fedstill.run("fedavg", rounds=1, out=tmp_path, **SHORT)
    assert fedstill.run("fedavg", rounds=1, local_update=step_by_hand, out=tmp_path, **SHORT).sha256 == plain.sha256
    whole = fedstill.run("fedavg", rounds=3, local_update=noisy, out=tmp_path / "whole", **SHORT)
    apart = fedstill.run("fedavg", rounds=3, local_update=noisy, engine="processes", out=tmp_path / "apart", **SHORT)
    assert whole.path.name == apart.path.name
    assert whole.sha256 == apart.sha256

    class Stopping(fedstill.runtime.observers.Observer):
        def start(self, *given: Any) -> None: ...
        def note(self, text: str) -> None: ...
        def warn(self, text: str) -> None: ...
        def finish(self) -> None: ...
        def round(self, record: Any) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedstill.run("fedavg", rounds=3, local_update=noisy, out=tmp_path, observers=[Stopping()], **SHORT)
    resumed = fedstill.run("fedavg", rounds=3, local_update=noisy, out=tmp_path, **SHORT)
    assert resumed.sha256 == whole.sha256
    assert fedstill.run("fedavg", rounds=3, local_update=noisy, out=tmp_path, **SHORT).reused
