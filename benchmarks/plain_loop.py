"""A hand-written loop of federated averaging, the baseline for Fedstill's rounds.

All preparation is done once: images are floats before the clock starts, one model serves all clients, and the order of
rows is given. There are no messages, checks, checkpoints or loss averages.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EVALUATION_BATCH = 256


@dataclass
class PlainLoop:
    model: nn.Module  # returns log-probabilities and features
    images: Tensor
    labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    batch: int
    rate: float
    momentum: float

    def __post_init__(self) -> None:
        self.weights = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}

    def round(self, orders: list[Tensor]) -> float:
        """Train each client on its rows in the given order; return the accuracy of the mean model."""
        total = sum(len(order) for order in orders)
        mean = {name: torch.zeros_like(tensor) for name, tensor in self.weights.items()}
        for order in orders:
            self.model.load_state_dict(self.weights)
            self._train(order)
            for name, tensor in self.model.state_dict().items():
                mean[name].add_(tensor, alpha=len(order) / total)
        self.weights = mean
        return self._accuracy()

    def _train(self, order: Tensor) -> None:
        optimiser = torch.optim.SGD(self.model.parameters(), lr=self.rate, momentum=self.momentum)
        self.model.train()
        for rows in order.split(self.batch):
            optimiser.zero_grad()
            outputs, _ = self.model(self.images[rows])
            loss = F.nll_loss(outputs, self.labels[rows])
            loss.backward()
            optimiser.step()

    @torch.no_grad()
    def _accuracy(self) -> float:
        self.model.load_state_dict(self.weights)
        self.model.eval()
        right, loss = 0, 0.0
        for start in range(0, len(self.test_labels), EVALUATION_BATCH):
            labels = self.test_labels[start : start + EVALUATION_BATCH]
            outputs, _ = self.model(self.test_images[start : start + EVALUATION_BATCH])
            right += int((outputs.argmax(dim=1) == labels).sum())
            loss += float(F.nll_loss(outputs, labels, reduction="sum"))
        return right / len(self.test_labels)
