"""The kernels as torch operators: compiled on the CPU, plain torch on any other device, with autograd support.

While a model is exported they are written out in operators that every runtime supports (`models/portable/geometry.py`).

From "PointNet++: Deep Hierarchical Feature Learning on Point Sets in a Metric Space", https://arxiv.org/abs/1706.02413,
section 3.2. The paper leaves the order of ties, of neighbours and of padding open; here it is fixed: the same cloud
gives the same indices on every device, in training and in evaluation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedstill.core.errors import InputError
from fedstill.models.kernels import plain


def check_clouds(points: Tensor) -> None:
    """Refuse clouds with invalid coordinates, with a message that names the cloud."""
    if points.dim() != 3 or points.shape[2] != 3 or not points.is_floating_point():
        raise InputError(f"point clouds come as floats in (batch, points, 3), not {tuple(points.shape)}")
    if points.shape[1] == 0:
        raise InputError("a point cloud needs at least one point")
    if torch.compiler.is_exporting():  # there are no values yet, and a file does not check them
        return
    if not torch.isfinite(points).all():
        bad = int((~torch.isfinite(points)).flatten(1).any(1).nonzero()[0])
        raise InputError(f"coordinates must be finite: cloud {bad} of the batch holds NaN or infinity")


def farthest_points(points: Tensor, samples: int) -> Tensor:
    """Farthest-point sampling: indices (batch, samples), from index 0, always the point farthest from those before.

    Ties go to the lowest index. Once every location is taken all distances are zero, so a cloud with fewer locations
    than samples repeats index 0. From a fixed start the sample is *nested*: the first k sampled points are the sample
    of size k.

    >>> cloud = torch.tensor([[[0.0, 0, 0], [1, 0, 0], [5, 0, 0], [1, 0, 0]]])
    >>> farthest_points(cloud, 5).tolist()
    [[0, 2, 1, 0, 0]]
    """
    check_clouds(points)
    if samples < 1:
        raise InputError(f"a sample needs at least one point, not {samples}")
    if torch.compiler.is_exporting():
        from fedstill.models.portable.geometry import farthest

        return farthest(points.detach(), samples)[0]
    chosen: Tensor = _farthest_points(points.detach(), samples)
    return chosen


def ball_query(points: Tensor, centres: Tensor, radius: float, neighbours: int) -> Tensor:
    """Ball query: indices (batch, centres, neighbours) of points at most `radius` away, lowest first.

    If fewer points are in the ball the first one found is repeated; if there is none, the nearest point is used.

    >>> cloud = torch.tensor([[[0.0, 0, 0], [3, 0, 0], [1, 0, 0]]])
    >>> ball_query(cloud, cloud, 2.0, 3).tolist()
    [[[0, 2, 0], [1, 2, 1], [0, 1, 2]]]
    """
    check_clouds(points)
    check_clouds(centres)
    if points.dtype != centres.dtype or points.shape[0] != centres.shape[0]:
        raise InputError("points and centres must agree in precision and number of clouds")
    if neighbours < 1 or not 0 <= radius < float("inf"):
        raise InputError(f"a ball needs a radius and at least one neighbour, not {radius} and {neighbours}")
    limit = squared(radius, points.dtype)
    if torch.compiler.is_exporting():
        from fedstill.models.portable.geometry import around

        return around(points.detach(), centres.detach(), limit, neighbours)
    found: Tensor = _ball_query(points.detach(), centres.detach(), limit, neighbours)
    return found


def group(features: Tensor, index: Tensor) -> Tensor:
    """Rows of (batch, points, channels) at indices (batch, centres, neighbours), with gradients.

    >>> group(torch.tensor([[[1.0], [2.0]]]), torch.tensor([[[1, 0, 1]]])).flatten().tolist()
    [2.0, 1.0, 2.0]
    """
    if torch.compiler.is_exporting():
        from fedstill.models.portable.geometry import take

        return take(features, index)
    if index.numel() and not 0 <= int(index.amin()) <= int(index.amax()) < features.shape[1]:
        raise InputError(f"indices of neighbours must lie in 0..{features.shape[1] - 1}")
    grouped: Tensor = _group(features, index)
    return grouped


def rows_at(table: Tensor, index: Tensor) -> Tensor:
    """Rows of (batch, rows, channels) at (batch, chosen), with gradients.

    >>> rows_at(torch.tensor([[[1.0], [2.0]]]), torch.tensor([[1, 0, 1]])).flatten().tolist()
    [2.0, 1.0, 2.0]
    """
    return table.gather(1, index.unsqueeze(-1).expand(-1, -1, table.shape[-1]))


def sorting(values: Tensor, descending: bool = False) -> Tensor:
    """The indices that sort each row of (batch, values); of equal values the lowest index comes first.

    In an exported program the order of equal values is left to the runtime.

    >>> sorting(torch.tensor([[2.0, 1, 2, 3]]), descending=True).tolist()
    [[3, 0, 2, 1]]
    """
    if torch.compiler.is_exporting():  # exporters do not know stable sorting
        return values.sort(dim=1, descending=descending).indices
    return values.argsort(dim=1, descending=descending, stable=True)


def squared(radius: float, dtype: torch.dtype) -> float:
    """The squared radius in the points' precision, so that every device compares with the same number."""
    return float(torch.tensor(radius * radius, dtype=dtype))


