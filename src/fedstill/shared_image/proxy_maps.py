"""Maps of the embeddings of selected samples: one for each run, early and late."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
from torch import Tensor

from fedstill.core.errors import InputError
from fedstill.core.files import write_atomically
from fedstill.core.numbers import share
from fedstill.report.static import words_as_they_are
from fedstill.report.thumbnails import Pictures
from fedstill.shared_image.embedding import Map, embedding_figure, tsne
from fedstill.shared_image.proxy_choice import Chosen
from fedstill.shared_image.shared_proxy import PATCHES

MOST = 9  # maximum number of maps in a figure


def draw_maps(every: Sequence[Chosen], names: Sequence[str], path: Path, pictures: bool = False, seed: int = 0) -> None:
    """A map of each model's samples, as a PNG; with `pictures`, of the samples themselves."""
    buffer = BytesIO()
    with words_as_they_are():
        figure = embedding_figure([_map(one, pictures, seed) for one in every], names)
        figure.savefig(buffer, format="png", dpi=160, facecolor="white")
    write_atomically(path, buffer.getvalue())


def check_picture(path: Path) -> None:
    """Refuse, before any work, a figure that cannot be written."""
    if path.suffix.lower() != ".png":
        raise InputError(f"cannot draw {path}: name a .png file")
    if not path.parent.is_dir():
        raise InputError(f"{path} cannot be written: there is no folder {path.parent}")


def _map(one: Chosen, pictures: bool, seed: int) -> Map:
    if pictures and one.kind == "cloud":
        raise InputError(f"{one.shared} is cut into clouds, which cannot be drawn that small: leave --patches out")
    score = [] if one.accuracy is None else [f"accuracy {share(one.accuracy, 1)}"]
    title = " · ".join([*([one.whose] if one.whose else []), f"round {one.rounds}", *score])
    shown = _pictures(one.inputs) if pictures else None
    return Map(tsne(one.embeddings, seed), one.classes, title, _samples(one), shown)


def _samples(one: Chosen) -> str:
    """A description of a map's samples.

    "500 of 10,000 patches of china", "267 of 5,000 samples of cifar10".
    """
    what = "patches" if one.shared.startswith(PATCHES) else "samples"
    return f"{len(one.rows):,} of {one.pool:,} {what} of {one.shared.removeprefix(PATCHES)}"


def _pictures(inputs: Tensor) -> Pictures:
    """(samples, height, width, channels) from 0 to 1: 8-bit images come as -1..1, others in their own range."""
    pixels: Pictures = inputs.float().numpy().transpose(0, 2, 3, 1)[..., :3]
    low, high = (-1.0, 1.0) if pixels.min() >= -1 and pixels.max() <= 1 else (float(pixels.min()), float(pixels.max()))
    scaled: Pictures = np.clip((pixels - low) / ((high - low) or 1.0), 0.0, 1.0).astype(np.float32)
    return scaled
