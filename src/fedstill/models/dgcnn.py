"""A compact DGCNN: a student of another family than its PointNet++ teacher.

"Dynamic Graph CNN for Learning on Point Clouds", https://arxiv.org/abs/1801.07829. Every layer connects each point to
its nearest neighbours, in space for the first layer and in the features of the previous layer for the others, and
computes edge features. Widths are a quarter to a half of the paper's, and the head has ReLU like all heads here.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedstill.core.errors import InputError
from fedstill.models.batchnorm import begin_batch, normalise, unbiased
from fedstill.models.builders import models
from fedstill.models.classifier import Classifier
from fedstill.models.cloud_parts import cloud_shape, mlp_head, wants_points
from fedstill.models.kernels import check_clouds, group
from fedstill.models.kernels.neighbours import nearest, summarise

SLOPE = 0.2  # negative slope of LeakyReLU
_EVALUATED_AT_ONCE = 16  # clouds; the edges of more would exceed the memory of a small machine


class EdgeConv(nn.Module):
    """For every point the maximum over its neighbours j of LeakyReLU(BatchNorm(W [x_i, x_j - x_i])).

    No row per edge is needed. The map is linear, W [x_i, x_j - x_i] = (A - B) x_i + B x_j with W = [A B], so both
    products are computed once per point and only added along edges; BatchNorm and LeakyReLU are monotone in each
    channel, so they can follow the maximum (the minimum, if BatchNorm's factor is negative); and mean and variance over
    all edges follow from sums over the neighbours of each point.
    """

    def __init__(self, channels: int, width: int, neighbours: int) -> None:
        super().__init__()
        self.neighbours = neighbours
        self.linear = nn.Linear(2 * channels, width, bias=False)
        self.norm = nn.BatchNorm1d(width)

    def forward(self, features: Tensor) -> Tensor:
        _, index = nearest(features, features, self.neighbours)
        if self.norm._forward_pre_hooks or self.norm._forward_hooks or isinstance(self.norm, nn.GroupNorm):
            return self._plain(features, index)
        a, b = self.linear.weight.chunk(2, dim=1)
        own, other = F.linear(features, a - b), F.linear(features, b)
        # If BatchNorm's factor is negative the sign turns the minimum into a maximum.
        sign = torch.where(self.norm.weight < 0, -1, 1).to(other.dtype)
        if self.norm.training:
            # Squares are summed around the means of both parts: around zero, the variance would suffer cancellation.
            centre, other_centre = own.detach().mean(dim=(0, 1)), other.detach().mean(dim=(0, 1))
            own = own - centre
            top, sums, squares = summarise((other - other_centre) * sign, index)
            mean, variance = _over_edges(own, sums * sign, squares, index.shape[2])
            self._keep(mean + centre + other_centre, variance, index.numel())
        else:
            assert self.norm.running_mean is not None
            assert self.norm.running_var is not None
            top, _, _ = summarise(other * sign, index)
            mean, variance = self.norm.running_mean, self.norm.running_var
        scale = self.norm.weight * torch.rsqrt(variance + self.norm.eps)
        return F.leaky_relu((own + top * sign - mean) * scale + self.norm.bias, SLOPE)

    def _plain(self, features: Tensor, index: Tensor) -> Tensor:
        """A row for each edge: to measure the inputs of BatchNorm, and for GroupNorm."""
        around = group(features, index)
        own = features.unsqueeze(2).expand_as(around)
        rows = torch.cat([own, around - own], dim=-1)
        normalised = normalise(self.norm, self.linear(rows.flatten(0, 2)), features.shape[0])
        return F.leaky_relu(normalised, SLOPE).reshape(*index.shape, -1).amax(dim=2)

    @torch.no_grad()
    def _keep(self, mean: Tensor, variance: Tensor, edges: int) -> None:
        """Update running statistics as BatchNorm does."""
        running_mean, running_var, share = begin_batch(self.norm)
        running_mean.lerp_(mean, share)
        running_var.lerp_(variance * unbiased(edges), share)


def _over_edges(own: Tensor, sums: Tensor, squares: Tensor, neighbours: int) -> tuple[Tensor, Tensor]:
    """Mean and variance over all edges of own + other, from sums of the others around each point."""
    edges = own.shape[:2].numel() * neighbours
    mean = (neighbours * own + sums).sum(dim=(0, 1), dtype=torch.float64) / edges
    square = (neighbours * own * own + 2 * own * sums + squares).sum(dim=(0, 1), dtype=torch.float64) / edges
    return mean.to(own.dtype), (square - mean * mean).to(own.dtype)


class Dgcnn(nn.Module):
    """Four edge convolutions on dynamic graphs, an embedding of all their outputs, max and mean pooling."""

    def __init__(self, width: int, neighbours: int) -> None:
        super().__init__()
        widths = width, width, 2 * width, 4 * width
        ins = 3, *widths[:3]
        self.edges = nn.ModuleList(EdgeConv(i, o, neighbours) for i, o in zip(ins, widths, strict=True))
        self.linear = nn.Linear(sum(widths), 16 * width, bias=False)
        self.norm = nn.BatchNorm1d(16 * width)

    def forward(self, points: Tensor) -> Tensor:
        check_clouds(points)
        if self.training or torch.is_grad_enabled() or len(points) <= _EVALUATED_AT_ONCE:
            return self._describe(points)
        return torch.cat([self._describe(some) for some in points.split(_EVALUATED_AT_ONCE)])

    def _describe(self, points: Tensor) -> Tensor:
        found = [points]
        for layer in self.edges:
            found.append(layer(found[-1]))
        rows = torch.cat(found[1:], dim=2).flatten(0, 1)
        rows = F.leaky_relu(normalise(self.norm, self.linear(rows), points.shape[0]), SLOPE)
        embedded = rows.reshape(*points.shape[:2], rows.shape[1])
        return torch.cat([embedded.amax(dim=1), embedded.mean(dim=1)], dim=1)


@wants_points(1024)
@models.register("dgcnn")
def dgcnn(
    shape: tuple[int, ...], classes: int, *, width: int = 32, neighbours: int = 20, dropout: float = 0.5
) -> Classifier:
    """DGCNN at a fifth of its size, with neighbourhoods in the learnt feature space.

    Edge layers in units of `width`: 1-1-2-4, embedding 16, features 32 (maximum and mean), head 6.5-3.25.
    With 40 classes and the default width, weights: edges 6*32 + 64*32 + 64*64 + 128*128 = 22,720, embedding 256*512 =
    131,072, head 1024*208 + 208*104 + 104*40 = 238,784 and 352 biases; BatchNorm 2 (32 + 32 + 64 + 128 + 512 + 208 +
    104) = 2,160: 395,088 parameters. Buffers: 2,160 and 7 counters. 1.515 MiB.
    """
    cloud_shape(shape)
    if neighbours < 1:
        raise InputError(f"a graph needs at least one neighbour a point, not {neighbours}")
    head = mlp_head(32 * width, 13 * width // 2, 13 * width // 4, classes, dropout)
    return Classifier(Dgcnn(width, neighbours), head, 32 * width)
