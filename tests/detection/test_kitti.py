"""KITTI's files: boxes by hand in the scanner's coordinates, what the camera sees, splits, and bad files."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fedstill.core.errors import InputError
from fedstill.data.catalogue import load
from fedstill.detection.kitti import CLASSES, Calibration, read_labels
from fedstill.detection.scenes import inside

Call = Callable[..., tuple[int, str, str]]

# A camera 1 m ahead of the scanner and 0.5 m below it: x right is -y, y down is -z, z forward is x.
CALIBRATION = (
    "P0: 1 0 0 0 0 1 0 0 0 0 1 0\n"
    "P2: 700 0 600 0 0 700 180 0 0 0 1 0\n"
    "R0_rect: 1 0 0 0 1 0 0 0 1\n"
    "Tr_velo_to_cam: 0 -1 0 0 0 0 -1 -0.5 1 0 0 -1\n"
)
# Type, truncation, occlusion, alpha, four numbers of the image, height, width, length, x, y, z, rotation_y.
CAR = "Car 0.00 0 -1.58 587 173 614 200 1.5 1.6 4.0 2.0 1.7 20.0 {turn}\n"
LABELS = CAR.format(turn=0) + "DontCare -1 -1 -10 503 169 590 190 -1 -1 -1 -1000 -1000 -1000 -10\n"


def frame(home: Path, name: str, labels: str = LABELS, calibration: str = CALIBRATION) -> None:
    for folder in ("velodyne", "label_2", "calib"):
        (home / folder).mkdir(parents=True, exist_ok=True)
    # In a wedge ahead of the car, and as many behind it, which the camera does not see.
    draw = np.random.default_rng(int(name))
    ahead = draw.uniform([5, -2, -2], [40, 2, 1], (100, 3))
    points = np.column_stack([np.concatenate([ahead, -ahead]), np.zeros(200)])
    points.astype("<f4").tofile(home / "velodyne" / f"{name}.bin")
    (home / "label_2" / f"{name}.txt").write_text(labels)
    (home / "calib" / f"{name}.txt").write_text(calibration)


@pytest.mark.parametrize(
    ("turn", "heading"),
    [(0.0, -math.pi / 2), (-math.pi / 2, 0.0), (math.pi / 2, math.pi), (0.3, -math.pi / 2 - 0.3)],
    ids=["faces right", "faces ahead", "faces the car", "turned to the right and back"],
)
def test_boxes_by_hand(turn: float, heading: float, tmp_path: Path) -> None:
    """Bottom centre 2 m right, 1.7 m below and 20 m ahead of the camera: in the scanner 21 ahead, 2 right, 2.2 below.

    The centre is half the height of 1.5 m higher: z = -2.2 + 0.75.
    """
    frame(tmp_path, "000000", CAR.format(turn=turn))
    boxes, classes = read_labels(tmp_path / "label_2/000000.txt", Calibration(tmp_path / "calib/000000.txt"))
    np.testing.assert_allclose(boxes[0, :6], [21, -2, -1.45, 4.0, 1.6, 1.5], atol=1e-9)
    assert math.cos(boxes[0, 6] - heading) == pytest.approx(1)
    assert [CLASSES[kind] for kind in classes] == ["Car"]


def test_the_corners_of_a_turned_box(tmp_path: Path) -> None:
    """Half the length along (cos, 0, -sin) from the centre in the camera's coordinates is the middle of the front."""
    turn = 0.7
    frame(tmp_path, "000000", CAR.format(turn=turn))
    calibration = Calibration(tmp_path / "calib/000000.txt")
    boxes, _ = read_labels(tmp_path / "label_2/000000.txt", calibration)
    camera = np.array([2.0 + 1.99 * math.cos(turn), 1.7 - 0.75, 20.0 - 1.99 * math.sin(turn)])
    scanner = np.array([camera[2] + 1, -camera[0], -camera[1] - 0.5])
    beyond = scanner + 0.05 * (scanner - boxes[0, :3])
    assert inside(np.array([scanner, beyond]), boxes).tolist() == [[True], [False]]


