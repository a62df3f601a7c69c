"""The same FedAvg job with Flower and Ray: `python -m benchmarks.job_flower DATA CLIENTS COHORT ROUNDS`.

Written in the style of Flower's own examples: a ClientApp, a ServerApp with the FedAvg strategy, one CPU per client.
"""

from __future__ import annotations

import json
import sys

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.flower_client import arrays, client_app, make_model


def main(path: str, clients: int, cohort: int, rounds: int) -> None:
    accuracies: list[float] = []
    replies: list[int] = []

    def count(received: list[RecordDict], weighted_by: str) -> MetricRecord:
        replies.append(len(received))
        return MetricRecord({"replies": len(received)})

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
            train_metrics_aggr_fn=count,
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
    # Flower continues without failed clients; a job with failures is not a valid measurement.
    if replies != [cohort] * rounds or len(accuracies) != rounds + 1:
        raise SystemExit(f"Flower had {replies} replies and {len(accuracies)} evaluations in {rounds} rounds")
    print(json.dumps({"accuracy": accuracies[-1]}))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
