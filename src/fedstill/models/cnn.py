"""Small convolutional networks in the style of LeNet.

"Gradient-Based Learning Applied to Document Recognition", http://yann.lecun.com/exdb/publis/pdf/lecun-98.pdf
"""

from __future__ import annotations

from torch import nn

from fedstill.models.builders import image_shape, models
from fedstill.models.classifier import ChannelsLast, Classifier


@models.register("cnn")
def cnn(shape: tuple[int, ...], classes: int, *, width: int = 8, hidden: int = 128) -> Classifier:
    """Two convolutions and two linear layers: fast on one CPU thread, from 8x8 digits to 32x32 photographs.

    Differences from LeNet: 3x3 kernels with padding, so that 8x8 images allow two poolings; ReLU and max-pooling; one
    hidden layer. Pooling comes before ReLU, which is the same function at a quarter of the work. With c input channels
    and h x w pixels the layers have 9c x 8 + 8, 9 x 8 x 16 + 16, 16(h/4)(w/4) x 128 + 128 and 128 x classes + classes
    parameters: 80 + 1,168 + 100,480 + 1,290 = 103,018 on MNIST.
    """
    channels, height, breadth = image_shape(shape)
    extractor = nn.Sequential(
        ChannelsLast(),
        nn.Conv2d(channels, width, 3, padding=1),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2 * width * (height // 4) * (breadth // 4), hidden),
        nn.ReLU(),
    )
    return Classifier(extractor, nn.Linear(hidden, classes), hidden)


@models.register("cnn-bn")
def cnn_bn(
    shape: tuple[int, ...], classes: int, *, width: int = 8, hidden: int = 128, dropout: float = 0.25
) -> Classifier:
    """The `cnn` with BatchNorm and Dropout, the layers that make reproducible federated training hard.

    BatchNorm replaces the 8 + 16 biases of the convolutions by twice as many parameters, and adds as many running
    statistics and one integer counter per layer. Dropout is applied to the outputs of the convolutions and to the
    inputs of the head.
    """
    channels, height, breadth = image_shape(shape)
    extractor = nn.Sequential(
        ChannelsLast(),
        nn.Conv2d(channels, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, padding=1, bias=False),
        nn.BatchNorm2d(2 * width),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(2 * width * (height // 4) * (breadth // 4), hidden),
        nn.ReLU(),
    )
    head = nn.Sequential(nn.Dropout(dropout), nn.Linear(hidden, classes))
    return Classifier(extractor, head, hidden)
