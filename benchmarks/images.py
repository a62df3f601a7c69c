"""Epochs over image files that are not all in memory, compared with torch's DataLoader and Pillow.

Both read the same JPEG files in the same random order, decode and crop them to squares, and give batches of floats. The
DataLoader has as many persistent worker processes as Fedstill has threads.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from benchmarks.report import DifferenceError, Findings, Row
from benchmarks.sizes import Size
from benchmarks.timing import Ratio, interleave
from fedstill.core.dataset import as_floats, read_ahead
from fedstill.data.lazy_images import LazyImages
from fedstill.data.readers.lazy_pixels import DecodedFiles, LazyPixels
from fedstill.data.readers.pictures import ImageForm, decode, fitted

SIDE, BATCH = 128, 32
FORM = ImageForm("RGB", (SIDE, SIDE), "crop")


class Files(Dataset[torch.Tensor]):
    """The usual data set of image files: opened, converted and cropped one by one."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, row: int) -> torch.Tensor:
        with Image.open(self.paths[row]) as image:
            pixels = np.array(fitted(image.convert("RGB"), (SIDE, SIDE), "crop"))
        return torch.from_numpy(pixels).permute(2, 0, 1)


def measure(size: Size, folder: Path) -> Findings:
    count = 800 if size.samples >= 6_000 else 8
    paths = write_photographs(folder, count)
    order = torch.from_numpy(np.random.default_rng(0).permutation(count))
    workers = len(os.sched_getaffinity(0))
    loader = DataLoader(
        Files(paths), BATCH, sampler=order.tolist(), num_workers=workers, persistent_workers=True, prefetch_factor=2
    )
    total = count * SIDE * SIDE * 3
    findings = Findings()
    for share in (0.0, 0.5):
        lazy = examined(paths, int(share * total))
        if not all(map(torch.equal, epoch(lazy, order), (as_floats(batch) for batch in loader))):
            raise DifferenceError("images that are read when needed differ from those of Pillow")
        ours, theirs = interleave(
            max(1, size.rounds // 2),
            lambda lazy=lazy: sum(len(batch) for batch in epoch(lazy, order)),
            lambda: sum(len(as_floats(batch)) for batch in loader),
        )
        held = sum(pixels.nbytes for pixels in lazy.pixels.files.held.values())
        note = f"{count} JPEG files of 400x300 to {SIDE}x{SIDE}, {workers} threads against {workers} processes"
        what = f"epoch over image files, {share:.0%} of them in memory, ours / DataLoader"
        findings.rows.append(Row(what, Ratio.of(ours, theirs), 1.0, note=note))
        if share:
            limit = Ratio.of([held / 1e6], [lazy.pixels.files.limit / 1e6])
            findings.rows.append(Row("decoded images in memory / limit", limit, 1.0, note=f"{held / 1e6:.1f} MB"))
    return findings


def write_photographs(folder: Path, count: int) -> list[Path]:
    """JPEG files with some detail."""
    draw = np.random.default_rng(0)
    paths = [folder / f"{number:04}.jpg" for number in range(count)]
    for path in paths:
        coarse = Image.fromarray(draw.integers(0, 256, (75, 100, 3), dtype=np.uint8))
        coarse.resize((400, 300), Image.Resampling.BICUBIC).save(path, quality=90)
    return paths


def examined(paths: list[Path], limit: int) -> LazyImages:
    """The files as a data set that may hold so many bytes of decoded images."""
    files = DecodedFiles(paths, FORM, limit)
    for row, path in enumerate(paths):
        files.first_seen(row, decode(path, FORM.mode, FORM.size, fit=FORM.fit))
    return LazyImages(LazyPixels(files), {})


def epoch(data: LazyImages, order: torch.Tensor) -> list[torch.Tensor]:
    """The batches of one epoch."""
    return [data.batch(rows)["inputs"] for rows in read_ahead(data, order.split(BATCH))]
