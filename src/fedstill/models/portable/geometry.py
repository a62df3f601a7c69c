"""Sampling and neighbourhoods in operators that every runtime supports.

The kernels in `fedstill.models.kernels` are compiled for this machine. Here the same indices are computed from sums,
sorting and one loop, which `torch.export` and ONNX support. The same direct differences are summed in the same order,
and ties go to the lowest index, so that sampling and ball queries agree in every index.
"""

from __future__ import annotations

import torch
from torch import Tensor

_SPARE = 20  # extra candidates, among which exact distances decide


def farthest(points: Tensor, samples: int) -> tuple[Tensor, Tensor]:
    """Farthest-point sampling: indices (batch, samples) as `fedstill.models.kernels.farthest_points` returns them.

    It also returns the squared distances (samples, batch, points) from each of them, which sampling computes anyway.

    One loop whose body is exported once, however many samples there are: unrolled, 512 samples would be thousands of
    operators.
    """
    from torch._higher_order_ops.scan import scan  # imported here, because it loads much of torch's compiler

    # One coordinate after the other: summing over the first axis adds x, y and z in that order.
    coordinates = points.permute(2, 0, 1).contiguous()

    def step(dispatch: tuple[Tensor, Tensor], number: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        nearest, last = dispatch
        here = coordinates.gather(2, last.unsqueeze(0).expand(3, -1, -1))
        difference = coordinates - here
        distances = (difference * difference).sum(dim=0)
        nearest = torch.minimum(nearest, distances)
        return (nearest, nearest.argmax(dim=1, keepdim=True)), (last.clone(), distances)

    nothing = points.new_full(points.shape[:2], torch.inf)
    first = points.new_zeros((points.shape[0], 1), dtype=torch.int64)
    _, (chosen, distances) = scan(step, (nothing, first), torch.arange(samples))
    return chosen.squeeze(2).t(), distances


def between(points: Tensor, centres: Tensor) -> Tensor:
    """Squared distances (centres, batch, points), by direct differences summed in the order x, y, z."""
    x, y, z = (points[:, :, axis] - centres[:, :, axis].t().unsqueeze(2) for axis in range(3))
    return x * x + y * y + z * z


def within(distances: Tensor, limit: float, neighbours: int) -> Tensor:
    """Indices (batch, centres, neighbours) of points whose squared distance is at most `limit`, lowest first.

    It matches `fedstill.models.kernels.ball_query` for centres that are themselves points, so that no ball is empty. It
    never returns more than there are points: the rest would be padding, which does not change a maximum.
    """
    count = distances.shape[2]
    # Points outside get an index past the end. The indices are floats, whose minimum runtimes find fastest, and which
    # are exact up to 16 million.
    numbers = torch.arange(count, dtype=distances.dtype)
    keys = torch.where(distances <= limit, numbers, float(count))
    found = keys.topk(min(neighbours, count), dim=2, largest=False, sorted=True).values
    return torch.where(found < count, found, found[:, :, :1]).to(torch.int64).transpose(0, 1)


def around(points: Tensor, centres: Tensor, limit: float, neighbours: int) -> Tensor:
    """Ball query: indices (batch, centres, neighbours) as `fedstill.models.kernels.ball_query` returns them.

    One loop over centres, so that memory does not grow with their number. It never returns more than there are points.
    """
    from torch._higher_order_ops.scan import scan  # imported here, because it loads much of torch's compiler

    coordinates = points.permute(2, 0, 1).contiguous()
    count, most = points.shape[1], min(neighbours, points.shape[1])
    numbers = torch.arange(count, dtype=points.dtype)

    def step(carried: Tensor, centre: Tensor) -> tuple[Tensor, Tensor]:
        difference = coordinates - centre.unsqueeze(2)
        distances = (difference * difference).sum(dim=0)
        keys = torch.where(distances <= limit, numbers, float(count))
        found = keys.topk(most, dim=1, largest=False, sorted=True).values
        closest = distances.argmin(dim=1, keepdim=True).to(found.dtype)  # of an empty ball
        first = torch.where(found[:, :1] < count, found[:, :1], closest)
        return carried.clone(), torch.where(found < count, found, first).to(torch.int64)

    _, found = scan(step, points.new_zeros(1), centres.permute(1, 2, 0).contiguous())
    index: Tensor = found.transpose(0, 1)
    return index


def nearest(rows: Tensor, neighbours: int) -> Tensor:
    """Indices (batch, rows, neighbours) of the rows nearest to each row, in no particular order.

    These match `nearest` in `models/kernels`, except for distances that differ by no more than rounding. Exact
    distances of all pairs would take a hundred passes over a matrix, so a matrix product finds somewhat more candidates
    than are needed, and direct differences decide among those. A neighbour is missed only if the product misplaces it
    by more than the extra candidates, which takes that many others at almost the same distance.
    """
    count = rows.shape[1]
    neighbours = min(neighbours, count)
    centred = rows - rows.mean(dim=1, keepdim=True)
    squares = (centred * centred).sum(dim=2)
    # The squared norm of each query row is omitted: it does not change the order.
    rough = squares.unsqueeze(1) - 2 * (centred @ centred.transpose(1, 2))
    candidates = rough.topk(min(neighbours + _SPARE, count), dim=2, largest=False).indices.sort(dim=2).values
    difference = take(rows, candidates) - rows.unsqueeze(2)
    exact = (difference * difference).sum(dim=3)
    # Candidates are in ascending order, and of equal distances both torch on a CPU and ONNX keep the first.
    chosen = exact.sort(dim=2).indices[:, :, :neighbours]
    return candidates.gather(2, chosen)


def take(rows: Tensor, index: Tensor) -> Tensor:
    """Rows of (batch, count, channels) at indices (batch, ...), gathered from one flattened table."""
    batch, count, channels = rows.shape
    start = torch.arange(batch) * count
    flat = index.flatten(1) + start.unsqueeze(1)
    return rows.reshape(-1, channels).index_select(0, flat.flatten()).reshape(*index.shape, channels)
