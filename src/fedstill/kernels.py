"""Kernels of point-cloud networks: farthest point sampling, ball query, nearest neighbours, grouping.

>>> import torch
>>> line = torch.tensor([[[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [5.0, 0.0, 0.0]]])  # one cloud of three points
>>> farthest_points(line, 2).tolist()
[[0, 2]]
>>> ball_query(line, line[:, :1], radius=2.0, neighbours=2).tolist()
[[[0, 1]]]

Compiled by numba on the CPU without a compiler; plain torch elsewhere. Clouds are (batch, points, 3).
"""

from fedstill.models.kernels import ball_query, farthest_points, group, rows_at
from fedstill.models.kernels.neighbours import nearest

__all__ = ["ball_query", "farthest_points", "group", "nearest", "rows_at"]
