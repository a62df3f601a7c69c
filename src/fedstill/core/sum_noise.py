"""Noise in the whole numbers of a sum: each client clips its part of the sum and adds its share of the noise itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, isfinite, prod, sqrt

import numpy as np
import torch

from fedstill.core.discrete_gaussian import LARGEST_VARIANCE, discrete_gaussian
from fedstill.core.errors import InputError
from fedstill.core.noise import octets
from fedstill.core.streams import Streams
from fedstill.core.sums import HALF, FixedPoint, Format, Layout
from fedstill.core.task import Tensors

_ROUNDED = 1 - 1e-9  # above what double precision can add to a norm
_FINE = 10  # steps of a deviation, from which on sums of discrete Gaussians are as private as one
_FAR = 40  # deviations that no draw exceeds: the probability is below 10^-340


@dataclass(frozen=True)
class SumNoise:
    """The norm to which a client's part of a sum is clipped, and the deviation of the noise that it adds."""

    clip: float
    deviation: float  # of each number, in the units of the update; 0: no noise
    system: bool  # from the operating system; otherwise from a named stream, which protects nobody

    def check(self, formats: Mapping[Format, FixedPoint], numbers: int, clients: int) -> None:
        """Refuse formats that would clip, overflow or round too coarsely, before any work."""
        for form in (formats["update"], formats["buffers"]):
            if self.clip > form.clip:
                raise InputError(
                    f"privacy.clip of {self.clip:g} is above the largest change that is sent, {form.clip:g}: set"
                    " secure.clip as large"
                )
            reach = (self.clip + _FAR * self.deviation) * 2**form.bits * clients
            if reach >= HALF or self.variance(form.bits) > LARGEST_VARIANCE:
                raise InputError(
                    f"noise of deviation {self.deviation:.3g} for each of {clients} clients, in steps of"
                    f" 2^-{form.bits}, could exceed 64 bits: set secure.bits lower"
                )
        coarsest = min(formats["update"].bits, formats["buffers"].bits)
        if 0 < self.deviation * 2.0**coarsest < _FINE:
            raise InputError(
                f"noise of deviation {self.deviation:.3g} for each client is too small for steps of 2^-{coarsest}: set"
                " secure.bits or privacy.noise higher"
            )
        if sqrt(numbers) / 2 * 2.0**-coarsest > self.clip / 100:
            raise InputError(
                f"rounding {numbers:,} numbers to 2^-{coarsest} changes an update by more than a hundredth of"
                f" privacy.clip={self.clip:g}: set secure.bits higher"
            )

    def variance(self, bits: int) -> int:
        """The parameter of the discrete Gaussian, rounded up, for numbers in steps of 2^-bits.

        >>> SumNoise(clip=1.0, deviation=1.5, system=False).variance(3)
        144
        """
        return ceil(Fraction(self.deviation) * Fraction(self.deviation) * (1 << 2 * bits))

    def clipped(self, values: Tensors, layout: Layout) -> Tensors:
        """A client's part of the sum, so short that its norm is at most the clip when it is rounded as well.

        Rounding moves each number by at most half a step. A part that is not finite becomes zero.
        """
        steps = [prod(layout.shapes[name]) * 4.0 ** -_bits(layout, name) for name in layout.names]
        limit = (self.clip - sqrt(sum(steps)) / 2) * _ROUNDED
        norm = sqrt(sum(float(values[name].square().sum()) for name in sorted(values)))
        if not isfinite(norm):
            return {name: torch.zeros_like(value) for name, value in values.items()}
        factor = limit / norm if norm > limit else 1.0
        return {name: value * factor for name, value in values.items()}

    def drawn(self, layout: Layout, streams: Streams) -> np.ndarray:
        """The client's noise for a vector of this layout; what every vector begins with gets none."""
        found = np.zeros(layout.length, dtype=np.int64)
        if self.deviation:
            source = octets(streams, self.system)
            for name, piece in layout.pieces():
                variance = self.variance(_bits(layout, name))
                found[piece] = discrete_gaussian(variance, piece.stop - piece.start, source)
        return found.view(np.uint64)


def _bits(layout: Layout, name: str) -> int:
    return layout.formats[layout.line(name).format].bits
