"""Validation of replies: a bad one is refused and recorded, and the round goes on without it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from fedstill.core.message import Message
from fedstill.core.protocols import Shape

NOT_FINITE = "holds numbers that are not finite"  # how such a reply's fault ends


def validate_reply(
    reply: Message,
    request: Message,
    expected: Mapping[str, tuple[Shape, torch.dtype]],
    norm_limit: float | None = None,
    update: str = "",
    optional: Sequence[str] = (),
) -> str | None:
    """What is wrong with a reply, in words; None if nothing is.

    `norm_limit` bounds the distance of all below the name `update` from what had been sent out. Names that match an
    `optional` pattern may be absent.
    """
    absent = {name for name in set(expected) - set(reply) if any(fnmatchcase(name, one) for one in optional)}
    if missing := sorted(set(expected) - set(reply) - absent):
        return f"lacks {_some(missing)}"
    if surplus := sorted(set(reply) - set(expected)):
        return f"holds {_some(surplus)}, which nobody asked for"
    for name, (shape, dtype) in sorted(expected.items()):
        if name in absent:
            continue
        tensor = reply[name]
        if tensor.dtype != dtype:
            return f"{name} has type {tensor.dtype}, not {dtype}"
        if not _fits(tuple(tensor.shape), shape):
            return f"{name} has shape {tuple(tensor.shape)}, not {shape}"
        if not all_finite(tensor):
            return f"{name} {NOT_FINITE}"
    if norm_limit is not None:
        norm = _distance(reply, request, update)
        if not norm <= norm_limit:
            return f"its update has norm {norm:.4g}, over the limit of {norm_limit:.4g}"
    return None


def all_finite(tensor: Tensor) -> bool:
    """A finite sum has finite terms; only where it is not (it may have overflowed) is every term looked at."""
    return not tensor.is_floating_point() or math.isfinite(tensor.sum()) or bool(tensor.isfinite().all())


def _distance(reply: Message, request: Message, update: str) -> float:
    squares = 0.0
    for name, tensor in reply.items():
        # Scalars that were not sent out are metrics, not part of an update.
        if name.startswith(update) and tensor.is_floating_point() and (name in request or tensor.ndim):
            change = tensor.double() - request[name].double() if name in request else tensor.double()
            squares += float(change.square().sum())
    return float(squares**0.5)


def _fits(shape: Shape, expected: Shape) -> bool:
    return len(shape) == len(expected) and all(want in (-1, size) for size, want in zip(shape, expected, strict=True))


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
