"""A multilayer perceptron with two hidden layers."""

from __future__ import annotations

from math import prod

from torch import nn

from fedstill.models.builders import UnreadableShapeError, models
from fedstill.models.classifier import Classifier


@models.register("mlp")
def mlp(shape: tuple[int, ...], classes: int, *, width: int = 200) -> Classifier:
    """Two hidden layers of 200 units, the "2NN" of the FedAvg paper.

    "Communication-Efficient Learning of Deep Networks from Decentralized Data",
    https://arxiv.org/abs/1602.05629, which counts 199,210 parameters on MNIST: 784 x 200 + 200, 200 x 200 + 200
    and 200 x 10 + 10.

    Point clouds are refused: their rows are unordered, and an input unit per row would depend on the order.
    """
    if len(shape) not in (1, 3) or min(shape) < 1:
        raise UnreadableShapeError("vectors, or images (channels x height x width)")
    extractor = nn.Sequential(
        nn.Flatten(),
        nn.Linear(prod(shape), width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
    )
    return Classifier(extractor, nn.Linear(width, classes), width)
