"""The data of the experiments, written into the folder in which they run. Nothing here depends on the package."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

TRAIN, TEST = 300, 100
CLASSES = ["ball", "crate", "pipe"]


def write_files(folder: Path) -> None:
    _digits(folder)
    _clouds(folder)
    _scenes(folder)
    (folder / "losses.csv").write_text("round,client,when,fraction\n1,1,before,\n1,3,during,0.5\n2,0,after,\n2,2,,\n")


def _digits(folder: Path) -> None:
    found = load_digits()
    pictures, labels = (found.images * 15).astype(np.uint8), found.target.astype(np.int64)
    np.savez(
        folder / "digits.npz",
        x_train=pictures[:TRAIN],
        y_train=labels[:TRAIN],
        x_test=pictures[TRAIN : TRAIN + TEST],
        y_test=labels[TRAIN : TRAIN + TEST],
    )
    for name, picture in zip(("first.npy", "second.npy"), pictures[-2:], strict=True):
        np.save(folder / name, picture)


def _clouds(folder: Path) -> None:
    """Clouds of 96 points on balls, crates and pipes, each stretched a little."""
    draw = np.random.Generator(np.random.PCG64(17))
    clouds, labels = [], []
    for number in range(60):
        points = draw.uniform(-1, 1, (96, 3))
        if number % 3 == 0:
            points /= np.abs(points).sum(axis=1, keepdims=True)
        elif number % 3 == 1:
            points /= np.abs(points).max(axis=1, keepdims=True)
        else:
            points[:, :2] /= np.abs(points[:, :2]).max(axis=1, keepdims=True)
        clouds.append(points * draw.uniform(0.8, 1.2, (1, 3)))
        labels.append(number % 3)
    every, said = np.stack(clouds).astype(np.float32), np.array(labels)
    np.savez(
        folder / "clouds.npz",
        x_train=every[:42],
        y_train=said[:42],
        x_test=every[42:],
        y_test=said[42:],
        classes=np.array(CLASSES),
    )


def _scenes(folder: Path) -> None:
    """Rooms of 256 points, half of them on two or three boxes."""
    draw = np.random.Generator(np.random.PCG64(23))
    for split, count in (("train", 8), ("test", 3)):
        (folder / "scenes" / split).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            boxes, labels = [], []
            points = [draw.uniform((0, 0, 0), (4, 4, 0.05), (128, 3))]
            for each in range(2 + number % 2):
                size, kind = draw.uniform(0.4, 1.2, 3), (number + each) % len(CLASSES)
                centre = np.append(draw.uniform(0.7, 3.3, 2), size[2] / 2)
                surface = draw.uniform(-1, 1, (64, 3))
                surface /= np.abs(surface).max(axis=1, keepdims=True)
                points.append(centre + surface * size / 2)
                boxes.append([*centre, *size, 0.0])
                labels.append(kind)
            cloud = np.concatenate(points)[:256].astype(np.float32)
            np.savez(
                folder / "scenes" / split / f"scene-{number}.npz",
                points=cloud,
                boxes=np.array(boxes, dtype=np.float32),
                labels=np.array(labels),
                classes=np.array(CLASSES),
            )
