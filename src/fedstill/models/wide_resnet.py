"""Wide residual networks for small images.

"Wide Residual Networks", https://arxiv.org/abs/1605.07146: pre-activation blocks (BatchNorm, ReLU, convolution, twice),
widths 16k-32k-64k after a stem of 16, n = (depth - 4) / 6 blocks per stage. If the width changes the shortcut is a 1x1
convolution of the activated input, otherwise the input itself. There is no dropout. Convolutions are initialised by
Kaiming's normal distribution over the fan-out; the head and BatchNorm use torch's initialisation.

Sizes of WRN-16-k (n = 2) with 3 input channels and 10 classes, a block from i to w channels holding
2i + 9*i*w + 2w + 9*w*w, and i*w for the projection where i differs from w:

             k = 1                        k = 4
    stem     27*16            =     432   27*16            =       432
    stage 1   4,672 +  4,672  =   9,344    47,264 +   73,984  =   121,248
    stage 2  14,432 + 18,560  =  32,992   229,760 +  295,424  =   525,184
    stage 3  57,536 + 73,984  = 131,520   918,272 + 1,180,672 = 2,098,944
    end      2*64             =     128   2*256            =       512
    head     64*10 + 10       =     650   256*10 + 10      =     2,570
    total                       175,066                      2,748,890 (the paper's "2.7M")
"""

from __future__ import annotations

from collections import OrderedDict

import torch.nn.functional as F
from torch import Tensor, nn

from fedstill.models.builders import image_shape, models
from fedstill.models.classifier import ChannelsLast, Classifier
from fedstill.models.resnet import convolution, stages


class PreActivation(nn.Module):
    """A block with BatchNorm and ReLU before each convolution, so that nothing follows the addition."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.normal1 = nn.BatchNorm2d(before)
        self.convolution1 = convolution(before, after, 3, stride)
        self.normal2 = nn.BatchNorm2d(after)
        self.convolution2 = convolution(after, after, 3)
        same = before == after and stride == 1
        self.projection = None if same else convolution(before, after, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        activated = F.relu(self.normal1(x))
        shortcut = x if self.projection is None else self.projection(activated)
        branch = self.convolution2(F.relu(self.normal2(self.convolution1(activated))))
        return shortcut + branch  # type: ignore[no-any-return]


def wide_resnet16(shape: tuple[int, ...], classes: int, widen: int) -> Classifier:
    channels, _, _ = image_shape(shape)
    widths = (16 * widen, 32 * widen, 64 * widen)
    extractor = nn.Sequential(
        OrderedDict(
            stem=nn.Sequential(ChannelsLast(), convolution(channels, 16, 3)),
            **stages(PreActivation, 16, widths, (2, 2, 2)),
            end=nn.Sequential(nn.BatchNorm2d(widths[-1]), nn.ReLU()),
            pool=nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        )
    )
    return Classifier(extractor, nn.Linear(widths[-1], classes), widths[-1])


@models.register("wrn16-1")
def wrn16_1(shape: tuple[int, ...], classes: int) -> Classifier:
    """Wide ResNet with 16 layers at the plain widths 16-32-64 (0.18 M)."""
    return wide_resnet16(shape, classes, 1)


@models.register("wrn16-4")
def wrn16_4(shape: tuple[int, ...], classes: int) -> Classifier:
    """Wide ResNet with 16 layers, four times as wide: 64-128-256 (2.7 M)."""
    return wide_resnet16(shape, classes, 4)
