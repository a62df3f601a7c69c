"""A pool of patches compared with the same pipeline in Pillow, one patch after another.

Pillow receives the drawn positions and colours, so that only its pixel operations are timed. Ours are timed with the
draws. Pillow reads each crop from the image and filters while it shrinks; the hue is shifted as in torchvision.
"""

from __future__ import annotations

from collections.abc import Callable
from math import cos, sin
from pathlib import Path
from statistics import median

import numpy as np
import torch
from PIL import Image, ImageEnhance

from benchmarks.report import DifferenceError, Findings, Row
from benchmarks.sizes import Size
from benchmarks.timing import Ratio, interleave
from fedstill.shared_image.patch_geometry import Placement, resized
from fedstill.shared_image.patches import Patches, PatchSettings, patch_source

SIDE = 32
SOURCES = {"china": "640 x 427 pixels", "noise:2560x1920": "the size of a photo"}
# Allowed mean difference in levels of 255: ours samples once from averages, Pillow filters and samples twice.
ALIKE = 8.0


def measure(size: Size, folder: Path) -> Findings:
    findings = Findings()
    whole, some = (10_000, 1_000) if size.samples >= 6_000 else (64, 16)
    for source, about in SOURCES.items():
        image = patch_source(source)
        first = Patches(image, (3, SIDE, SIDE), PatchSettings(count=whole))
        placed = first.place(torch.arange(some))
        step_by_step = _step_by_step(image, placed)
        apart = np.abs(step_by_step().astype(float) - first.pixels(torch.arange(some)).numpy()).mean()
        if source == "china" and apart > ALIKE:
            raise DifferenceError(f"patches differ from Pillow's by {apart:.1f} levels of 255 on average")

        def ours(image: np.ndarray = image) -> None:
            Patches(image, (3, SIDE, SIDE), PatchSettings(count=whole)).pixels(torch.arange(whole))

        made, theirs = interleave(max(1, size.rounds // 2), ours, step_by_step)
        name = f"patches of {source.partition(':')[0]}, {SIDE}x{SIDE}"
        note = f"{about}; {apart:.1f} levels of 255 apart on average"
        findings.rows.append(Row(f"{whole:,} {name}, seconds", Ratio.of(made, [1.0] * len(made)), 10, note=note))
        each = [seconds * whole / some for seconds in theirs]
        note = f"Pillow {1e3 * median(theirs) / some:.2g} ms a patch, ours {1e3 * median(made) / whole:.2g}"
        findings.rows.append(Row(f"{name}, Pillow / ours", Ratio.of(each, made), 5, "higher", note))
    return findings


def _step_by_step(image: np.ndarray, placed: Placement) -> Callable[[], np.ndarray]:
    picture = Image.fromarray(image)
    return lambda: np.stack([pillow_patch(picture, placed, number) for number in range(len(placed.left))])


def pillow_patch(picture: Image.Image, placed: Placement, number: int) -> np.ndarray:
    """One patch (3, height, width)."""
    wide, left, top = resized(SIDE), placed.left[number], placed.top[number]
    box = (left, top, left + placed.width[number], top + placed.height[number])
    patch = picture.resize((wide, wide), Image.Resampling.BILINEAR, box=box)
    sine, cosine, slope = sin(placed.angle[number]), cos(placed.angle[number]), placed.slope[number]
    a, b, d, e, middle = cosine - slope * sine, sine + slope * cosine, -sine, cosine, wide / 2
    inverse = (a, b, middle - a * middle - b * middle, d, e, middle - d * middle - e * middle)
    patch = patch.transform((wide, wide), Image.Transform.AFFINE, inverse, Image.Resampling.BILINEAR)
    edge = (wide - SIDE) // 2
    patch = patch.crop((edge, edge, edge + SIDE, edge + SIDE))
    if placed.mirror[number] < 0:
        patch = patch.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if placed.coloured[number]:
        brightness, contrast, saturation, hue = placed.colours[number]
        patch = ImageEnhance.Brightness(patch).enhance(brightness)
        patch = ImageEnhance.Contrast(patch).enhance(contrast)
        patch = ImageEnhance.Color(patch).enhance(saturation)
        parts = np.array(patch.convert("HSV"))
        parts[..., 0] += np.uint8(int(hue * 255) % 256)
        patch = Image.fromarray(parts, "HSV").convert("RGB")
    return np.asarray(patch).transpose(2, 0, 1)