def test_scenes_of_a_folder(tmp_path: Path) -> None:
    for number in range(6):
        frame(tmp_path / "training", f"{number:06}")
    bundle = load(f"kitti:{tmp_path}")
    assert (bundle.kind, bundle.classes) == ("scene", CLASSES)
    assert (len(bundle.train), len(bundle.test)) == (5, 1)
    batch = bundle.train.batch(torch.arange(5))
    assert batch["labels"].tolist() == [[0]] * 5  # without DontCare
    assert float(batch["inputs"][..., 0].min()) >= 5  # nothing behind the camera
    assert load(f"folder:{tmp_path}").fingerprint() == load(f"folder:{tmp_path}").fingerprint()
    assert load(f"folder:{tmp_path}").kind == "scene"
    lists = tmp_path / "ImageSets"
    lists.mkdir()
    (lists / "train.txt").write_text("000000\n000003\n")
    (lists / "val.txt").write_text("000001\n000099\n")
    bundle = load(f"kitti:{tmp_path}")
    assert (len(bundle.train), len(bundle.test)) == (2, 1)
    assert "of 2 test frames 1 are here" in bundle.notes


def test_a_frame_without_objects_is_a_scene(tmp_path: Path) -> None:
    frame(tmp_path, "000000", "")
    boxes, classes = read_labels(tmp_path / "label_2/000000.txt", Calibration(tmp_path / "calib/000000.txt"))
    assert (boxes.shape, classes.shape) == ((0, 7), (0,))


BAD: dict[str, tuple[str, str]] = {
    "label_2: no number": (LABELS.replace("4.0", "long"), "line 1: a label is a class and 14 numbers"),
    "label_2: torn": (LABELS[:40], "line 1: a label is a class and 14 numbers"),
    "label_2: unknown": (LABELS.replace("Car", "Boat"), "line 1: unknown class 'Boat'"),
    "label_2: NaN": (LABELS.replace("20.0", "nan"), "has numbers that are not finite"),
    "label_2: no size": (LABELS.replace("4.0", "0"), "all three must be above 0"),
    "calib: empty": ("", "is empty"),
    "calib: without": (CALIBRATION.replace("R0_rect", "R_rect"), "needs a line R0_rect: with 9 numbers"),
    "calib: short": (CALIBRATION.replace(" -0.5 1 0 0 -1", ""), "needs a line Tr_velo_to_cam: with 12 numbers"),
    "calib: NaN": (CALIBRATION.replace("700", "nan"), "needs a line P2: with 12 numbers"),
    "calib: no rotation": (CALIBRATION.replace("R0_rect: 1", "R0_rect: 3"), "are no rotations"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_get_a_sentence(name: str, tmp_path: Path) -> None:
    for number in range(3):
        frame(tmp_path, f"{number:06}")
    content, sentence = BAD[name]
    folder = name.partition(":")[0]
    (tmp_path / folder / "000001.txt").write_text(content)
    with pytest.raises(InputError) as caught:
        load(f"kitti:{tmp_path}")
    assert f"{folder}/000001.txt" in str(caught.value)
    assert sentence in str(caught.value)


def test_missing_files_and_folders_get_a_sentence(call: Call, tmp_path: Path) -> None:
    for number in range(3):
        frame(tmp_path / "drive", f"{number:06}")
    (tmp_path / "drive" / "calib" / "000002.txt").unlink()
    (tmp_path / "drive" / "velodyne" / "000001.bin").write_bytes(b"1234567")
    (tmp_path / "drive" / "velodyne" / "000000.bin").write_bytes(np.full(400, np.nan, "<f4").tobytes())
    (tmp_path / "empty").mkdir()
    code, out, _ = call("data", "check", "kitti:drive")
    said = " ".join(out.split())
    assert code == 2
    assert "there is no file drive/calib/000002.txt" in said
    assert "7 bytes are no multiple of 16" in said
    assert "points that are not finite numbers" in said
    for words, sentence in {
        "kitti:nowhere": "nowhere does not exist",
        "kitti:empty": "empty holds no scenes",
        "rooms:empty": "unknown data set 'rooms:empty'",
    }.items():
        code, _, err = call("run", "fedavg", "--data", words, "--rounds", "1")
        assert code == 2
        assert sentence in " ".join(err.split())
