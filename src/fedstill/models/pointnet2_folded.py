"""One level of PointNet++ in evaluation: BatchNorm folded into the weights, distinct rows only, nothing kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedstill.models.batchnorm import fold
from fedstill.models.kernels.buffers import pool
from fedstill.models.kernels.compact import Rows

Array = npt.NDArray[Any]


def infer_level(rows: Rows, features: Tensor | None, layers: list[tuple[nn.Linear, nn.BatchNorm1d]]) -> Tensor:
    """(groups, channels): three layers on every row and the maximum over each group; see `pointnet2_fast`."""
    from fedstill.models.kernels import compiled_rows as kernels

    (w1, b1), (w2, b2), (w3, b3) = ([part.float() for part in fold(*layer)] for layer in layers)
    width1, width2, width3 = len(w1), len(w2), len(w3)
    mapped = w1.new_empty(0, width1) if features is None else features @ w1[:, 3:].t()
    across: Array = np.ascontiguousarray(w1[:, :3].t().numpy())
    pieces = rows.pieces(max(width1, width2, width3))
    longest = max(len(piece.weight) for piece in pieces)
    one, two, three = (pool.lend(longest * width) for width in (width1, width2, width3))
    best = torch.empty(rows.groups, width3)
    for piece in pieces:
        size = len(piece.weight)
        first, second, third = one.view(size, width1), two.view(size, width2), three.view(size, width3)
        source, offset = rows.source[piece.rows], rows.offset[piece.rows]
        kernels.first_layer(source, offset, mapped.numpy(), across, b1.numpy(), first.numpy())
        torch.addmm(b2, first, w2.t(), out=second).relu_()
        torch.mm(second, w3.t(), out=third)
        kernels.pool_rows(third.numpy(), piece.starts, best[piece.groups].numpy())
    return best.add_(b3).relu_()
