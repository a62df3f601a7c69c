"""The two sides of split distillation: a client's outputs for its samples, and the server's training on them.

Features are large (25 kB per sample at the size of MNIST), and those of a whole cohort should not be in memory at once:
they stay in their replies, which may be files, and a batch reads the rows that it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fedstill.core.dataset import AT_ONCE, Batch, Dataset, every_row
from fedstill.core.fit import Learner, Schedule, Terms, Trained, fit
from fedstill.core.protocols import Client, Meter
from fedstill.core.settings import Settings
from fedstill.core.streams import Streams
from fedstill.core.task import Output, Task, Tensors
from fedstill.core.training import Training
from fedstill.devices.server_heads import mean_teacher, teacher_weights
from fedstill.distillation.logits import soft_targets
from fedstill.methods.base import LOGITS

FEATURES, LABELS, IDS = "features", "labels", "ids"
SOFT = "soft-targets"


class ServerSettings(Settings):
    """The training settings of the server's part."""

    temperature: float = Field(2.0, gt=0, description="T: temperature at which client and server logits are compared")
    server_epochs: int = Field(5, ge=1, description="epochs of the server over the features of a round")
    server_rate: float = Field(1e-3, gt=0, description="learning rate of the server, with Adam")
    server_batch: int = Field(64, ge=2, description="samples per step of the server")
    server_heads: int = Field(
        1,
        ge=1,
        description="parts of the model that the server trains, from different initial weights: clients learn from the"
        " mean of their distributions, and the first is that of the shared model",
    )
    head_weights: Literal["uniform", "labels"] = Field(
        "uniform",
        description="weights in that mean: uniform, or labels: for each sample by the probability of its label",
    )

    added_later = frozenset({"server_heads", "head_weights"})


def samples_as_sent(client: Client, side: nn.Module, precision: torch.dtype) -> Tensors:
    """The tensors that a client sends for its samples, ordered by sample number, which hides the order of its rows."""
    count = len(client.data)
    sent: dict[str, Tensor] = {}
    side.eval()
    for number, rows in enumerate(sample_ids(client.data).argsort().split(AT_ONCE)):
        batch = client.data.batch(rows)
        with torch.inference_mode():
            output = client.task.forward(side, batch)
        said = {
            FEATURES: output.features.to(precision),
            LOGITS: output.log_probabilities,
            LABELS: batch["labels"],
            IDS: batch["sample_id"],
        }
        for name, piece in said.items():
            if name not in sent:  # allocated at once, so that nothing is stored twice
                sent[name] = torch.empty(count, *piece.shape[1:], dtype=piece.dtype)
            sent[name][number * AT_ONCE :][: len(rows)] = piece.cpu()
    client.meter.add(count)
    return sent


def sample_ids(data: Dataset) -> Tensor:
    return torch.cat([data.batch(rows)["sample_id"] for rows in every_row(data)])


def recalling(ids: Tensor, logits: Tensor) -> Callable[[Batch], Mapping[str, Tensor]]:
    """Finds the server's logits for a batch's samples by their numbers, and which of them have any.

    >>> recall = recalling(torch.tensor([7, 3]), torch.tensor([[0.7], [0.3]]))
    >>> {name: column.tolist() for name, column in recall({"sample_id": torch.tensor([3, 5])}).items()}["told"]
    [True, False]
    """
    ordered, order = ids.sort()
    said = logits[order]

    def recall(batch: Batch) -> Mapping[str, Tensor]:
        wanted = batch["sample_id"]
        places = torch.searchsorted(ordered, wanted).clamp(max=len(ordered) - 1)
        return {"said": said[places], "told": ordered[places] == wanted}

    return recall


