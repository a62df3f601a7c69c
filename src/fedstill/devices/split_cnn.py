"""A convolutional network for split learning: convolutions for a device, linear layers for a server."""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from fedstill.models.builders import image_shape, models
from fedstill.models.classifier import ChannelsLast, Classifier


def network(
    shape: tuple[int, ...], classes: int, width: int, hidden: int, middle: int = 0, dropout: float = 0.5
) -> Classifier:
    channels, height, breadth = image_shape(shape)
    features = 4 * width * (height // 4) * (breadth // 4)
    extractor = nn.Sequential(
        ChannelsLast(),
        nn.Conv2d(channels, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(2 * width, 4 * width, 3, padding=1),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
    )
    widths = [features, hidden, *([middle] if middle else [])]
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.BatchNorm1d(after), nn.ReLU(), nn.Dropout(dropout)]
    return Classifier(extractor, nn.Sequential(*layers, nn.Linear(widths[-1], classes)), features)


@models.register("split-cnn")
def split_cnn(
    shape: tuple[int, ...],
    classes: int,
    *,
    width: int = 32,
    hidden: int = 512,
    middle: int = 0,
    dropout: float = 0.5,
) -> Classifier:
    """Three convolutions 32-64-128 for the device, linear layers to 512 and to the classes for the server (3.3 M).

    Padded 3x3 kernels; pooling after the second and the third convolution, before ReLU, which is the same function at a
    quarter of the work. A 28x28 image becomes 128x7x7 = 6,272 features, which the head reduces to 512, with BatchNorm
    and a dropout of one half in training. On MNIST the device has 320 + 18,496 + 73,856 = 92,672 parameters and the
    server 3,211,776 + 1,024 + 5,130 = 3,217,930. `middle` adds a further linear layer of that width before the last.
    """
    return network(shape, classes, width, hidden, middle, dropout)


@models.register("split-cnn-lite")
def split_cnn_lite(shape: tuple[int, ...], classes: int) -> Classifier:
    """The same with convolutions 8-16-32 and a linear layer of 128, for a sixteenth of the work (208 k)."""
    made = split_cnn(shape, classes, width=8, hidden=128)
    assert isinstance(made, Classifier)
    return made
