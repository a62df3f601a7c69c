from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedstill.core.client import answer
from fedstill.core.dataset import ArrayDataset
from fedstill.core.protocols import Client, Profile, RoundContext
from fedstill.core.streams import Streams
from fedstill.core.task import Tensors
from fedstill.core.training import Training
from fedstill.methods.centralised import Centralised
from fedstill.models import build_model
from fedstill.runtime.assemble import make_experiment
from fedstill.tasks.classification import Classification

SEED, ROUNDS, SAMPLES, BATCH = 3, 3, 50, 7


def pictures() -> ArrayDataset:
    generator = torch.Generator().manual_seed(0)
    return ArrayDataset(
        inputs=torch.randint(256, (SAMPLES, 1, 8, 8), generator=generator, dtype=torch.uint8),
        labels=torch.randint(4, (SAMPLES,), generator=generator),
    )


def federated(architecture: str, training: Training) -> Tensors:
    """The method's own way: a start, then one exchange a round with the one client."""
    task = Classification(tuple("abcd"), (1, 8, 8), (architecture,))
    method = Centralised(Centralised.Options(), task, training)
    data, who = pictures(), Profile(0, SAMPLES, architecture)
    server, state = method.start(Streams(SEED)), {}

    def make(profile: Profile, kept: Tensors, context: RoundContext) -> Client:
        return Client(profile, task, data, context.streams.at("client", profile.id), kept)

    for round in range(ROUNDS):
        context = RoundContext(round, ROUNDS, 1, "train", Streams(SEED).at("round", round, "train"))
        reply = answer(make, method, who, method.request(server, who, context), state, context)
        server, state = method.aggregate(server, [reply], context), reply.state
    return method.models(server)[architecture]


def by_hand(architecture: str, rates: list[float], kind: str = "sgd") -> nn.Module:
    """A plain PyTorch loop: one model, one optimiser, three epochs."""
    with Streams(SEED).at("model", architecture).ambient("initialise"):
        model = build_model(architecture, (1, 8, 8), 4)
    columns = pictures().columns
    pixels, labels = columns["inputs"].float() / 127.5 - 1, columns["labels"]
    if kind == "sgd":
        optimiser = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9, fused=True)
    else:
        optimiser = torch.optim.Adam(model.parameters(), lr=1.0, fused=True)
    for epoch in range(ROUNDS):
        streams = Streams(SEED).at("round", epoch, "train", "client", 0)
        order = torch.from_numpy(streams.draw("order", 0).permutation(SAMPLES))
        optimiser.param_groups[0]["lr"] = rates[epoch]
        model.train()
        with streams.ambient("dropout", 0):
            for first in range(0, SAMPLES, BATCH):
                rows = order[first : first + BATCH]
                if len(rows) == 1:  # 50 = 7 x 7 + 1
                    continue
                optimiser.zero_grad()
                F.nll_loss(model(pixels[rows])[0], labels[rows]).backward()
                optimiser.step()
    return model


def assert_same_bits(state: Tensors, model: nn.Module) -> None:
    held = {name.split("/", 1)[1]: tensor for name, tensor in state.items()}
    expected = model.state_dict()
    assert held.keys() == expected.keys()
    assert [name for name in expected if not torch.equal(held[name], expected[name])] == []


def training(**settings: object) -> Training:
    return Training(**{"epochs": 1, "keep_optimiser": True, "batch": BATCH, "rate": 0.05, **settings})


@pytest.mark.parametrize("architecture", ["mlp", "cnn", "cnn-bn"])
def test_three_epochs_are_a_plain_loop_to_the_bit(architecture: str) -> None:
    assert_same_bits(federated(architecture, training()), by_hand(architecture, [0.05] * 3))


def test_adam_too() -> None:
    assert_same_bits(federated("cnn-bn", training(optimiser="adam")), by_hand("cnn-bn", [0.05] * 3, "adam"))


def test_the_schedule_runs_over_all_epochs() -> None:
    """Halved after every epoch: 0.05, 0.025, 0.0125."""
    stepped = training(schedule="step", step_every=1, step_factor=0.5)
    assert_same_bits(federated("mlp", stepped), by_hand("mlp", [0.05, 0.025, 0.0125]))


def test_the_moments_matter() -> None:
    forgetful = federated("mlp", training(keep_optimiser=False))
    expected = by_hand("mlp", [0.05] * 3).state_dict()
    assert not torch.equal(forgetful["parameters/head.weight"], expected["head.weight"])


def test_an_experiment_gets_one_epoch_a_round_and_keeps_moments() -> None:
    made = make_experiment({"method": "centralised"})
    assert (made.training.epochs, made.training.keep_optimiser, made.clients) == (1, True, 1)
    set_otherwise = make_experiment({"method": "centralised", "training": {"keep_optimiser": False}})
    assert (set_otherwise.training.epochs, set_otherwise.training.keep_optimiser) == (1, False)
