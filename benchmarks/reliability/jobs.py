"""The commands of the crash tests: a small one of each kind that runs for a while."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import yaml

from fedstill.detection.rooms import make_rooms
from fedstill.runtime.launch import run

OUT = "runs"  # the output folder that is compared, relative to the working folder of the job

# What is killed: the process with all its children; the process alone, whose workers must then end; one worker.
Target = Literal["everything", "the command", "a worker"]


@dataclass(frozen=True)
class Job:
    """A command and how it is killed; after the death of a worker the command itself must still end well."""

    name: str
    words: tuple[str, ...]
    targets: tuple[Target, ...] = ("everything",)
    epochs: int = 0  # number of commits of a command without a journal


def make_jobs(folder: Path) -> list[Job]:
    """Write the input files of the commands to a folder, and return the commands."""
    folder.mkdir(parents=True)
    images = f"npz:{_images(folder / 'images.npz')}"
    scenes = f"folder:{_scenes(folder / 'scenes')}"
    teacher = run(
        {"method": "centralised", "data": images, "model": "cnn", "rounds": 2, "training": {"batch": 32}},
        out=folder / "teacher",
    )
    study = _study(folder / "small.yaml", images)
    short = ("--set", "training.epochs=1", "--set", "training.batch=32")
    plain = ("--data", images, "--clients", "4", *short, "--quiet")
    some = ("--participation", "random:number=3", "--set", "dropout=0.2")
    detector = ("--model", "small-detr3d-lite", "--set", "points=256", "--quiet")
    two = ("--engine", "processes", "--workers", "2")
    both: tuple[Target, ...] = ("everything", "the command")
    return [
        Job("fedavg", ("run", "fedavg", *plain, *some, "--model", "cnn-bn", "--rounds", "10", *_set("validation=0.2"))),
        Job("scaffold", ("run", "scaffold", *plain, *some, "--model", "cnn", "--rounds", "14")),
        Job("ditto, with batteries", ("run", "ditto", *plain, "--model", "cnn", "--rounds", "6", *_fleet())),
        Job("fedgkt", ("run", "fedgkt", *plain, "--model", "cnn-bn", "--rounds", "8")),
        Job("feddf", ("run", "feddf", *plain, "--model", "cnn", "--rounds", "4", *_proxy(images))),
        Job("qkt", ("run", "qkt", *plain, "--model", "cnn", *_queries(), *_set("training.epochs=8"))),
        Job("fed3d", ("run", "fed3d", "--data", scenes, "--clients", "2", "--rounds", "4", *short, *detector)),
        Job("fedavg, 2 processes", ("run", "fedavg", *plain, *two, "--model", "cnn", "--rounds", "16"), both),
        Job("distill", ("distill", *_teacher(teacher.path), "--epochs", "20", "--quiet")),
        Job("pretrain", ("pretrain", scenes, *detector, *_encoder(), "--epochs", "8"), epochs=8),
        Job("study", ("study", study, "--quiet", *_results())),
        Job("study, 2 workers", ("study", study, "--workers", "2", "--quiet", *_results()), both),
        Job("study, a worker", ("study", study, "--workers", "2", "--quiet", *_results()), ("a worker",)),
        Job("fedavg, a worker", ("run", "fedavg", *plain, *two, "--model", "cnn", "--rounds", "16"), ("a worker",)),
    ]


def _set(*settings: str) -> tuple[str, ...]:
    return tuple(word for setting in settings for word in ("--set", setting))


def _fleet() -> tuple[str, ...]:
    dropout = ("--participation", "random:number=2", "--dropout", "independent:rate=0.3,when=during,replace=true")
    return (*dropout, *_set("fleet.plugged=0.5", "clusters.number=2", "training.keep_optimiser=true"))


def _proxy(images: str) -> tuple[str, ...]:
    return _set(f"method.proxy={images}", "method.samples=50", "method.steps=20")


def _queries() -> tuple[str, ...]:
    return ("--partition", "pathological:classes_per_client=2", "--query", "0:3", "--query", "1:0")


def _teacher(path: Path) -> tuple[str, ...]:
    return ("--teacher", str(path), "--student", "mlp", *_set("training.batch=32"))


def _encoder() -> tuple[str, ...]:
    return ("--out", f"{OUT}/encoder.safetensors")


def _results() -> tuple[str, ...]:
    return ("--results", f"{OUT}/results.json")


def _images(path: Path) -> Path:
    """A pattern with strong noise for each of four classes, so that the best round changes during training."""
    generator = np.random.default_rng(0)
    patterns = generator.random((4, 8, 8)) * 255
    arrays = {}
    for part, count in (("train", 400), ("test", 100)):
        labels = generator.integers(0, 4, count)
        noise = generator.integers(0, 256, (count, 8, 8))
        arrays |= {f"x_{part}": (0.25 * patterns[labels] + 0.75 * noise).astype(np.uint8), f"y_{part}": labels}
    np.savez(path, **arrays)
    return path


def _scenes(folder: Path) -> Path:
    """Eight furnished rooms for training and two for testing, one file each."""
    made = make_rooms(10, points=512, seen=4)
    for number, (points, boxes, labels) in enumerate(zip(made.points, made.boxes, made.classes, strict=True)):
        path = folder / ("train" if number < 8 else "test") / f"{number}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        real = labels >= 0
        np.savez(path, points=points, boxes=boxes[real], labels=labels[real], classes=np.array(made.class_names))
    return folder


def _study(path: Path, images: str) -> str:
    """Two teachers of different methods with four students each."""
    experiment = {"data": images, "model": "cnn", "clients": 2, "rounds": 6, "training": {"epochs": 1, "batch": 32}}
    students = {
        "experiment": {"model": "mlp", "rounds": 6, "training": {"batch": 32}},
        "grid": {"objective": ["vanilla", "feature"], "labels": ["use", "no-ce"]},
    }
    recipe = {
        "about": "A study for the crash tests.",
        "experiment": experiment,
        "grid": {"method": ["fedavg", "scaffold"]},
        "students": students,
    }
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    return str(path)
