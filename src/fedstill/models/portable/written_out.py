"""Portable forms of models: the same function in plain operators, with folded BatchNorm.

Image models consist of plain operators already. The extractors of point clouds call compiled kernels and check their
inputs, which exporters cannot trace, so each has a portable form here that computes the same function from the same
weights. A user's own model is searched for these extractors, and is otherwise exported unchanged.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedstill.models.batchnorm import fold
from fedstill.models.dgcnn import SLOPE, Dgcnn, EdgeConv
from fedstill.models.kernels.ops import squared
from fedstill.models.pointnet import PointNet
from fedstill.models.pointnet2 import PointNet2
from fedstill.models.pointnet2_levels import SetAbstraction
from fedstill.models.portable.geometry import between, farthest, nearest, take, within
from fedstill.models.surgery import duplicate


def portable(model: nn.Module) -> nn.Module:
    """A copy in evaluation mode, on the CPU, whose point extractors are replaced by their portable form."""
    copy = duplicate(model).cpu().eval().requires_grad_(False)
    if type(copy) in _FORMS:
        return _FORMS[type(copy)](copy)
    for name, part in list(copy.named_modules()):
        if type(part) in _FORMS:
            parent, _, child = name.rpartition(".")
            setattr(copy.get_submodule(parent), child, _FORMS[type(part)](part))
    return copy.eval().requires_grad_(False)


def folded(linear: nn.Linear, norm: nn.BatchNorm1d) -> nn.Linear:
    """One linear map equivalent to a linear map and its BatchNorm in evaluation."""
    joint = nn.Linear(linear.in_features, linear.out_features)
    weight, bias = fold(linear, norm)
    with torch.no_grad():
        joint.weight.copy_(weight)
        joint.bias.copy_(bias)
    return joint


class PortableLayer(nn.Module):
    """A linear map with its normalisation: folded into the map, or GroupNorm of each cloud's rows."""

    def __init__(self, linear: nn.Linear, norm: nn.BatchNorm1d | nn.GroupNorm) -> None:
        super().__init__()
        grouped = isinstance(norm, nn.GroupNorm)
        self.linear = linear if isinstance(norm, nn.GroupNorm) else folded(linear, norm)
        self.norm = norm if grouped else None

    def forward(self, rows: Tensor, clouds: int) -> Tensor:
        return self.normalised(self.linear(rows), clouds)

    def normalised(self, rows: Tensor, clouds: int) -> Tensor:
        """Rows of channels after the normalisation that is not part of the map."""
        if self.norm is None:
            return rows
        each = self.norm(rows.reshape(clouds, -1, rows.shape[1]).transpose(1, 2))
        return each.transpose(1, 2).reshape(rows.shape)  # type: ignore[no-any-return]


class PortablePointNet(nn.Module):
    """See `fedstill.models.pointnet.PointNet`."""

    def __init__(self, model: PointNet) -> None:
        super().__init__()
        self.layer1, self.layer2, self.layer3 = (PortableLayer(*layer) for layer in model.layers())

    def forward(self, points: Tensor) -> Tensor:
        clouds = points.shape[0]
        rows = self.layer1(points.flatten(0, 1), clouds).relu()
        rows = self.layer3(self.layer2(rows, clouds).relu(), clouds)
        pooled: Tensor = rows.reshape(*points.shape[:2], rows.shape[1]).amax(dim=1).relu()
        return pooled


class PortableLevel(nn.Module):
    """See `fedstill.models.pointnet2_levels.SetAbstraction`.

    The first layer is applied to features once per point, before they are gathered, and to offsets, which differ
    between centres, afterwards. The last ReLU follows the maximum, where it is cheaper.
    """

    def __init__(self, level: SetAbstraction) -> None:
        super().__init__()
        self.layer1, self.layer2, self.layer3 = (PortableLayer(*layer) for layer in level.layers())
        first = self.layer1.linear
        self.ball, self.unit = level.ball, level.unit
        self.across, self.mapped = first, None
        if first.in_features > 3:
            self.across = nn.Linear(3, first.out_features)
            self.mapped = nn.Linear(first.in_features - 3, first.out_features, bias=False)
            with torch.no_grad():
                self.across.weight.copy_(first.weight[:, :3])
                self.across.bias.copy_(first.bias)
                self.mapped.weight.copy_(first.weight[:, 3:])

    def forward(self, points: Tensor, centres: Tensor, distances: Tensor | None, features: Tensor | None) -> Tensor:
        known = None
        if self.mapped is not None and features is not None:
            known = self.mapped(features.flatten(0, 1)).reshape(*features.shape[:2], self.mapped.out_features)
        if self.ball is None or distances is None:
            offsets = points.unsqueeze(1)
            known = None if known is None else known.unsqueeze(1)
        else:
            index = within(distances, squared(self.ball.radius, points.dtype), self.ball.neighbours)
            offsets = take(points, index) - centres.unsqueeze(2)
            offsets = offsets / self.unit if self.unit != 1.0 else offsets
            known = None if known is None else take(known, index)
        rows = self.across(offsets.flatten(0, 2))
        if known is not None:
            rows = rows + known.flatten(0, 2)
        clouds = points.shape[0]
        rows = self.layer1.normalised(rows, clouds)
        rows = self.layer3(self.layer2(rows.relu(), clouds).relu(), clouds)
        pooled: Tensor = rows.reshape(*offsets.shape[:3], rows.shape[1]).amax(dim=2).relu()
        return pooled


