"""The cost of a model: floating-point operations (FLOPs) of one forward pass, counted and never timed.

A multiply-add is two operations. The count includes matrix products and convolutions, which are nearly all the work,
and the neighbour searches in point clouds, which are a quarter of it in a DGCNN: three operations (difference, square,
addition) per channel of every compared pair. Biases, normalisation, activations and pooling are omitted, as is usual:
they take a few operations per element, where products take tens to thousands.

The count depends only on the model and on the shape of its input, so everything computed from it is reproducible. The
fast point-cloud levels compute distinct rows only, and their number depends on the cloud; the count is that of the
network as defined in its paper, with a row for every neighbour and every edge, padding included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fedstill.models.dgcnn import EdgeConv
from fedstill.models.pointnet2_segmentation import FeaturePropagation
from fedstill.models.surgery import duplicate

_A_CHANNEL = 3  # operations for comparing two rows: difference, square, addition


def flops(model: nn.Module, shape: tuple[int, ...]) -> float:
    """Operations of one forward pass of one sample of this shape, in evaluation; the model is not changed.

    Training costs about three times as much per sample, as `Meter.work` counts.

    >>> flops(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), (3,))
    40.0
    >>> flops(nn.Conv2d(1, 8, 3, padding=1), (1, 28, 28))  # 784 pixels, 8 channels, 9 multiply-adds each
    112896.0
    """
    counter = _Counter()

    def search(_: nn.Module, given: tuple[Tensor, ...], __: object) -> None:
        counter.total += _comparisons(given[0], given[0] if len(given) == 1 else given[1])

    twin = duplicate(model).eval()  # the hooks are installed on a copy
    for part in twin.modules():
        # Levels with a hook on one of their layers use the plain implementation, in which every product is a torch
        # operator.
        if isinstance(part, nn.Linear | nn.BatchNorm1d):
            part.register_forward_hook(_look_on)
        # A point's neighbours among all points; or those of the finer points among the coarse ones.
        if isinstance(part, EdgeConv | FeaturePropagation):
            part.register_forward_hook(search)
    like = next((one for one in twin.parameters() if one.is_floating_point()), torch.empty(0))
    with torch.no_grad(), counter:
        twin(torch.zeros((1, *shape), dtype=like.dtype, device=like.device))
    return float(counter.total)


def _look_on(*_: object) -> None:
    """A hook that does nothing."""


def _comparisons(queries: Tensor, points: Tensor) -> int:
    """Operations to compare every row of (clouds, queries, channels) with every row of (clouds, points, channels)."""
    return _A_CHANNEL * prod(queries.shape) * points.shape[1]


class _Counter(TorchDispatchMode):
    """Sums the cost of torch's operators and ours while it is active, by torch's own formulas.

    torch's `FlopCounterMode` counts the same, but its first use imports torch's compiler, which takes two seconds in
    every process.
    """

    def __init__(self) -> None:
        from torch.utils.flop_counter import flop_registry

        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0
        self.formulas: Mapping[Any, Callable[..., int]] = {
            **flop_registry,
            torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda query, key, *_, **__: (
                4 * prod(query.shape) * key.shape[2]
            ),
            torch.ops.fedstill.farthest_points: lambda points, samples, **_: _A_CHANNEL * prod(points.shape) * samples,
            torch.ops.fedstill.ball_query: lambda points, centres, *_, **__: _comparisons(centres, points),
        }

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would have to import the compiler in order to skip it

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        formula = self.formulas.get(func._overloadpacket)
        if formula is not None:
            self.total += formula(*args, **(kwargs or {}), out_val=out)
        return out
