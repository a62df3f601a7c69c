"""Methods that exchange logits, against loops written from their papers in plain numpy, gradients by hand included.

Of the package they use the data, the names of streams (so that batches come in the same order) and the first weights.
They work on raw logits in double precision; the package's log-probabilities differ from these by a number for each
sample, which the softmax of their mean does not see.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import fedstill
from fedstill.core.streams import Streams
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.checkpoint import candidates
from fedstill.runtime.plan import Simulation, make_plan
from fedstill.runtime.result import Run

Floats = NDArray[np.float64]
Weights = list[Floats]  # of three layers, each with its bias behind it

SEED, CLASSES, ROUNDS = 1, 10, 2
EPOCHS, BATCH, RATE, MOMENTUM = 1, 64, 0.02, 0.9  # of training on one's own data
SAMPLES, STEPS, STEP_BATCH, STEP_RATE = 60, 7, 32, 0.002  # of distillation: three epochs of two batches, and one more
# Of weights, as `apart` has it. With this seed loops agree to 5e-8 on a processor with AVX-512, with AVX2 and with
# neither; seeds 2, 3, 4 and 11 reach 2e-8 to 5e-5 there. What they tell apart differs by 1.7e-3 and more.
CLOSE, FAR = 1e-5, 1e-3

EXPERIMENT: dict[str, Any] = {
    "data": "digits",
    "model": "mlp",
    "clients": 3,
    "rounds": ROUNDS,
    "seed": SEED,
    "partition": {"name": "dirichlet", "alpha": 0.5},
    "training": {"epochs": EPOCHS, "batch": BATCH, "rate": RATE, "momentum": MOMENTUM},
}
SHORT = {
    "proxy": "digits",
    "samples": SAMPLES,
    "precision": "full",
    "steps": STEPS,
    "batch": STEP_BATCH,
    "rate": STEP_RATE,
}


def forward(weights: Weights, inputs: Floats) -> list[Floats]:
    """What each of three layers reads, the last two of rectified units; and the logits."""
    reads = [inputs]
    for number in (0, 2):
        reads.append(np.maximum(reads[-1] @ weights[number].T + weights[number + 1], 0))
    return [*reads, reads[-1] @ weights[4].T + weights[5]]


def softmax(logits: Floats) -> Floats:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def gradients(weights: Weights, inputs: Floats, targets: Floats) -> Weights:
    """Of the mean cross-entropy between targets and softmax; a KL divergence from the same targets has the same."""
    *reads, logits = forward(weights, inputs)
    error = (softmax(logits) - targets) / len(inputs)
    found: Weights = []
    for layer in (2, 1, 0):
        found = [error.T @ reads[layer], error.sum(axis=0), *found]
        error = (error @ weights[2 * layer]) * (reads[layer] > 0)  # of the inputs, nobody asks
    return found


def batches(streams: Streams, samples: int, size: int) -> Iterator[NDArray[np.int64]]:
    """Epoch after epoch, each shuffled by its own stream; batches of one sample are skipped."""
    epoch = 0
    while True:
        order = streams.draw("order", epoch).permutation(samples)
        yield from (order[at : at + size] for at in range(0, samples, size) if samples - at > 1)
        epoch += 1


def descend(weights: Weights, inputs: Floats, labels: NDArray[np.int64], streams: Streams) -> Weights:
    """Training on one's own data: momentum, from nothing in each round."""
    weights = [one.copy() for one in weights]
    speeds = [np.zeros_like(one) for one in weights]
    steps = EPOCHS * (len(inputs) // BATCH + (len(inputs) % BATCH > 1))
    for _, rows in zip(range(steps), batches(streams, len(inputs), BATCH), strict=False):
        found = gradients(weights, inputs[rows], np.eye(CLASSES)[labels[rows]])
        speeds = [MOMENTUM * speed + slope for speed, slope in zip(speeds, found, strict=True)]
        weights = [one - RATE * speed for one, speed in zip(weights, speeds, strict=True)]
    return weights


def approach(weights: Weights, inputs: Floats, targets: Floats, streams: Streams) -> Weights:
    """Distillation: Adam towards soft targets, from nothing in each round."""
    weights = [one.copy() for one in weights]
    first, second = ([np.zeros_like(one) for one in weights] for _ in range(2))
    for step, rows in zip(range(1, STEPS + 1), batches(streams, len(inputs), STEP_BATCH), strict=False):
        found = gradients(weights, inputs[rows], targets[rows])
        first = [0.9 * mean + 0.1 * slope for mean, slope in zip(first, found, strict=True)]
        second = [0.999 * mean + 0.001 * slope**2 for mean, slope in zip(second, found, strict=True)]
        weights = [
            one - STEP_RATE * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
            for one, mean, square in zip(weights, first, second, strict=True)
        ]
    return weights


@dataclass
class World:
    """The data as arrays: who has what, and what all share."""

    plan: Simulation
    inputs: Floats = field(init=False)
    labels: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        whole = self.plan.bundle.train.batch(torch.arange(len(self.plan.bundle.train)))
        self.inputs = whole["inputs"].flatten(1).double().numpy()
        self.labels = whole["labels"].numpy()
        self.shards = [self.plan.clients.shards.rows(client).numpy() for client in range(3)]
        self.sizes = np.array([len(rows) for rows in self.shards], dtype=np.float64)
        chosen = Streams(SEED).draw("proxy").permutation(len(self.inputs))[:SAMPLES]
        self.proxy = self.inputs[np.sort(chosen)]

    def trained(self, weights: Weights, client: int, round: int) -> Weights:
        rows = self.shards[client]
        streams = Streams(SEED).at("round", round, "train", "client", client)
        return descend(weights, self.inputs[rows], self.labels[rows], streams)

    def says(self, weights: Weights) -> Floats:
        return forward(weights, self.proxy)[-1]

    def first_weights(self, streams: Streams) -> Weights:
        return weights_of(self.plan.task.build("mlp", streams=streams))


def weights_of(model: torch.nn.Module) -> Weights:
    return [parameter.detach().double().numpy() for parameter in model.parameters()]


def world_of(method: dict[str, Any]) -> World:
    world = World(make_plan(make_experiment({**EXPERIMENT, "method": method})))
    assert len(set(world.sizes)) == 3, "clients of equal sizes would not show how they are weighted"
    return world


def weighted(several: list[Floats], weights: Floats) -> Floats:
    return np.average(np.stack(several), axis=0, weights=weights)


def apart(ours: Weights, theirs: Weights) -> float:
    """By how much nine of ten weights differ at the most, in the tensor where that is worst.

    Not all ten: Adam gives a step of full length to a gradient that is nothing but rounding, and rounding is the
    processor's.
    """
    return max(float(np.quantile(np.abs(one - other), 0.9)) for one, other in zip(ours, theirs, strict=True))


def run_of(method: dict[str, Any], out: Path) -> Run:
    return fedstill.run({**EXPERIMENT, "method": method}, out=out)


def fedmd(world: World, shares: Floats, digest: bool = True) -> tuple[list[Weights], Floats]:
    """Each round: digest the consensus of the round before, revisit one's own data, communicate, aggregate."""
    models = [world.first_weights(Streams(SEED).at("client", client, "model", "mlp")) for client in range(3)]
    consensus: Floats | None = None
    for round in range(ROUNDS):
        for client in range(3):
            if consensus is not None and digest:
                streams = Streams(SEED).at("round", round, "train", "client", client, "digest")
                models[client] = approach(models[client], world.proxy, softmax(consensus), streams)
            models[client] = world.trained(models[client], client, round)
        consensus = weighted([world.says(model) for model in models], shares)
    assert consensus is not None
    return models, consensus


@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_fedmd(weights: str, tmp_path: Path) -> None:
    """With the paper's weights, the same for all, and with ours, by samples.

    Here as in the package nobody is trained on labelled public data beforehand, and "digest" minimises a KL divergence.
    """
    method = {"name": "fedmd", **SHORT, "weights": weights}
    world, run = world_of(method), run_of(method, tmp_path)
    models, consensus = fedmd(world, np.ones(3) if weights == "uniform" else world.sizes)
    for client, theirs in enumerate(models):
        assert apart(weights_of(run.model(client=client)), theirs) < CLOSE
    (progress, *_), _ = candidates(run.path)
    said = progress.server["consensus"].double().numpy()
    assert apart([softmax(said)], [softmax(consensus)]) < CLOSE
    otherwise, _ = fedmd(world, world.sizes if weights == "uniform" else np.ones(3))
    alone, _ = fedmd(world, world.sizes, digest=False)
    for client, theirs in enumerate(models):
        assert min(apart(otherwise[client], theirs), apart(alone[client], theirs)) > FAR


def feddf(world: World, initialise: set[int]) -> Weights:
    """Each round: train, communicate, start from the mean or from last round's model, distil towards the consensus."""
    server = world.first_weights(Streams(SEED).at("model", "mlp"))
    for round in range(ROUNDS):
        local = [world.trained(server, client, round) for client in range(3)]
        consensus = weighted([world.says(model) for model in local], world.sizes)
        if round in initialise:
            server = [weighted(list(layer), world.sizes) for layer in zip(*local, strict=True)]
        streams = Streams(SEED).at("round", round, "train", "distil", "mlp")
        server = approach(server, world.proxy, softmax(consensus), streams)
    return server


@pytest.mark.parametrize("every", [1, 2])
def test_feddf(every: int, tmp_path: Path) -> None:
    """Initialised in both rounds, and in the first alone."""
    method = {"name": "feddf", **SHORT, "initialise": 1 / every}
    world, run = world_of(method), run_of(method, tmp_path)
    both, first = feddf(world, {0, 1}), feddf(world, {0})
    theirs, others = (both, first) if every == 1 else (first, both)
    assert apart(weights_of(run.model()), theirs) < CLOSE
    assert apart(others, theirs) > FAR