class PortablePointNet2(nn.Module):
    """See `fedstill.models.pointnet2.PointNet2`."""

    def __init__(self, model: PointNet2) -> None:
        super().__init__()
        self.level1, self.level2 = PortableLevel(model.level1), PortableLevel(model.level2)
        self.level3 = PortableLevel(model.level3)
        self.samples = model.balls[0].centres, model.balls[1].centres

    def forward(self, points: Tensor) -> Tensor:
        first, second = self.samples
        chosen, distances = farthest(points, first)
        centres1 = take(points, chosen)
        features = self.level1(points, centres1, distances, None)
        # Sampling from a fixed start is nested: the second sample is a prefix of the first.
        centres2 = centres1[:, :second]
        features = self.level2(centres1, centres2, between(centres1, centres2), features)
        pooled: Tensor = self.level3(centres2, centres2, None, features)
        return pooled.squeeze(1)


class PortableEdges(nn.Module):
    """See `fedstill.models.dgcnn.EdgeConv`; with BatchNorm folded into the weights the maximum needs no sign change."""

    def __init__(self, layer: EdgeConv) -> None:
        super().__init__()
        self.norm: nn.GroupNorm | None = None
        if isinstance(layer.norm, nn.GroupNorm):
            self.norm = layer.norm
            weight, bias = layer.linear.weight, torch.zeros(layer.linear.out_features)
        else:
            weight, bias = fold(layer.linear, layer.norm)
        a, b = weight.chunk(2, dim=1)
        self.neighbours = layer.neighbours
        self.own = nn.Linear(a.shape[1], a.shape[0])
        self.other = nn.Linear(a.shape[1], a.shape[0], bias=False)
        with torch.no_grad():
            self.own.weight.copy_(a - b)
            self.own.bias.copy_(bias)
            self.other.weight.copy_(b)

    def forward(self, rows: Tensor) -> Tensor:
        index = nearest(rows, self.neighbours)
        along = take(self.other(rows), index)
        if self.norm is not None:
            edges = self.own(rows).unsqueeze(2) + along
            each = self.norm(edges.flatten(1, 2).transpose(1, 2)).transpose(1, 2)
            return F.leaky_relu(each, SLOPE).reshape(edges.shape).amax(dim=2)
        return F.leaky_relu(self.own(rows) + along.amax(dim=2), SLOPE)


class PortableDgcnn(nn.Module):
    """See `fedstill.models.dgcnn.Dgcnn`."""

    def __init__(self, model: Dgcnn) -> None:
        super().__init__()
        layers = [layer for layer in model.edges if isinstance(layer, EdgeConv)]
        self.edges = nn.ModuleList(PortableEdges(layer) for layer in layers)
        self.embedding = PortableLayer(model.linear, model.norm)

    def forward(self, points: Tensor) -> Tensor:
        found = [points]
        for layer in self.edges:
            found.append(layer(found[-1]))
        joined = torch.cat(found[1:], dim=2)
        rows = self.embedding(joined.flatten(0, 1), points.shape[0]).reshape(*joined.shape[:2], -1)
        rows = F.leaky_relu(rows, SLOPE)
        return torch.cat([rows.amax(dim=1), rows.mean(dim=1)], dim=1)


# By exact type: a user's subclass of one of these may compute something else.
_FORMS: dict[type, Callable[..., nn.Module]] = {
    PointNet: PortablePointNet,
    PointNet2: PortablePointNet2,
    Dgcnn: PortableDgcnn,
}
