"""MobileNetV3-small for large images, in the layout of torchvision, whose weight files it reads.

"Searching for MobileNetV3", https://arxiv.org/abs/1905.02244, table 2. Each block expands its channels by a 1x1
convolution, convolves them one by one, may reweigh them (squeeze and excitation), and projects them back. With 3
channels and 1,000 classes it has 2,542,856 parameters.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from fedstill.models.builders import image_shape, models
from fedstill.models.classifier import ChannelsLast, Classifier
from fedstill.models.published import published


class Inverted(NamedTuple):
    """A row of the paper's table: kernel, expanded and resulting channels, squeeze, hard swish, stride."""

    kernel: int
    expanded: int
    after: int
    squeezes: bool
    swish: bool
    stride: int


_BLOCKS = (
    Inverted(3, 16, 16, True, False, 2),
    Inverted(3, 72, 24, False, False, 2),
    Inverted(3, 88, 24, False, False, 1),
    Inverted(5, 96, 40, True, True, 2),
    Inverted(5, 240, 40, True, True, 1),
    Inverted(5, 240, 40, True, True, 1),
    Inverted(5, 120, 48, True, True, 1),
    Inverted(5, 144, 48, True, True, 1),
    Inverted(5, 288, 96, True, True, 2),
    Inverted(5, 576, 96, True, True, 1),
    Inverted(5, 576, 96, True, True, 1),
)
_STEM, _LAST, _HIDDEN = 16, 576, 1024


def divisible(channels: float, by: int = 8) -> int:
    """The nearest multiple, at least `by`, and not below nine tenths of the channels.

    >>> [divisible(channels) for channels in (4, 24, 60, 144)]
    [8, 24, 64, 144]
    """
    near = max(by, int(channels + by / 2) // by * by)
    return near + by if near < 0.9 * channels else near


def _layer(before: int, after: int, kernel: int, stride: int, groups: int, activation: nn.Module | None) -> nn.Module:
    """Convolution, BatchNorm (epsilon 0.001, momentum 0.01) and activation."""
    layer = nn.Conv2d(before, after, kernel, stride, kernel // 2, groups=groups, bias=False)
    parts: list[nn.Module] = [layer, nn.BatchNorm2d(after, eps=0.001, momentum=0.01)]
    return nn.Sequential(*parts, *([] if activation is None else [activation]))


class SqueezeExcitation(nn.Module):
    """Channels weighed by what their means say, through two 1x1 convolutions."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.fc2(F.relu(self.fc1(F.adaptive_avg_pool2d(x, 1))))
        return F.hardsigmoid(weights) * x


class InvertedResidual(nn.Module):
    """One block; its input is added where shapes allow it."""

    def __init__(self, before: int, row: Inverted) -> None:
        super().__init__()
        self.adds = row.stride == 1 and before == row.after
        layers: list[nn.Module] = []
        if row.expanded != before:
            layers.append(_layer(before, row.expanded, 1, 1, 1, _activation(row)))
        layers.append(_layer(row.expanded, row.expanded, row.kernel, row.stride, row.expanded, _activation(row)))
        if row.squeezes:
            layers.append(SqueezeExcitation(row.expanded, divisible(row.expanded / 4)))
        layers.append(_layer(row.expanded, row.after, 1, 1, 1, None))
        self.block = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.block(x)
        return out + x if self.adds else out


def _activation(row: Inverted) -> nn.Module:
    return nn.Hardswish() if row.swish else nn.ReLU()


def _initialise(model: nn.Module) -> None:
    for part in model.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out")
        if isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, 0, 0.01)
        if isinstance(part, nn.Conv2d | nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)


@published(head="classifier.3")
@models.register("mobilenetv3-small")
def mobilenetv3_small(shape: tuple[int, ...], classes: int, *, dropout: float = 0.2) -> Classifier:
    """MobileNetV3-small for large images, in torchvision's layout (2.5 M with 1,000 classes)."""
    channels, _, _ = image_shape(shape)
    features: list[nn.Module] = [_layer(channels, _STEM, 3, 2, 1, nn.Hardswish())]
    before = _STEM
    for row in _BLOCKS:
        features.append(InvertedResidual(before, row))
        before = row.after
    features.append(_layer(before, _LAST, 1, 1, 1, nn.Hardswish()))
    extractor = nn.Sequential(
        OrderedDict(
            memory=ChannelsLast(),
            features=nn.Sequential(*features),
            pool=nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
            classifier=nn.Sequential(nn.Linear(_LAST, _HIDDEN), nn.Hardswish(), nn.Dropout(dropout)),
        )
    )
    model = Classifier(extractor, nn.Linear(_HIDDEN, classes), _HIDDEN)
    _initialise(model)
    return model
