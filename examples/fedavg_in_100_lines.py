"""Federated averaging from Fedstill's own pieces, with nothing hidden.

    python examples/fedavg_in_100_lines.py

*Communication-Efficient Learning of Deep Networks from Decentralized Data*, McMahan et al., 2017,
https://arxiv.org/abs/1602.05629. It gives the same weights, bit for bit, as

    fedstill run fedavg --data digits --model cnn --partition dirichlet:alpha=0.5 --clients 5 --rounds 3 --seed 7

What `fedstill run` adds around these lines: messages that are measured and validated, engines for other processes,
checkpoints, a journal. Read next: `src/fedstill/methods/fedavg.py`, then `src/fedstill/runtime/round.py`.
"""

from __future__ import annotations

from torch import Tensor

from fedstill.core.dataset import Dataset, Subset
from fedstill.core.fit import Learner, Schedule, fit, task_loss
from fedstill.core.hardware import one_thread
from fedstill.core.kinds import average, state_of
from fedstill.core.message import digest
from fedstill.core.protocols import Meter
from fedstill.core.streams import Streams
from fedstill.core.training import Training
from fedstill.data.catalogue import load
from fedstill.data.partitions import partition
from fedstill.tasks.classification import Classification

CLIENTS, ROUNDS, SEED = 5, 3, 7
MODEL = "cnn"
TRAINING = Training()  # optimiser, learning rate, batch size and local epochs: the defaults

State = dict[str, Tensor]  # a model's tensors by name: parameters/..., buffers/..., counters/...


def local_update(task: Classification, shared: State, data: Dataset, streams: Streams) -> State:
    """What a client does: start from the shared model and train it on its own samples."""
    model = task.build(MODEL, shared)
    learner = Learner(model, task_loss, TRAINING.optimiser_of(model), streams)
    # Dropout, if the model has any, draws from the client's own stream, whichever client ran before it.
    with streams.ambient("ambient"):
        fit([learner], task, data, Schedule(range(TRAINING.epochs), TRAINING.batch), streams, Meter())
    return state_of(model)


def federated_averaging() -> tuple[State, list[float]]:
    """The shared model after the last round, and its test accuracy after each."""
    streams = Streams(SEED)  # every random draw of the experiment has a name below this
    bundle = load("digits")
    task = Classification(bundle.classes, bundle.shape, (MODEL,))

    # Who holds which training samples.
    labels = bundle.train.labels()
    assert labels is not None
    shards = partition("dirichlet", labels, CLIENTS, len(bundle.classes), streams, {"alpha": 0.5})
    clients = [Subset(bundle.train, shards.rows(client)) for client in range(CLIENTS)]

    shared = state_of(task.build(MODEL, streams=streams.at("model", MODEL)))
    accuracies = []
    for round in range(ROUNDS):
        updates, weights = [], []
        for client, data in enumerate(clients):  # any order gives the same bits: each client has streams of its own
            own = streams.at("round", round, "train", "client", client)
            updates.append(local_update(task, shared, data, own))
            weights.append(float(len(data)))
        # Parameters and BatchNorm statistics by weighted mean, counters by maximum.
        shared = average(updates, weights)
        scores = task.score([task.build(MODEL, shared)], bundle.test)
        accuracies.append(task.summarise(scores)["accuracy"])
    return shared, accuracies


if __name__ == "__main__":
    with one_thread():  # sums in another number of threads could differ in their last bits
        model, accuracies = federated_averaging()
    for number, accuracy in enumerate(accuracies, 1):
        print(f"round {number}: {accuracy:.2%}")
    print(f"sha256 of the model: {digest(model)}")
