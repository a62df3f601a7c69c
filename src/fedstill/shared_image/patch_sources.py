"""The sources of patches, by name.

Images: `image:FILE`, any file that Pillow reads, by itself or under the data root; `china` and `flower`, which come
with scikit-learn; `skimage:NAME` where scikit-image is installed; `noise` or `noise:WIDTHxHEIGHT`.
Clouds: `cloud:FILE`, a scan or a mesh; `DATA:ROW`, a training sample of a data set, such as the built-in `heads:0`.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedstill.core.errors import InputError, did_you_mean
from fedstill.core.files import from_home
from fedstill.core.streams import Streams
from fedstill.data.readers.pictures import decode
from fedstill.data.readers.points import SUFFIXES, read_archive, read_shape
from fedstill.data.roots import data_root as root_of
from fedstill.data.unlabelled import load_proxy

Image = NDArray[np.uint8]

_SKLEARN = ("china", "flower")
# 8-bit images of scikit-image. Its module has functions that do other things, such as downloading gigabytes, and the
# name may come from a server.
_SKIMAGE = (
    *("astronaut", "brick", "camera", "cat", "cell", "chelsea", "clock", "coffee", "coins", "colorwheel"),
    *("grass", "gravel", "hubble_deep_field", "immunohistochemistry", "logo", "microaneurysms", "moon", "page"),
    *("retina", "rocket", "text"),
)
_IMAGES = ("image", "noise", "skimage")  # prefixes before a colon
_NOISE_SIDE = 512
_LARGEST_SIDE = 4096  # 50 MB
_SURFACE_POINTS = 20_000  # points sampled from a mesh, or from a larger cloud


def is_cloud_source(name: str) -> bool:
    """Whether a name refers to a cloud.

    >>> is_cloud_source("heads:0"), is_cloud_source("cloud:a.ply"), is_cloud_source("image:a.png")
    (True, True, False)
    """
    head, _, tail = name.rpartition(":")
    row = bool(head) and tail.isdecimal() and head.partition(":")[0] not in _IMAGES
    return name.startswith("cloud:") or row


def patch_source(name: str, data_root: Path | None = None) -> Image:
    """The image of that name: bytes, height x width x 3.

    >>> patch_source("noise:40x30").shape
    (30, 40, 3)
    """
    kind, _, rest = name.partition(":")
    if kind == "image" and rest:
        return decode(_found(rest, data_root), "RGB", alone=True)
    if name in _SKLEARN:
        from sklearn.datasets import load_sample_image

        return np.asarray(load_sample_image(f"{name}.jpg"), np.uint8)
    if kind == "skimage" and rest:
        return _from_skimage(rest)
    if kind == "noise":
        return _noise(rest, name)
    if is_cloud_source(name):
        raise InputError(f"{name} is a cloud, and an image is needed")
    known = did_you_mean(name, ("noise", *_SKLEARN))
    raise InputError(f"unknown image {name!r}: {known}; or give image:FILE, skimage:NAME or noise:WIDTHxHEIGHT")


def cloud_source(name: str, data_root: Path | None = None) -> NDArray[np.float32]:
    """The cloud of that name: points x 3.

    >>> cloud_source("heads:0").shape
    (2048, 3)
    """
    kind, _, rest = name.partition(":")
    if kind == "cloud" and rest:
        return _read_cloud(_found(rest, data_root))
    if not is_cloud_source(name):
        raise InputError(f"unknown cloud {name!r}: give cloud:FILE, or DATA:ROW for a sample of a data set")
    data, _, row = name.rpartition(":")
    bundle = load_proxy(data, data_root)
    if bundle.kind != "cloud":
        raise InputError(f"{data} holds {bundle.kind}s, and a cloud is needed")
    if int(row) >= len(bundle.train):
        raise InputError(f"{data} has {len(bundle.train):,} training samples, counted from 0: there is no {row}")
    cloud: NDArray[np.float32] = bundle.train.batch(torch.tensor([int(row)]))["inputs"][0].numpy()
    return cloud


def _found(name: str, data_root: Path | None) -> Path:
    path = from_home(name)
    for place in (path, root_of(data_root) / path):
        if place.is_file():
            return place
    raise InputError(f"there is no file {name}, neither here nor under the data root {root_of(data_root)}")


def _from_skimage(name: str) -> Image:
    if name not in _SKIMAGE:
        raise InputError(f"scikit-image comes with no picture {name!r}: {did_you_mean(name, _SKIMAGE)}")
    try:
        data = import_module("skimage.data")
    except ImportError:
        raise InputError(f"skimage:{name} needs scikit-image: install it with `pip install scikit-image`") from None
    try:
        found = np.asarray(getattr(data, name)())
    except Exception as error:  # an image that this version would have to download and cannot
        raise InputError(f"scikit-image has no picture {name!r} here ({' '.join(str(error).split())})") from None
    if found.dtype != np.uint8 or found.ndim not in (2, 3):
        raise InputError(f"skimage:{name} is no 8-bit picture: its data are {found.dtype} of shape {found.shape}")
    return np.repeat(found[:, :, None], 3, axis=2) if found.ndim == 2 else found[:, :, :3].copy()


def _noise(size: str, name: str) -> Image:
    match = re.fullmatch(r"(\d{1,5})x(\d{1,5})", size) if size else None
    if size and not match:
        raise InputError(f"{name} is no size: write noise:WIDTHxHEIGHT, such as noise:512x512")
    width, height = map(int, match.groups()) if match else (_NOISE_SIDE, _NOISE_SIDE)
    if not (1 <= width <= _LARGEST_SIDE and 1 <= height <= _LARGEST_SIDE):
        raise InputError(f"{name}: width and height must lie between 1 and {_LARGEST_SIDE:,}")
    total = height * width * 3
    words = Streams(0).draw("noise image").bit_generator.random_raw(-(-total // 8))
    return np.asarray(words).astype("<u8").view(np.uint8)[:total].reshape(height, width, 3)


def _read_cloud(path: Path) -> NDArray[np.float32]:
    if path.suffix.lower() == ".npz":
        return read_archive(path)
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"{path} is no cloud: give .npz, {', '.join(SUFFIXES)}")
    return read_shape(path, _SURFACE_POINTS, path.name)
