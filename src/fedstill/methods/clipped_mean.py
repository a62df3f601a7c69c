"""The mean of norm-clipped updates.

*Can You Really Backdoor Federated Learning?*, Sun et al., 2019, https://arxiv.org/abs/1911.07963

    w <- w_g + (1/n) sum_i (w_i - w_g) min(1, C / ||w_i - w_g||)

A single client can move the model by at most C / n, but a malicious update is still part of the mean: clipping bounds
the damage, it does not remove it. C is a number, or the median of the round's update norms (the smaller of the middle
two), which lies within the range of honest norms as long as most clients are honest. All clients have equal weight,
since a client that claims many samples would undo the clipping.

Clipping running statistics would not keep variances positive, so these are aggregated by the coordinate-wise median.
Only with `buffers: as-parameters` are they clipped as part of the update.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median_low
from typing import Annotated, Literal

import torch
from pydantic import Field

from fedstill.core.protocols import Exchange
from fedstill.core.task import Tensors
from fedstill.methods.base import methods
from fedstill.methods.fedavg import FedAvg, ModelSettings
from fedstill.methods.robust import with_robust_buffers, with_robust_recalibration


class ClippedMeanSettings(ModelSettings):
    norm: Annotated[float, Field(gt=0)] | Literal["median"] = Field(
        "median", description="C: norm to which updates are clipped, or median: the median norm of the round's updates"
    )


@methods.register("clipped-mean")
class ClippedMean(FedAvg):
    """FedAvg with updates clipped to a maximum norm, which bounds the influence of each client."""

    Options = ClippedMeanSettings
    settings: ClippedMeanSettings

    def exchanges(self, server: Tensors, round: int) -> Sequence[Exchange]:
        return with_robust_recalibration(super().exchanges(server, round))

    def rule(self, state: Tensors, replies: Sequence[Tensors], weights: Sequence[float]) -> Tensors:
        names = self.moving(state)
        norms = [distance(state, reply, names) for reply in replies]
        limit = median_low(norms) if self.settings.norm == "median" else self.settings.norm
        shares = [clipping(norm, limit) / len(replies) for norm in norms]
        clipped = {}
        for name in names:
            start = state[name].double()
            moves = [share * (reply[name] - start) for share, reply in zip(shares, replies, strict=True)]
            clipped[name] = (start + torch.stack(moves).sum(dim=0)).to(state[name].dtype)
        return with_robust_buffers(state, clipped, replies)


def distance(state: Tensors, sent: Tensors, names: Sequence[str]) -> float:
    """The Euclidean distance between a client's model and the server's, over some tensors."""
    return float(sum(float((sent[name].double() - state[name]).square().sum()) for name in names) ** 0.5)


def clipping(norm: float, limit: float) -> float:
    """The factor that clips an update of this norm.

    >>> clipping(5.0, 10.0), clipping(20.0, 10.0), clipping(0.0, 0.0)
    (1.0, 0.5, 1.0)
    """
    return 1.0 if norm <= limit else limit / norm