class Received:
    """The samples of all clients as one data set, in the order of the clients; only labels and logits are gathered."""

    def __init__(self, uploads: Sequence[Mapping[str, Tensor]]) -> None:
        self.features = [upload[FEATURES] for upload in uploads]
        sizes = torch.tensor([len(one) for one in self.features])
        self.ends = sizes.cumsum(0)
        self.starts = self.ends - sizes
        self.columns = {
            "sample_id": torch.cat([upload[IDS] for upload in uploads]),
            "said": torch.cat([upload[LOGITS] for upload in uploads]),
            "labels": torch.cat([upload[LABELS] for upload in uploads]),
        }

    def __len__(self) -> int:
        return int(self.ends[-1])

    def batch(self, rows: Tensor) -> Batch:
        inputs = torch.empty(len(rows), *self.features[0].shape[1:])
        owners = torch.searchsorted(self.ends, rows, right=True)
        for owner in owners.unique().tolist():
            places = (owners == owner).nonzero().flatten()
            own = rows[places] - self.starts[owner]
            inputs[places] = self.features[owner].index_select(0, own).float()
        return {"inputs": inputs, **{name: column[rows] for name, column in self.columns.items()}}

    def labels(self) -> Tensor | None:
        return self.columns.get("labels")

    def unlabelled(self) -> Received:
        twin = Received.__new__(Received)
        twin.__dict__ = {**self.__dict__, "columns": {n: c for n, c in self.columns.items() if n != "labels"}}
        return twin


def with_soft_targets(output: Output, said: Tensor, told: Tensor | None, temperature: float) -> Terms:
    """The task's loss of a batch and T^2 KL(said || output), per sample; zero for samples without logits.

    >>> words = torch.tensor([[0.5, 0.5], [0.5, 0.5]]).log()
    >>> said = torch.tensor([[0.8, 0.2], [0.1, 0.9]]).log()
    >>> terms = with_soft_targets(Output(words, words), said, torch.tensor([True, False]), 1.0)
    >>> round(terms["soft-targets"].item(), 4)  # half of 0.8 ln 1.6 + 0.2 ln 0.4
    0.0964
    """
    said = said.to(output.log_probabilities.device)
    if told is None:
        return {**output.terms, SOFT: soft_targets(output.log_probabilities, said, temperature)}
    rows = told.nonzero().flatten().to(output.log_probabilities.device)
    if not len(rows):
        return output.terms
    share = len(rows) / len(told)
    return {**output.terms, SOFT: share * soft_targets(output.log_probabilities[rows], said[rows], temperature)}


def learn(
    heads: Sequence[nn.Module],
    task: Task,
    received: Received,
    moments: Sequence[Tensors],
    settings: ServerSettings,
    streams: Streams,
) -> list[tuple[Trained, Tensors]]:
    """The server's passes over the received samples, and the final moments of its Adam, for each of its heads.

    Moments start from those of the previous round: the server's part is one model that continues training, unlike a
    client's copy, which is new in every round. Heads see the same batches, each with its own dropout.
    """

    def loss(output: Output, batch: Batch, shared: Mapping[str, Tensor]) -> Terms:
        return with_soft_targets(output, batch["said"], None, settings.temperature)

    training = Training(optimiser="adam", rate=settings.server_rate, batch=settings.server_batch)
    learners = []
    for number, (head, held) in enumerate(zip(heads, moments, strict=True)):
        optimiser = training.make_optimiser(head.parameters())
        optimiser.load(held)
        learners.append(Learner(head, loss, optimiser, streams.at("head", number) if number else streams))
    schedule = Schedule(range(settings.server_epochs), settings.server_batch)
    results = fit(learners, task, received, schedule, streams, Meter())
    return [(trained, learner.optimiser.moments()) for trained, learner in zip(results, learners, strict=True)]


def answers(
    heads: Sequence[nn.Module], task: Task, features: Tensor, labels: Tensor, settings: ServerSettings
) -> Tensor:
    """The logits of the server's part on one client's samples; independent of which others sent some."""
    outputs = []
    for head in heads:
        head.eval()
        with torch.inference_mode():
            pieces = [
                task.forward(head, {"inputs": piece.float()}).log_probabilities.cpu()
                for piece in features.split(AT_ONCE)
            ]
        outputs.append(torch.cat(pieces).clone())
    if len(outputs) == 1:
        return outputs[0]
    teachers = torch.stack(outputs)
    return mean_teacher(teachers, teacher_weights(teachers, labels, settings.head_weights), settings.temperature)
