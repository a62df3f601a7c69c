"""Kernels of point-cloud networks: sampling, neighbourhoods, grouping."""

from fedstill.models.kernels.ops import ball_query, check_clouds, farthest_points, group, rows_at, sorting

__all__ = ["ball_query", "check_clouds", "farthest_points", "group", "rows_at", "sorting"]
