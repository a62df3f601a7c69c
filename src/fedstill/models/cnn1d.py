"""A small convolutional network for signals (channels, time), such as electrocardiograms."""

from __future__ import annotations

from torch import nn

from fedstill.models.builders import UnreadableShapeError, models
from fedstill.models.classifier import Classifier

_SHORTEST = 16  # samples in time, of which two poolings leave one


@models.register("cnn1d")
def cnn1d(shape: tuple[int, ...], classes: int, *, width: int = 16, hidden: int = 64) -> Classifier:
    """Three convolutions in time and two linear layers, for signals of any length.

    A convolution of 7 samples, one of 5 and one of 3, with BatchNorm, ReLU and pooling by 4 behind the first two, then
    the mean over time, so that the number of parameters does not depend on the length. With c channels, w = 16 and
    h = 64: 7cw + 2w, 5w 2w + 4w, 3(2w)(4w) + 8w, 4wh + h and h classes + classes.

    "Time Series Classification from Scratch with Deep Neural Networks: A Strong Baseline",
    https://arxiv.org/abs/1611.06455, has such convolutions without pooling, 128-256-128 wide.
    """
    if len(shape) != 2 or shape[0] < 1 or shape[1] < _SHORTEST:
        raise UnreadableShapeError(f"signals (channels x time) of at least {_SHORTEST} samples")
    extractor = nn.Sequential(
        *_block(shape[0], width, 7),
        nn.MaxPool1d(4),
        *_block(width, 2 * width, 5),
        nn.MaxPool1d(4),
        *_block(2 * width, 4 * width, 3),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(4 * width, hidden),
        nn.ReLU(),
    )
    return Classifier(extractor, nn.Linear(hidden, classes), hidden)


cnn1d.kind = "signal"  # type: ignore[attr-defined]  # of the data that it reads


def _block(channels: int, width: int, size: int) -> tuple[nn.Module, ...]:
    return (
        nn.Conv1d(channels, width, size, padding=size // 2, bias=False),
        nn.BatchNorm1d(width),
        nn.ReLU(),
    )
