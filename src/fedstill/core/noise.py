"""Where noise that hides something comes from: that of privacy, and what blurs statistics.

A simulation takes it from a named stream, like every other draw, so that a run can be repeated to the bit. That noise
protects nobody: anyone with the experiment's seed can compute it again and subtract it. A real site takes it from its
operating system, whose generator is made for secrets; such a run cannot be repeated.

Both give numbers in double precision. What a bounded precision can give away (Mironov, *On Significance of the Least
Significant Bits For Differential Privacy*, 2012) is not defended against.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from math import prod

import numpy as np
import torch
from torch import Tensor

from fedstill.core.protocols import Shape
from fedstill.core.streams import Streams

Normal = Callable[[Shape], Tensor]  # independent standard normal numbers of some shape, in double precision


def named(streams: Streams, purpose: str = "privacy") -> Normal:
    """From a stream: the same numbers for everybody who knows its name and the seed."""
    generator = streams.draw(purpose)
    return lambda shape: torch.as_tensor(generator.standard_normal(shape), dtype=torch.float64)


def from_operating_system(streams: Streams) -> Normal:
    """From the operating system: numbers that nobody can compute again; the streams are not asked."""
    return _system_normal


def _system_normal(shape: Shape) -> Tensor:
    """Box and Muller's method on 53 random bits a number, straight from the system: no seed that could leak."""
    count = prod(shape)
    bits = np.frombuffer(os.urandom(8 * (count + count % 2)), dtype=np.uint64).reshape(2, -1)
    radial, angular = ((bits >> np.uint64(11)).astype(np.float64) + 1) * 2.0**-53  # in (0, 1]
    radius, angle = np.sqrt(-2 * np.log(radial)), 2 * np.pi * angular
    values = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]
    return torch.from_numpy(values.reshape(shape))
