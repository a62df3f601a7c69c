"""Residual networks for small images.

"Deep Residual Learning for Image Recognition", https://arxiv.org/abs/1512.03385. All start with one 3x3 convolution of
stride 1 and no pooling, like the paper's CIFAR networks: the 7x7 stem made for 224x224 pixels would reduce 32x32 to
8x8. Convolutions have no bias (BatchNorm follows) and are initialised by Kaiming's normal distribution over the
fan-out, which preserves the variance of gradients through tens of layers; the linear head and BatchNorm use torch's
initialisation.

Split between two machines (`Classifier.parts`), they are cut after the first stage, as in FedGKT: the stem and stage 1
are 5 of the 75 thousand parameters of ResNet-8, and their output has as many pixels as the image and at least as many
channels as the stem (16 x 32 x 32 numbers for a 3 x 32 x 32 image).

Sizes with 3 input channels and 10 classes; a convolution k x k from a to b channels holds k*k*a*b weights, a
BatchNorm of b channels 2b.

ResNet-8 and ResNet-20, widths 16-32-64, n = 1 and 3 blocks a stage, shortcuts without parameters:

    stem     27*16 + 32                       =     464
    stage 1  n * 2(9*16*16 + 32)              =   4,672 n
    stage 2  9*16*32 + 64 + 9*32*32 + 64      =  13,952   and  18,560 for each of the n - 1 further blocks
    stage 3  9*32*64 + 128 + 9*64*64 + 128    =  55,552   and  73,984 for each of the n - 1 further blocks
    head     64*10 + 10                       =     650
    total    75,290 (ResNet-8), 269,722 (ResNet-20: the paper's "0.27M")

ResNet-18, widths 64-128-256-512, two basic blocks a stage, 1x1 projections where the width changes:

    stem     27*64 + 128                                                      =      1,856
    stage 1  2 * 2(9*64*64 + 128)                                             =    147,968
    stage w  9*(w/2)*w + 3 * 9*w*w + (w/2)*w + 5*2w = 32 w^2 + 10 w,  w = 128 =    525,568
                                                                      w = 256 =  2,099,712
                                                                      w = 512 =  8,393,728
    head     512*10 + 10                                                      =      5,130
    total    11,173,962

ResNet-50, the same widths, 3-4-6-3 bottleneck blocks of 1x1, 3x3 and a 1x1 convolution to 4w channels:

    stem     1,856, head 2048*10 + 10 = 20,490
    a block  4w*w + 9*w*w + w*4w + 2(w + w + 4w) = 17 w^2 + 12 w when it is not the first of its stage
    first    i*w + 9*w*w + w*4w + 12w, and i*4w + 8w for the projection, with i = 64 in stage 1 and 2w later
    stages   215,808   1,219,584   7,098,368   14,964,736
    total    23,520,842
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from fedstill.models.builders import image_shape, models
from fedstill.models.classifier import ChannelsLast, Classifier

Block = Callable[[int, int, int], nn.Module]
"""(channels in, channels out, stride) -> a residual block."""


def convolution(before: int, after: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """A padded convolution without bias, since a BatchNorm precedes or follows it."""
    layer = nn.Conv2d(before, after, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer


class Padded(nn.Module):
    """Shortcut A of the paper: every other pixel, and zeros for the new channels. No parameters."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.new_channels, self.stride = after - before, stride

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.new_channels))


def projected(before: int, after: int, stride: int) -> nn.Module:
    """Shortcut B of the paper: a 1x1 convolution if the shape changes, the identity otherwise."""
    if before == after and stride == 1:
        return nn.Identity()
    return nn.Sequential(convolution(before, after, 1, stride), nn.BatchNorm2d(after))


class Residual(nn.Module):
    """relu(branch(x) + shortcut(x))."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.branch, self.shortcut = branch, shortcut

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.branch(x) + self.shortcut(x))


def two_convolutions(before: int, after: int, stride: int) -> nn.Sequential:
    """The branch of a basic block."""
    return nn.Sequential(
        convolution(before, after, 3, stride),
        nn.BatchNorm2d(after),
        nn.ReLU(),
        convolution(after, after, 3),
        nn.BatchNorm2d(after),
    )


def padded_block(before: int, after: int, stride: int) -> Residual:
    shortcut = nn.Identity() if before == after and stride == 1 else Padded(before, after, stride)
    return Residual(two_convolutions(before, after, stride), shortcut)


def basic_block(before: int, after: int, stride: int) -> Residual:
    return Residual(two_convolutions(before, after, stride), projected(before, after, stride))


def bottleneck_block(before: int, after: int, stride: int) -> Residual:
    """The stride is in the 3x3 convolution: in the 1x1 before it, three of four pixels would be discarded."""
    inner = after // 4
    branch = nn.Sequential(
        convolution(before, inner, 1),
        nn.BatchNorm2d(inner),
        nn.ReLU(),
        convolution(inner, inner, 3, stride),
        nn.BatchNorm2d(inner),
        nn.ReLU(),
        convolution(inner, after, 1),
        nn.BatchNorm2d(after),
    )
    return Residual(branch, projected(before, after, stride))


def stages(block: Block, before: int, widths: Sequence[int], depths: Sequence[int]) -> dict[str, nn.Module]:
    """Named stages of blocks; the first block of every stage but the first halves the image."""
    named: dict[str, nn.Module] = {}
    for number, (width, depth) in enumerate(zip(widths, depths, strict=True), start=1):
        blocks = [block(before, width, 1 if number == 1 else 2)]
        blocks += [block(width, width, 1) for _ in range(depth - 1)]
        named[f"stage{number}"] = nn.Sequential(*blocks)
        before = width
    return named


def resnet(
    shape: tuple[int, ...], classes: int, block: Block, stem: int, widths: Sequence[int], depths: Sequence[int]
) -> Classifier:
    channels, _, _ = image_shape(shape)
    extractor = nn.Sequential(
        OrderedDict(
            stem=nn.Sequential(ChannelsLast(), convolution(channels, stem, 3), nn.BatchNorm2d(stem), nn.ReLU()),
            **stages(block, stem, widths, depths),
            pool=nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        )
    )
    return Classifier(extractor, nn.Linear(widths[-1], classes), widths[-1], cut="stage1")


@models.register("resnet8")
def resnet8(shape: tuple[int, ...], classes: int) -> Classifier:
    """CIFAR-style ResNet with 8 layers, widths 16-32-64 and shortcuts without parameters (0.08 M)."""
    return resnet(shape, classes, padded_block, 16, (16, 32, 64), (1, 1, 1))


@models.register("resnet20")
def resnet20(shape: tuple[int, ...], classes: int) -> Classifier:
    """CIFAR-style ResNet with 20 layers, widths 16-32-64 and shortcuts without parameters (0.27 M)."""
    return resnet(shape, classes, padded_block, 16, (16, 32, 64), (3, 3, 3))


@models.register("resnet18")
def resnet18(shape: tuple[int, ...], classes: int) -> Classifier:
    """ResNet-18 with a stem for small images, widths 64-128-256-512 (11.2 M)."""
    return resnet(shape, classes, basic_block, 64, (64, 128, 256, 512), (2, 2, 2, 2))


@models.register("resnet50")
def resnet50(shape: tuple[int, ...], classes: int) -> Classifier:
    """ResNet-50 with a stem for small images, bottleneck blocks to 2,048 features (23.5 M)."""
    return resnet(shape, classes, bottleneck_block, 64, (256, 512, 1024, 2048), (3, 4, 6, 3))
