"""The timed experiment, and the hand-written loop with the same work and batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.plain_loop import PlainLoop
from fedstill.core.dataset import Dataset
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.experiment import Experiment
from fedstill.runtime.plan import make_plan

BATCH, RATE, MOMENTUM, MODEL, SEED = 32, 0.05, 0.9, "cnn", 1


def fedavg(images: Path, clients: int, rounds: int, **changes: Any) -> Experiment:
    """FedAvg of a small CNN, one local epoch."""
    return make_experiment(
        {
            "method": "fedavg",
            "data": f"npz:{images}",
            "model": MODEL,
            "clients": clients,
            "rounds": rounds,
            "seed": SEED,
            "training": {"epochs": 1, "batch": BATCH, "optimiser": "sgd", "rate": RATE, "momentum": MOMENTUM},
            **changes,
        }
    )


class SameWork:
    """The hand-written loop with the initial model, shards and row orders of the experiment."""

    def __init__(self, images: Path, clients: int) -> None:
        plan = make_plan(fedavg(images, clients, 1))
        self.streams, self.shards = plan.streams, plan.clients.shards
        model = plan.task.build(MODEL, streams=self.streams.at("model", MODEL))
        data = (*_floats(plan.bundle.train), *_floats(plan.bundle.test))
        self.loop = PlainLoop(model, *data, BATCH, RATE, MOMENTUM)
        self.number = 0

    def orders(self) -> list[Tensor]:
        """The rows of each client in the next round, in the order in which Fedstill's clients process them."""
        streams = self.streams.at("round", self.number, "train")
        self.number += 1
        return [
            rows[torch.from_numpy(streams.draw("client", client, "order", 0).permutation(len(rows)))]
            for client in range(len(self.shards))
            for rows in [self.shards.rows(client)]
        ]


def _floats(data: Dataset) -> tuple[Tensor, Tensor]:
    batch = data.batch(torch.arange(len(data)))
    return batch["inputs"], batch["labels"]