def _array(tensor: Tensor) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = tensor.detach().contiguous().numpy()
    return array


@torch.library.custom_op("fedstill::farthest_points", mutates_args=())
def _farthest_points(points: Tensor, samples: int) -> Tensor:
    return plain.farthest_points(points, samples)


@_farthest_points.register_kernel("cpu")
def _(points: Tensor, samples: int) -> Tensor:
    from fedstill.models.kernels import compiled

    return torch.from_numpy(compiled.farthest_points(_array(points), samples))


@_farthest_points.register_fake
def _(points: Tensor, samples: int) -> Tensor:
    return points.new_empty((points.shape[0], samples), dtype=torch.int64)


@torch.library.custom_op("fedstill::ball_query", mutates_args=())
def _ball_query(points: Tensor, centres: Tensor, limit: float, neighbours: int) -> Tensor:
    return plain.ball_query(points, centres, limit, neighbours)


@_ball_query.register_kernel("cpu")
def _(points: Tensor, centres: Tensor, limit: float, neighbours: int) -> Tensor:
    from fedstill.models.kernels import compiled

    return torch.from_numpy(compiled.ball_query(_array(points), _array(centres), limit, neighbours))


@_ball_query.register_fake
def _(points: Tensor, centres: Tensor, limit: float, neighbours: int) -> Tensor:
    return points.new_empty((points.shape[0], centres.shape[1], neighbours), dtype=torch.int64)


@torch.library.custom_op("fedstill::group", mutates_args=())
def _group(features: Tensor, index: Tensor) -> Tensor:
    return plain.group(features, index)


@_group.register_kernel("cpu")
def _(features: Tensor, index: Tensor) -> Tensor:
    from fedstill.models.kernels import compiled

    return torch.from_numpy(compiled.group(_array(features), _array(index)))


@_group.register_fake
def _(features: Tensor, index: Tensor) -> Tensor:
    return features.new_empty((*index.shape, features.shape[2]))


@torch.library.custom_op("fedstill::ungroup", mutates_args=())
def _ungroup(gradient: Tensor, index: Tensor, count: int) -> Tensor:
    return plain.ungroup(gradient, index, count)


@_ungroup.register_kernel("cpu")
def _(gradient: Tensor, index: Tensor, count: int) -> Tensor:
    from fedstill.models.kernels import compiled

    return torch.from_numpy(compiled.ungroup(_array(gradient), _array(index), count))


@_ungroup.register_fake
def _(gradient: Tensor, index: Tensor, count: int) -> Tensor:
    return gradient.new_empty((gradient.shape[0], count, gradient.shape[3]))


def _remember(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    features, index = inputs
    ctx.save_for_backward(index)
    ctx.count = features.shape[1]


def _spread(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    (index,) = ctx.saved_tensors
    return _ungroup(gradient, index, ctx.count), None


_group.register_autograd(_spread, setup_context=_remember)
