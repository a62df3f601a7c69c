"""Bad scenes and bad settings of detection: each is refused in one sentence that names a remedy, before any work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Call = Callable[..., tuple[int, str, str]]
BOX = [0.0, 0.0, 0.0, 0.5, 0.5, 0.5, 0.0]


def cloud(points: int = 100) -> Any:
    return np.random.default_rng(points).normal(size=(points, 3))


def scene(**changes: Any) -> dict[str, Any]:
    held = {"points": cloud(), "boxes": [BOX], "labels": [0], "classes": ["chair", "table"], **changes}
    return {name: array for name, array in held.items() if array is not None}


def with_value(value: float, rows: int) -> Any:
    made = cloud()
    made[:rows, 1] = value
    return made


# What the file train/a.npz holds, beside good ones; and the sentence.
FILES: dict[str, tuple[dict[str, Any] | bytes, str]] = {
    "no archive": (b"not an archive", "a.npz is no npz archive: fetch or write it again"),
    "empty file": (b"", "a.npz is empty"),
    "no boxes": (scene(boxes=None), "a.npz lacks 'boxes'; it holds"),
    "no labels": (scene(labels=None), "a.npz lacks 'labels'; it holds"),
    "no classes": (scene(classes=None), "a.npz lacks 'classes'; it holds"),
    "two coordinates": (scene(points=np.zeros((100, 2))), "a cloud must be (points, 3 or more), not (100, 2)"),
    "words for points": (scene(points=np.full((100, 3), "x")), "points must be numbers"),
    "few points": (scene(points=cloud(63)), "a.npz has 63 points: a scene needs at least 64"),
    "many NaN": (
        scene(points=with_value(np.nan, 6)),
        "points that are not finite numbers, 6 of 100: remove them, or export the scene again",
    ),
    "many infinite": (scene(points=with_value(np.inf, 50)), "points that are not finite numbers, 50 of 100: remove"),
    "six numbers": (scene(boxes=[BOX[:6]]), "1 boxes must be 7 numbers each, not (1, 6)"),
    "box is NaN": (scene(boxes=[[np.nan, *BOX[1:]]]), "box 0 has numbers that are not finite"),
    "negative size": (
        scene(boxes=[[*BOX[:3], -1, 1, 1, 0]]),
        "box 0 has sizes -1, 1, 1: all three must be above 0",
    ),
    "flat box": (scene(boxes=[[*BOX[:3], 1, 1, 0, 0]]), "box 0 has sizes 1, 1, 0: all three must be above 0"),
    "unknown class": (scene(labels=[2]), "box 0 is of class 2, and classes are 0 to 1"),
    "negative class": (scene(labels=[-1]), "box 0 is of class -1, and classes are 0 to 1"),
    "labels are fractions": (scene(labels=[0.5]), "labels must be whole numbers, not float64"),
    "more labels than boxes": (scene(labels=[0, 1]), "2 boxes must be 7 numbers each, not (1, 7)"),
    "a class twice": (scene(classes=["chair", "chair"]), "names a class twice: chair, chair"),
}


@pytest.fixture
def good(tmp_path: Path) -> Path:
    for split in ("train", "test"):
        (tmp_path / split).mkdir()
        for name in ("b", "c"):
            np.savez(tmp_path / split / name, **scene())
    return tmp_path


def refused(call: Call, *words: str) -> str:
    """What is printed, which is one sentence; nothing was begun."""
    code, out, errors = call("run", *words, "--out", "made")
    assert code == 2, errors
    assert out == ""
    assert len(errors.strip().splitlines()) == 1
    assert not Path("made").exists()
    return errors


@pytest.mark.parametrize("case", FILES)
def test_a_bad_file_is_named(case: str, call: Call, good: Path) -> None:
    held, sentence = FILES[case]
    path = good / "train" / "a.npz"
    if isinstance(held, bytes):
        path.write_bytes(held)
    else:
        np.savez(path, **held)
    said = refused(call, "fedavg", "--data", f"folder:{good}", "--clients", "2")
    assert sentence in said
    assert "a.npz" in said


FOLDERS: dict[str, tuple[dict[str, dict[str, Any]], str]] = {
    "nothing": ({}, "expected is"),
    "one scene": ({"a": scene()}, "a is all there is: nothing can be learned and tested on one room"),
    "no boxes to learn": (
        {"train/a": scene(boxes=[], labels=np.zeros(0, int)), "test/b": scene()},
        "has a box, so nothing can be learned: give scenes with boxes and labels",
    ),
    "no boxes to measure": (
        {"train/a": scene(), "test/b": scene(boxes=[], labels=np.zeros(0, int))},
        "has a box, so nothing can be measured: give scenes with boxes and labels",
    ),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_a_bad_folder_is_named(case: str, call: Call, tmp_path: Path) -> None:
    files, sentence = FOLDERS[case]
    folder = tmp_path / "scenes"
    folder.mkdir()
    for name, held in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        np.savez(folder / name, **held)
    assert sentence in refused(call, "fedavg", "--data", f"folder:{folder}", "--clients", "1")


# Settings on scenes that are good; the method is fed3d.
SETTINGS: dict[str, tuple[tuple[str, ...], str]] = {
    "protocol": (
        ("detection.protocol=lenient",),
        "detection.protocol: unknown choice 'lenient': known: published, strict",
    ),
    "setting of evaluation": (
        ("detection.protocl=strict",),
        "unknown setting 'detection.protocl': did you mean 'protocol'?",
    ),
    "few points": (("points=10",), "which need at least 64 points each, not 10"),
    "more points than there are": (("points=50000",), "of 100 points: 50,000 cannot be taken of each"),
    "no model of scenes": (("model=pointnet",), "which model 'pointnet' cannot find: choose one of detr3d"),
    "share of classes": (("partition=class-subset", "partition.share=0"), "partition.share: "),
    "scenes per client": (("partition=class-subset", "most=0"), "partition.most: "),
    "hidden boxes": (("partition=class-subset", "hide_others=maybe"), "partition.hide_others: "),
    "start of weights": (("initial_weight=two",), "method.initial_weight: unknown choice 'two': known: even, one"),
    "what is shared": (("method.share=heads",), "method.share: unknown choice 'heads': known:"),
    "turn": (("augmentation=scenes", "augmentation.turn=200"), "augmentation.turn: "),
    "refit": (("augmentation=scenes", "augmentation.refit=sometimes"), "augmentation.refit: "),
    "scales": (
        ("augmentation=scenes", "augmentation.scale_low=2"),
        "scale_low (2.0) must not be larger than scale_high (1.1)",
    ),
    "augmentation of images": (("augmentation=images",), "augmentation"),
    "a loss of one's own": (("training.precision=bf16",), "leave training.precision out"),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_a_bad_setting_is_named(case: str, call: Call, good: Path) -> None:
    given, sentence = SETTINGS[case]
    words = [word for setting in given for word in ("--set", setting)]
    assert sentence in refused(call, "fed3d", "--data", f"folder:{good}", "--clients", "2", *words)


CLASSIFIERS: dict[str, tuple[tuple[str, ...], str]] = {
    "protocol": (("fedavg", "--set", "detection.protocol=strict"), "detection is for models of detection, and cnn is"),
    "fed3d": (("fed3d",), "cnn is no detector: choose scenes and a model that finds boxes in them"),
    "hidden boxes": (
        ("fedavg", "--set", "partition=class-subset", "--set", "hide_others=true"),
        "these samples have none: leave partition.hide_others out",
    ),
    "augmentation of scenes": (("fedavg", "--set", "augmentation=scenes"), "scenes"),
    "detector": (("fedavg", "--model", "detr3d-lite"), "finds boxes in scenes, but digits has none"),
}


@pytest.mark.parametrize("case", CLASSIFIERS)
def test_settings_of_detection_are_refused_for_other_data(case: str, call: Call) -> None:
    words, sentence = CLASSIFIERS[case]
    assert sentence in refused(call, *words, "--data", "digits", "--clients", "2")
