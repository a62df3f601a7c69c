"""Arrays of the user's own in the layout of their kind: images (C, H, W), clouds (points, 3), or as they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedstill.core.errors import InputError, did_you_mean
from fedstill.data.clouds import normalise

_CHANNELS = (1, 3, 4)
_SMALLEST = 8  # side of an image
KINDS = ("image", "cloud", "signal", "array")
_STAY = 'say fedstill.dataset(..., kind="array") to leave them as they are'

Change = Literal["none", "channels first", "one channel", "normalise"]


@dataclass(frozen=True)
class Arrangement:
    """What is done to batches of samples, and what kind of data they then are."""

    kind: str
    change: Change = "none"
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, batch: Tensor, kind: str | None, name: str) -> Arrangement:
        """By the shape of samples, unless their kind is given.

        >>> [Arrangement.of(torch.zeros(5, *shape), None, "x").change for shape in [(28, 28, 3), (9,)]]
        ['channels first', 'none']
        """
        if kind is not None and kind not in KINDS:
            raise InputError(f"unknown kind of data {kind!r}: {did_you_mean(kind, KINDS)}")
        shape = tuple(batch.shape[1:])
        if not shape:
            raise InputError(f"samples of {name} are single numbers: give each a shape, e.g. x[:, None]")
        if 0 in shape:
            raise InputError(f"samples of {name} have the shape {shape} and hold nothing")
        if kind == "array":
            return cls("array")
        if kind == "signal":
            if len(shape) > 2:
                raise InputError(f"signals have the shape (channels, time), and samples of {name} have {shape}")
            return cls("signal", "one channel" if len(shape) == 1 else "none")
        normals = kind == "cloud" and len(shape) == 2 and shape[1] == 6
        if kind != "image" and len(shape) == 2 and (shape[1] == 3 or normals) and batch.dtype == torch.float32:
            note = f"{name}: samples of shape {shape} are taken for clouds, centred and scaled to radius 1; {_STAY}"
            return cls("cloud", "normalise", () if kind else (note,))
        if kind == "cloud":
            raise InputError(
                f"clouds have the shape (points, 3), or 6 with normals, and samples of {name} have {shape}"
            )
        if len(shape) == 3 and shape[0] in _CHANNELS and min(shape[1:]) > 1:
            return cls("image")
        if len(shape) == 3 and shape[2] in _CHANNELS and min(shape[:2]) > 1:
            note = f"{name}: images of shape {shape} are brought to (channels, height, width); {_STAY}"
            return cls("image", "channels first", () if kind else (note,))
        if len(shape) == 2 and (kind or min(shape) >= _SMALLEST):
            note = f"{name}: samples of shape {shape} are taken for images with one channel; {_STAY}"
            return cls("image", "one channel", () if kind else (note,))
        if kind == "image":
            raise InputError(f"images have the shape (channels, height, width), and samples of {name} have {shape}")
        return cls("array")

    def __call__(self, batch: Tensor) -> Tensor:
        if self.change == "channels first":
            return batch.movedim(3, 1).contiguous()
        if self.change == "one channel":
            return batch.unsqueeze(1)
        if self.change == "normalise":
            return torch.from_numpy(normalise(batch.numpy().copy()))
        return batch


def as_tensor(value: Any, name: str) -> Tensor:
    """Numbers as a tensor in memory: 8-bit integers stay, everything else becomes float32.

    >>> as_tensor([[1, 2]], "x").dtype, as_tensor(np.zeros(2, dtype=np.uint8), "x").dtype
    (torch.float32, torch.uint8)
    """
    if not isinstance(value, Tensor):
        array = as_array(value, f"samples of {name}")  # also of a picture
        if array.dtype.kind not in "biuf":
            raise InputError(
                f"samples of {name} are of type {array.dtype}: give numbers, in one array with the same shape for all"
            )
        if array.dtype not in (np.uint8, np.float32):
            with np.errstate(over="ignore"):  # infinity is refused where samples are looked at
                array = array.astype(np.float32)
        return torch.from_numpy(np.ascontiguousarray(array) if array.flags.writeable else array.copy())
    if value.is_complex() or value.layout != torch.strided or value.is_meta:
        where = f"{value.layout}, {value.device}"
        raise InputError(f"samples of {name} are of type {value.dtype} ({where}): give dense real numbers")
    tensor = value.detach().cpu()
    return tensor if tensor.dtype in (torch.uint8, torch.float32) else tensor.float()


def as_array(value: Any, what: str) -> np.ndarray[Any, Any]:
    """Nested lists, tensors or a picture as an array; refuses parts of different shapes."""
    if isinstance(value, list | tuple):
        value = [one.detach().cpu().numpy() if isinstance(one, Tensor) else one for one in value]
    try:
        return np.asarray(value)
    except ValueError:
        raise InputError(f"{what} differ in shape: give all the same") from None
