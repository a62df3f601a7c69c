"""Steps of training that hide single records: differentially private stochastic gradient descent.

*Deep Learning with Differential Privacy*, Abadi et al., 2016, https://arxiv.org/abs/1607.00133

    each step takes every record with probability q = batch / records, independently (Poisson sampling)
    g_i <- gradient of the loss of record i alone
    g   <- ( sum_i g_i min(1, C / ||g_i||) + z C N(0, 1) ) / (q records)

An epoch has as many steps as without privacy. How many records a step takes is secret, so the sum is divided by the
expected number, and a step without any record is taken with noise alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, isfinite

import numpy as np
import torch
from torch import Tensor, nn

from fedstill.core.noise import Normal, from_operating_system, named, octets
from fedstill.core.streams import Streams


@dataclass(frozen=True)
class PrivateSteps:
    """How records are sampled, and their gradients clipped and noised."""

    clip: float  # C: norm of the gradient of one record
    noise: float  # z: deviation of the noise on their sum, in units of the clip
    system: bool  # sampling and noise from the operating system; otherwise from named streams, which protect nobody

    def sampled(self, records: int, batch: int, streams: Streams) -> Iterator[Tensor]:
        """The records of each step of an epoch."""
        source = octets(streams, self.system)
        rate = sampling_rate(records, batch)
        for _ in range(steps_of(records, batch)):
            drawn = (np.frombuffer(source(8 * records), dtype="<u8") >> np.uint64(11)) * 2.0**-53
            yield torch.from_numpy(np.flatnonzero(drawn < rate))

    def normal(self, streams: Streams) -> Normal:
        return from_operating_system(streams) if self.system else named(streams)

    def set_gradients(
        self, parameters: Sequence[nn.Parameter], gradients: Iterator[list[Tensor]], expected: int, normal: Normal
    ) -> None:
        """Give parameters the private mean of the records' gradients, which are clipped one by one.

        So many records are `expected`; gradients that are not finite count as zero.
        """
        total = [torch.zeros_like(parameter) for parameter in parameters]
        for one in gradients:
            norm = float(torch.stack(torch._foreach_norm(one)).double().norm())
            factor = 0.0 if not isfinite(norm) else min(1.0, self.clip / norm) if norm else 1.0
            if factor:
                torch._foreach_add_(total, one, alpha=factor)
        for parameter, value in zip(parameters, total, strict=True):
            drawn = normal(tuple(value.shape)) * (self.noise * self.clip) if self.noise else 0.0
            parameter.grad = ((value.double().cpu() + drawn) / expected).to(value)


def sampling_rate(records: int, batch: int) -> float:
    """q: the probability with which a step takes a record."""
    return min(1.0, batch / max(records, 1))


def steps_of(records: int, batch: int) -> int:
    """The steps of an epoch.

    >>> steps_of(100, 16), steps_of(3, 16)
    (7, 1)
    """
    return ceil(records / batch)
