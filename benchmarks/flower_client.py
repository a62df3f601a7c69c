"""The Flower client of `job_flower`, in a separate module because Ray's processes import it by name."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from benchmarks.setting import BATCH, MODEL, MOMENTUM, RATE
from fedstill.models import build_model


def make_model() -> nn.Module:
    return build_model(MODEL, (1, 28, 28), 10)


@cache
def arrays(path: str, part: str) -> tuple[Tensor, Tensor]:
    """Read once by each of Ray's processes, which live for the whole simulation."""
    with np.load(path) as archive:
        images, labels = archive[f"x_{part}"], archive[f"y_{part}"]
    pixels = torch.from_numpy(images).float().div_(127.5).sub_(1).unsqueeze(1)
    return pixels, torch.from_numpy(labels).long()


client_app = ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    config = message.content["config"]
    images, labels = arrays(str(config["images"]), "train")
    clients, mine = int(config["clients"]), int(context.node_config["partition-id"])
    shard = torch.arange(mine, len(labels), clients)
    model = make_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    model.train()
    optimiser = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    for rows in shard[torch.randperm(len(shard))].split(BATCH):
        optimiser.zero_grad()
        loss = F.nll_loss(model(images[rows])[0], labels[rows])
        loss.backward()
        optimiser.step()
    metrics = MetricRecord({"num-examples": len(shard)})
    return Message(
        content=RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message
    )
