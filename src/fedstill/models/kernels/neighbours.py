"""Nearest neighbours: the nearest rows of one set to each row of another, and sums over them without a row per edge.

They are used for interpolation in space, and for the graphs of DGCNN in feature space. Compiled on the CPU, plain torch
elsewhere.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedstill.models.kernels import group

_AT_ONCE = 1 << 24  # distances in memory at a time, off the CPU


@torch.no_grad()
def nearest(queries: Tensor, points: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Squared distances and indices (batch, queries, count) of the points nearest to each query, nearest first.

    Distances are sums of squared differences, channel by channel, not inner products: a row has distance zero to itself
    and to its copies, however large its channels are. Ties go to the lowest index, so the same rows have the same
    neighbours on every device. If there are fewer points than `count`, all of them are returned.

    >>> line = torch.tensor([[[0.0], [2.0], [1.0], [2.0]]])
    >>> nearest(line, line, 2)[1].tolist()
    [[[0, 2], [1, 3], [2, 0], [1, 3]]]
    """
    count = min(count, points.shape[1])
    queries, points = queries.detach(), points.detach()
    if not _compiled_for(queries, points):
        return nearest_plain(queries, points, count)
    from fedstill.models.kernels.compiled_neighbours import nearest_rows  # imported here, because numba loads slowly

    distances, index = nearest_rows(queries.contiguous().numpy(), points.contiguous().numpy(), count)
    return torch.from_numpy(distances), torch.from_numpy(index)


def nearest_plain(queries: Tensor, points: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The same in plain torch, a few clouds at a time."""
    clouds = max(1, _AT_ONCE // (queries.shape[1] * points.shape[1]))
    found = []
    for some, others in zip(queries.split(clouds), points.split(clouds), strict=True):
        distances = some.new_zeros(len(some), queries.shape[1], points.shape[1])
        for channel in range(points.shape[2]):
            distances += (others[:, None, :, channel] - some[:, :, None, channel]).square()
        values, index = distances.sort(dim=2, stable=True)
        found.append((values[..., :count], index[..., :count]))
    return torch.cat([values for values, _ in found]), torch.cat([index for _, index in found])


def summarise(rows: Tensor, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Maximum, sum and sum of squares over the neighbours (batch, rows, neighbours) of each row, with gradients.

    >>> rows = torch.tensor([[[1.0], [3.0]]])
    >>> [found.flatten().tolist() for found in summarise(rows, torch.tensor([[[0, 1], [0, 0]]]))]
    [[3.0, 1.0], [4.0, 2.0], [10.0, 2.0]]
    """
    if _compiled_for(rows):
        apply: Any = _Summaries.apply
        top, sums, squares = apply(rows, index)
        return top, sums, squares
    along = group(rows, index)
    return along.amax(dim=2), along.sum(dim=2), along.square().sum(dim=2)


class _Summaries(torch.autograd.Function):
    """If several neighbours share the maximum, the gradient goes to the nearest."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        from fedstill.models.kernels.compiled_neighbours import summaries

        rows, index = rows.detach().contiguous(), index.contiguous()
        *found, which = (torch.from_numpy(array) for array in summaries(rows.numpy(), index.numpy()))
        ctx.save_for_backward(rows, index, which)
        top, sums, squares = found
        return top, sums, squares

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        from fedstill.models.kernels.compiled_neighbours import spread

        rows, index, which = ctx.saved_tensors
        given = (gradient.contiguous().numpy() for gradient in gradients)
        return torch.from_numpy(spread(rows.numpy(), index.numpy(), which.numpy(), *given)), None


def _compiled_for(*tensors: Tensor) -> bool:
    usual = {(tensor.device.type, tensor.dtype) for tensor in tensors}
    return usual in ({("cpu", torch.float32)}, {("cpu", torch.float64)}) and not torch.compiler.is_compiling()
