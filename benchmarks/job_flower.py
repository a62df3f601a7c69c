"""The same FedAvg job with Flower and Ray: `python -m benchmarks.job_flower DATA CLIENTS COHORT ROUNDS`.

Written as Flower's own examples are: a ClientApp, a ServerApp with its FedAvg strategy, a CPU for each client.
"""

from __future__ import annotations

import json
import sys
from functools import cache

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import Tensor, nn

from benchmarks.setting import BATCH, MODEL, MOMENTUM, RATE
from fedstill.models import build_model


def make_model() -> nn.Module:
    return build_model(MODEL, (1, 28, 28), 10)


@cache
def arrays(path: str, part: str) -> tuple[Tensor, Tensor]:
    """Read once by each of Ray's processes, which stay for the whole simulation."""
    import numpy as np

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


def main(path: str, clients: int, cohort: int, rounds: int) -> None:
    accuracies: list[float] = []

    @torch.no_grad()
    def evaluate(number: int, arrays_: ArrayRecord) -> MetricRecord:
        images, labels = arrays(path, "test")
        model = make_model()
        model.load_state_dict(arrays_.to_torch_state_dict())
        model.eval()
        right = sum(
            int((model(x)[0].argmax(dim=1) == y).sum())
            for x, y in zip(images.split(256), labels.split(256), strict=True)
        )
        accuracies.append(right / len(labels))
        return MetricRecord({"accuracy": accuracies[-1]})

    server_app = ServerApp()

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        torch.set_num_threads(1)
        strategy = FedAvg(
            fraction_train=cohort / clients,
            fraction_evaluate=0.0,
            min_train_nodes=cohort,
            min_available_nodes=clients,
        )
        strategy.start(
            grid,
            initial_arrays=ArrayRecord(make_model().state_dict()),
            num_rounds=rounds,
            train_config=ConfigRecord({"images": path, "clients": clients}),
            evaluate_fn=evaluate,
        )

    run_simulation(
        server_app=server_app,
        client_app=client_app,
        num_supernodes=clients,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    if len(accuracies) != rounds + 1:
        raise SystemExit(f"Flower evaluated {len(accuracies)} times, not {rounds + 1}")
    print(json.dumps({"accuracy": accuracies[-1]}))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
