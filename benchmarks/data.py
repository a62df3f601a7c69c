"""Training images: MNIST if it is available, else synthetic images, so that no benchmark needs a download."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from fedstill.core.errors import InputError
from fedstill.data.catalogue import load
from fedstill.data.roots import VARIABLE

_SIDE, _CLASSES = 28, 10


def write_images(folder: Path, train: int, test: int = 1_000) -> tuple[Path, str]:
    """Write an archive with this many images; return its path and the kind of images.

    Benchmarks of whole processes pass their data as a file. Benchmarks of rounds start their clocks after it is read.
    """
    arrays = _mnist(train, test)
    kind = "synthetic" if arrays is None else "MNIST"
    path = folder / f"images-{train}.npz"
    np.savez(path, **(arrays or _synthetic(train, test)))
    return path, kind


def _mnist(train: int, test: int) -> dict[str, np.ndarray] | None:
    if not os.environ.get(VARIABLE):
        return None
    try:
        bundle = load("mnist")
    except InputError:
        return None
    arrays = {}
    for part, data, count in (("train", bundle.train, train), ("test", bundle.test, test)):
        if len(data) < count:
            return None
        arrays[f"x_{part}"] = data.columns["inputs"][:count, 0].numpy()
        arrays[f"y_{part}"] = data.columns["labels"][:count].numpy()
    return arrays


def _synthetic(train: int, test: int) -> dict[str, np.ndarray]:
    """A smooth pattern for each class, shifted and with strong noise: learnable, but not in one step."""
    generator = np.random.default_rng(0)
    coarse = generator.random((_CLASSES, 7, 7))
    patterns = np.kron(coarse, np.ones((4, 4))).astype(np.float32) * 255
    arrays = {}
    for part, count in (("train", train), ("test", test)):
        labels = generator.integers(0, _CLASSES, count)
        shifts = generator.integers(-2, 3, (count, 2))
        noise = generator.integers(0, 256, (count, _SIDE, _SIDE), dtype=np.uint8)
        images = np.empty_like(noise)
        for row, (label, shift) in enumerate(zip(labels, shifts, strict=True)):
            moved = np.roll(patterns[label], shift, axis=(0, 1))
            images[row] = 0.7 * moved + 0.3 * noise[row]
        arrays |= {f"x_{part}": images, f"y_{part}": labels}
    return arrays
