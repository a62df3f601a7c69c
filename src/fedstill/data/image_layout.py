"""Images of one size and number of channels, from files or arrays of other sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from fedstill.core.dataset import ArrayDataset, Dataset
from fedstill.core.errors import InputError
from fedstill.data.bundle import Bundle
from fedstill.data.data_settings import DataSettings, Fit
from fedstill.data.layout import Samples
from fedstill.data.readers.pictures import fitted

_GREY = np.array([299, 587, 114], dtype=np.float64) / 1000  # ITU-R 601, as Pillow converts colour to grey


def arrange(inputs: Tensor, settings: DataSettings, where: str) -> Tensor:
    """Images (N, C, H, W) in the size and channels of the settings; those that have both already are not copied."""
    channels = inputs.shape[1] if settings.channels is None else settings.channels
    inputs = _in_channels(inputs, channels, where)
    side = settings.size
    if side is None or tuple(inputs.shape[2:]) == (side, side):
        return inputs
    arranged = torch.empty(len(inputs), channels, side, side, dtype=inputs.dtype)
    for row, image in enumerate(inputs):
        for channel, plane in enumerate(image):
            arranged[row, channel] = torch.from_numpy(_plane(plane.numpy(), side, settings.fit))
    return arranged


def _plane(plane: NDArray[np.generic], side: int, fit: Fit) -> NDArray[np.generic]:
    return np.array(fitted(Image.fromarray(plane), (side, side), fit))


def _in_channels(inputs: Tensor, channels: int, where: str) -> Tensor:
    held = inputs.shape[1]
    if held == channels:
        return inputs
    if (held, channels) == (1, 3):
        return inputs.expand(-1, 3, -1, -1).contiguous()
    if (held, channels) == (3, 1):
        grey = torch.einsum("nchw,c->nhw", inputs.double(), torch.from_numpy(_GREY)).unsqueeze(1)
        return grey.round().to(torch.uint8) if inputs.dtype == torch.uint8 else grey.to(inputs.dtype)
    raise InputError(f"images have {held} channels, and channels={channels} is asked for ({where}): leave it out")


def arrange_samples(splits: Mapping[str, Samples], settings: DataSettings) -> None:
    """Bring the images of splits to the size and channels that are set; other kinds of data have neither."""
    for split in splits.values() if settings.normals else ():
        check_normals(split.kind, tuple(split.inputs.shape[1:]), split.where)
    if settings.size is None and settings.channels is None:
        return
    for split in splits.values():
        _refuse_others(split.kind, split.where)
        split.inputs = arrange(split.inputs, settings, split.where)


def check_normals(kind: str, shape: tuple[int, ...], where: str) -> None:
    """Refuse data that has no normals where they are asked for."""
    if kind != "cloud" or shape[1:] != (6,):
        held = f"{kind}s of shape {'x'.join(map(str, shape))}"
        raise InputError(
            f"normals=true is for clouds with six numbers per point, and {where} holds {held}: leave it out"
        )


def arranged(bundle: Bundle, settings: DataSettings) -> Bundle:
    """A data set in memory in the size and channels that are set, under its own name."""
    if bundle.name.endswith(settings.text()):  # a slice of files that were read so
        return bundle
    _refuse_others(bundle.kind, bundle.name)
    sets = {part: _dataset(data, settings, bundle.name) for part, data in bundle.splits().items()}
    shape = (settings.channels or bundle.shape[0], *([settings.size] * 2 if settings.size else bundle.shape[1:]))
    name = bundle.name + settings.text()
    return replace(
        bundle, name=name, train=sets["train"], validation=sets.get("validation"), test=sets["test"], shape=shape
    )


def _dataset(data: Dataset, settings: DataSettings, name: str) -> Dataset:
    if not isinstance(data, ArrayDataset):
        raise InputError(f"{name} is read when its samples are needed: let it give images of the size that you want")
    return ArrayDataset(**{**data.columns, "inputs": arrange(data.columns["inputs"], settings, name)})


def _refuse_others(kind: str, where: str) -> None:
    if kind != "image":
        raise InputError(f"size and channels are for images, and {where or 'this data'} holds {kind}s: leave them out")
