"""Where noise that hides something comes from: that of privacy, and what blurs statistics.

A simulation takes it from a named stream, like every other draw, so that a run can be repeated to the bit. That noise
protects nobody: anyone with the experiment's seed can compute it again and subtract it. A real site takes it from its
operating system, whose generator is made for secrets; such a run cannot be repeated.

Normal numbers are in double precision. What a bounded precision can give away (Mironov, *On Significance of the Least
Significant Bits For Differential Privacy*, 2012) is not defended against. Whole numbers are exact: `discrete_gaussian`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor

from fedstill.core.discrete_gaussian import Octets
from fedstill.core.streams import Streams


@dataclass(frozen=True)
class ReplyNoise:
    """Noise in every reply, before it leaves a client."""

    deviation: float  # in units of the clip
    clip: float  # norm to which an update is clipped
    colluding: int | None = None  # in a sum, of which each adds a share: how many may give theirs away; None: in each


@dataclass(frozen=True)
class StepNoise:
    """Noise in every step of a client's training, before anything that it made leaves."""

    deviation: float  # in units of the clip
    clip: float  # norm to which the gradient of one record is clipped
    rate: float  # probability with which a step takes a record
    steps: int  # behind one reply


Normal = Callable[[tuple[int, ...]], Tensor]  # independent standard normal numbers of some shape, in double precision


def named(streams: Streams, purpose: str = "privacy") -> Normal:
    """From a stream: the same numbers for everybody who knows its name and the seed."""
    generator = streams.draw(purpose)
    return lambda shape: torch.as_tensor(generator.standard_normal(shape), dtype=torch.float64)


def from_operating_system(streams: Streams) -> Normal:
    """From the operating system: numbers that nobody can compute again; the streams are not asked."""
    return _system_normal


def _system_normal(shape: tuple[int, ...]) -> Tensor:
    """Box and Muller's method on 53 random bits a number, straight from the system: no seed that could leak."""
    count = prod(shape)
    bits = np.frombuffer(os.urandom(8 * (count + count % 2)), dtype=np.uint64).reshape(2, -1)
    radial, angular = ((bits >> np.uint64(11)).astype(np.float64) + 1) * 2.0**-53  # in (0, 1]
    radius, angle = np.sqrt(-2 * np.log(radial)), 2 * np.pi * angular
    values = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]
    return torch.from_numpy(values.reshape(shape))


def octets(streams: Streams, system: bool, purpose: str = "privacy") -> Octets:
    """Random bytes from the operating system, or from a stream."""
    return os.urandom if system else streams.draw(purpose).bytes
