"""A data set as notebooks show it: classes, samples, shape and, of images, the first few."""

from __future__ import annotations

from base64 import b64encode
from io import BytesIO
from typing import TYPE_CHECKING

import torch
from markupsafe import Markup
from PIL import Image
from torch import Tensor

from fedstill.core.notebook import panel, picture

if TYPE_CHECKING:
    from fedstill.data.bundle import Bundle

_CLASSES = 12  # so many are named
_PICTURES = 8
_SIDE = 48  # pixels of a picture on the screen


def bundle_panel(bundle: Bundle) -> str:
    named = ", ".join(bundle.classes[:_CLASSES]) + (", …" if len(bundle.classes) > _CLASSES else "")
    facts = {
        "classes": f"{len(bundle.classes)}: {named}",
        "samples": ", ".join(f"{len(data):,} {split}" for split, data in bundle.splits().items()),
        "shape": f"{bundle.kind}, {' × '.join(map(str, bundle.shape))}",  # noqa: RUF001 (a product)
    }
    pictures = Markup().join(_pictures(bundle)) if bundle.kind == "image" and bundle.shape[0] in (1, 3) else Markup()
    return panel(bundle.name, facts, pictures)


def _pictures(bundle: Bundle) -> list[Markup]:
    rows = torch.arange(min(_PICTURES, len(bundle.train)))
    batch = bundle.train.batch(rows)
    labels = batch["labels"].tolist() if "labels" in batch else [None] * len(rows)
    names = ["" if label is None else bundle.classes[int(label)] for label in labels]
    return [picture(_png(image), _SIDE, name) for image, name in zip(batch["inputs"], names, strict=True)]


def _png(image: Tensor) -> str:
    """An image as models get it, from -1 to 1, no larger than it is shown on fine screens."""
    levels = image.add(1).mul(127.5).clamp(0, 255).to(torch.uint8).permute(1, 2, 0)
    drawn = Image.fromarray(levels.squeeze(2).numpy())
    drawn.thumbnail((2 * _SIDE, 2 * _SIDE))
    buffer = BytesIO()
    drawn.save(buffer, format="PNG")
    return b64encode(buffer.getvalue()).decode()
