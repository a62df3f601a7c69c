"""The shape all classifiers share: an extractor, a head, and both of their outputs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Classifier(nn.Module):
    """`forward` returns log-probabilities and the features the head read.

    Distillation needs the features, personalisation and transfer need the two parts apart, so the split is the
    same everywhere: `extractor` maps a batch to `feature_size` numbers a sample, `head` maps those to logits.
    """

    def __init__(self, extractor: nn.Module, head: nn.Module, feature_size: int) -> None:
        super().__init__()
        self.extractor = extractor
        self.head = head
        self.feature_size = feature_size

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        features: Tensor = self.extractor(inputs)
        return F.log_softmax(self.head(features), dim=1), features


class ChannelsLast(nn.Module):
    """Hands images on with the channels of a pixel side by side in memory.

    Convolution and pooling on a CPU are up to twice as fast in that order, and what follows keeps it. Only
    activations are laid out so: parameters and gradients stay contiguous, as messages and checkpoints need them.
    A clone, because asking for this order leaves images of a single channel as they are.
    """

    def forward(self, x: Tensor) -> Tensor:
        return x.clone(memory_format=torch.channels_last)
