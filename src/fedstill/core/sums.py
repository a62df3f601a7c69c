"""Sums over clients: what an exchange declares of which the server needs the sum only, and the integers they are of.

A sum of floating-point numbers depends on its order, and cannot be masked. Each value is therefore written as a whole
number of 2^-bits, and sums are taken modulo 2^64: they are exact, the same in any order, and an unsigned number that is
uniformly random hides what is added to it. A value is clipped to its format's range first, so that the sum of the
agreed number of clients with their weights stays below 2^63.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import ceil, prod
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedstill.core.errors import RunError
from fedstill.core.task import Tensors

Format = Literal["update", "buffers", "work", "report", "statistics", "count"]
HALF = 2**63
Shape = tuple[int, ...]


@dataclass(frozen=True)
class FixedPoint:
    """A format: values within the clip, in steps of 2^-bits."""

    clip: float
    bits: int

    @property
    def largest(self) -> int:
        """No value becomes a larger number, also by rounding.

        >>> FixedPoint(clip=0.7, bits=8).largest, round(0.7 * 2**8)
        (180, 179)
        >>> FixedPoint(clip=0.3, bits=8).largest, round(0.3 * 2**8)
        (77, 77)
        """
        return ceil(self.clip * 2.0**self.bits)


# What a sum of `clients` with these weights needs is checked when a run is planned, and by each client.
FORMATS: dict[Format, FixedPoint] = {
    "update": FixedPoint(64.0, 32),  # of weights and control variates
    "buffers": FixedPoint(2.0**14, 24),  # updates of running statistics, which have the scale of activations
    "work": FixedPoint(2.0**18, 20),  # normalised steps
    "report": FixedPoint(2.0**14, 20),  # losses
    "statistics": FixedPoint(2.0**30, 24),  # sums over samples, unweighted
    "count": FixedPoint(2.0**40, 0),  # whole numbers, exact
}


@dataclass(frozen=True)
class Summand:
    """A line of what a client adds to the sums: tensors of its reply by name pattern, their format and weight.

    `update` is sent as the difference to the tensor of the same name in the request, as are `buffers`.
    """

    name: str
    format: Format
    weighted: bool = True  # by the client's weight (`Exchange.sum_weight`), else each client counts once


@dataclass(frozen=True)
class Sums:
    """What is known of the replies: how many there are, their total weight, and the weighted total of each tensor."""

    clients: int
    weight: int
    totals: Tensors

    def mean(self, name: str) -> Tensor:
        return self.totals[name] / self.weight


def declares_sums(kind: type) -> bool:
    """Whether sums suffice for a class: it says so in the class that defines its rule or weights, or further down.

    >>> class Mean:
    ...     from_sums = True
    ...     def rule(self): ...
    >>> class Median(Mean):
    ...     def rule(self): ...
    >>> declares_sums(Mean), declares_sums(Median), declares_sums(int)
    (True, False, False)
    """
    for one in kind.__mro__:
        if "from_sums" in vars(one):
            return bool(vars(one)["from_sums"])
        if {"rule", "aggregate", "weights"} & vars(one).keys():
            return False
    return False


def differences(summed: Sequence[Summand], request: Tensors, reply: Tensors) -> dict[str, Tensor]:
    """The declared tensors of a reply: updates as differences to what was sent, in double precision."""
    found = {}
    for name, tensor in reply.items():
        line = line_for(summed, name)
        if line is None:
            continue
        sent = request.get(name) if line.format in ("update", "buffers") else None
        value = tensor.double() if tensor.is_floating_point() else tensor
        found[name] = value if sent is None else value - sent.double()
    return found


def line_for(summed: Sequence[Summand], name: str) -> Summand | None:
    return next((line for line in summed if fnmatchcase(name, line.name)), None)


@dataclass(frozen=True)
class Layout:
    """The names of a sum in order, with their shapes and lines: where each is in the one vector that is sent."""

    shapes: Mapping[str, Shape]
    summed: Sequence[Summand]
    formats: Mapping[Format, FixedPoint]

    @property
    def length(self) -> int:
        return sum(prod(shape) for shape in self.shapes.values()) + len(_ALWAYS)

    def encoded(self, values: Tensors, weight: int, most: int) -> tuple[np.ndarray, int]:
        """The vector of a client with this weight in a sum of at most `most` clients, and how many values were clipped.

        The weight and the number of clipped values are part of the vector.
        """
        pieces, clipped = [], 0
        for name in self.names:
            line = self.line(name)
            scale = weight if line.weighted else 1
            whole, cut = to_integers(values[name], self.formats[line.format])
            check_range(self.formats[line.format], scale, most)
            pieces.append(whole.reshape(-1) * np.int64(scale))
            clipped += cut
        always = np.array([weight, clipped], dtype=np.int64)
        return np.concatenate([always, *pieces]).view(np.uint64), clipped

    def decoded(self, total: np.ndarray, clients: int) -> tuple[Sums, int]:
        """The sums in a vector that was added up over so many clients, and how many values were clipped."""
        signed, totals = total.view(np.int64), {}
        for name, where in self.pieces():
            bits = self.formats[self.line(name).format].bits
            piece = signed[where].reshape(self.shapes[name])
            totals[name] = torch.from_numpy(np.asarray(piece.astype(np.float64) / 2.0**bits) if bits else piece.copy())
        return Sums(clients, int(signed[0]), totals), int(signed[1])

    @property
    def names(self) -> list[str]:
        return sorted(self.shapes)

    def pieces(self) -> Iterator[tuple[str, slice]]:
        """Each name with its place in the vector."""
        place = len(_ALWAYS)
        for name in self.names:
            size = prod(self.shapes[name])
            yield name, slice(place, place + size)
            place += size

    def line(self, name: str) -> Summand:
        found = line_for(self.summed, name)
        assert found is not None, name
        return found


class SkipRound(Exception):  # noqa: N818 - not a fault
    """Raised in `aggregate`: what the clients sent does not suffice, and the round does not count."""


_ALWAYS = ("weight", "clipped")  # what every vector begins with


def to_integers(values: Tensor, form: FixedPoint) -> tuple[np.ndarray, int]:
    """Values as whole numbers of 2^-bits, rounded to the nearest, halves to even; and how many were clipped.

    >>> to_integers(torch.tensor([0.75, -0.3, 9.0]), FixedPoint(clip=2.0, bits=2))
    (array([ 3, -1,  8]), 1)
    """
    if not values.is_floating_point() and not form.bits:
        whole = values.numpy().astype(np.int64)
        kept = np.clip(whole, -form.largest, form.largest)
        return kept, int((kept != whole).sum())
    given = values.double().numpy()
    kept = np.clip(np.nan_to_num(given, nan=0.0, posinf=form.clip, neginf=-form.clip), -form.clip, form.clip)
    return np.rint(kept * 2.0**form.bits).astype(np.int64), int((kept != given).sum())


def check_range(form: FixedPoint, weight: int, most: int) -> None:
    """Refuse a weight with which the sum of `most` such clients could leave the range of the integers."""
    if weight < 0 or weight * form.largest * most >= HALF:
        raise RunError(
            f"a client of weight {weight} in a sum of {most} could overflow 64 bits with values up to {form.clip:g} and"
            f" {form.bits} fractional bits: set secure.bits lower"
        )


def added(vectors: Sequence[np.ndarray]) -> np.ndarray:
    """The sum of vectors modulo 2^64.

    >>> added([np.array([2**64 - 1], dtype=np.uint64), np.array([3], dtype=np.uint64)])
    array([2], dtype=uint64)
    """
    total = np.zeros_like(vectors[0])
    for vector in vectors:
        total += vector
    return total
