"""Residual networks for large images, in the layout of torchvision, whose weight files they read.

"Deep Residual Learning for Image Recognition", https://arxiv.org/abs/1512.03385: a 7x7 convolution and a pooling reduce
the image to a quarter of its side before the first stage. The stride of a bottleneck is in its 3x3 convolution.
Convolutions are initialised by Kaiming's normal distribution over the fan-out.

With 3 channels and 1,000 classes ResNet-18 has 11,689,512 parameters and ResNet-50 25,557,032.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor, nn

from fedstill.models.builders import image_shape, models
from fedstill.models.classifier import ChannelsLast, Classifier
from fedstill.models.published import published
from fedstill.models.resnet import convolution


class BasicBlock(nn.Module):
    """Two 3x3 convolutions."""

    expansion = 1

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = convolution(before, width, 3, stride), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = convolution(width, width, 3), nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.downsample = _shortcut(before, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out)) + (x if self.downsample is None else self.downsample(x))
        return self.relu(out)  # type: ignore[no-any-return]


class Bottleneck(nn.Module):
    """A 1x1, a 3x3 and a 1x1 convolution to four times the width."""

    expansion = 4

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = self.expansion * width
        self.conv1, self.bn1 = convolution(before, width, 1), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = convolution(width, width, 3, stride), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = convolution(width, after, 1), nn.BatchNorm2d(after)
        self.relu = nn.ReLU()
        self.downsample = _shortcut(before, after, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out)) + (x if self.downsample is None else self.downsample(x))
        return self.relu(out)  # type: ignore[no-any-return]


def _shortcut(before: int, after: int, stride: int) -> nn.Sequential | None:
    if before == after and stride == 1:
        return None
    return nn.Sequential(convolution(before, after, 1, stride), nn.BatchNorm2d(after))


def _resnet(
    shape: tuple[int, ...], classes: int, block: type[BasicBlock] | type[Bottleneck], depths: Sequence[int]
) -> Classifier:
    channels, _, _ = image_shape(shape)
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        memory=ChannelsLast(),
        conv1=convolution(channels, 64, 7, 2),
        bn1=nn.BatchNorm2d(64),
        relu=nn.ReLU(),
        maxpool=nn.MaxPool2d(3, stride=2, padding=1),
    )
    before = 64
    for number, depth in enumerate(depths):
        width = 64 * 2**number
        blocks = [block(before, width, 1 if number == 0 else 2)]
        before = block.expansion * width
        blocks += [block(before, width, 1) for _ in range(depth - 1)]
        layers[f"layer{number + 1}"] = nn.Sequential(*blocks)
    layers["pool"] = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return Classifier(nn.Sequential(layers), nn.Linear(before, classes), before, cut="layer1")


@published(head="fc")
@models.register("resnet18-imagenet")
def resnet18_imagenet(shape: tuple[int, ...], classes: int) -> Classifier:
    """ResNet-18 for large images, in torchvision's layout (11.7 M with 1,000 classes)."""
    return _resnet(shape, classes, BasicBlock, (2, 2, 2, 2))


@published(head="fc")
@models.register("resnet50-imagenet")
def resnet50_imagenet(shape: tuple[int, ...], classes: int) -> Classifier:
    """ResNet-50 for large images, in torchvision's layout (25.6 M with 1,000 classes)."""
    return _resnet(shape, classes, Bottleneck, (3, 4, 6, 3))
