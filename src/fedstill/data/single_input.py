"""Reading of a single input from a file in the form a model expects, for predictions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedstill.core.dataset import ArrayDataset
from fedstill.core.errors import InputError
from fedstill.core.streams import Streams
from fedstill.data.clouds import SPARSE, normalise, sampled
from fedstill.data.data_settings import Fit
from fedstill.data.layout import as_numbers
from fedstill.data.readers.npz import lone_array
from fedstill.data.readers.pictures import decode
from fedstill.data.readers.point_normals import COLUMNS
from fedstill.data.readers.points import SHAPES, read_shape
from fedstill.data.readers.signal_files import as_length, read_signal
from fedstill.data.readers.stack import repeated
from fedstill.data.readers.whole_scans import read_scan

_SCAN = "scan"  # names the stream of every scan


def read_input(path: Path, shape: tuple[int, ...], fit: Fit = "resize", kind: str = "") -> Tensor:
    """One input in the form the model expects.

    An image is brought to the model's size, as the training images were, and to its colours; an array must have exactly
    the model's shape; a cloud or a mesh is normalised and sampled to the number of points of the training data, some of
    them repeated where it has fewer. What has points of three numbers is a cloud, unless it is of the `kind` signal; of
    six, if it is of the kind cloud.
    """
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    if len(shape) == 2 and kind == "signal":
        array = as_length(read_signal(path), shape, str(path))
    elif kind == "cloud" or (len(shape) == 2 and shape[1] == 3):
        array = _cloud(path, shape)
    elif path.suffix.lower() == ".npy":
        array = _array(path, shape)
    elif len(shape) != 3:
        raise InputError(
            f"{path}: this model reads numbers of the shape {shape}, prepared as its training data was: give them as"
            " an array of that shape (.npy)"
        )
    else:
        array = _picture(path, shape, fit)
    # The same path as training data, so that pixels are scaled in one place only.
    return ArrayDataset(inputs=torch.from_numpy(array).unsqueeze(0)).batch(torch.tensor([0]))["inputs"][0]


def read_cloud(path: Path, points: int, colour: bool = False) -> tuple[Tensor, str]:
    """This many points (points, 3) of a room scan, in metres and not normalised, for a detector; and a note.

    Reads scans of every supported format. Points are drawn from one stream for all scans, so the same content gives the
    same cloud, whatever the file is called; a scan with fewer points repeats some. The note says which points were left
    out because they are not finite. With `colour` points are (points, 6), and a scan without colours is refused.
    """
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    notes: list[str] = []
    every = read_scan(path, points, _SCAN, notes, colour)
    return torch.from_numpy(sampled(every, points, Streams(0).draw("scene points", _SCAN), path)), "; ".join(notes)


def _cloud(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    if path.suffix.lower() not in SHAPES:
        raise InputError(f"{path}: this model reads clouds of {shape[0]:,} points, given as {', '.join(SHAPES)}")
    cloud = read_shape(path, shape[0], path.name, normals=shape[1] == COLUMNS)
    if SPARSE * len(cloud) < shape[0]:
        raise InputError(f"{path} holds {len(cloud):,} points: this model needs {shape[0]:,}")
    return normalise(repeated(cloud, shape[0]))


def _array(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    array = lone_array(path)
    if array.shape == shape[1:] and shape[0] == 1:
        array = array[None]
    if array.shape != shape:
        raise InputError(f"{path} holds {array.dtype} of shape {array.shape}: one of shape {shape} is needed")
    array = as_numbers(array, str(path))
    if not np.isfinite(array).all():
        raise InputError(f"{path} holds numbers that are not finite")
    return array


def _picture(path: Path, shape: tuple[int, ...], fit: Fit) -> np.ndarray:
    channels, height, width = shape
    pixels = decode(path, "L" if channels == 1 else "RGB", (width, height), fit=fit)
    return pixels[None].copy() if channels == 1 else pixels.transpose(2, 0, 1).copy()
