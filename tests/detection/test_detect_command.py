"""`fedstill detect`: boxes in scans of one's own, by a detector that has hardly learnt anything."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import trimesh

import fedstill
from fedstill.data.single_input import read_cloud
from fedstill.detection.rooms import make_rooms
from fedstill.detection.scene_sets import scene_bundle, some_scenes
from fedstill.engines import InProcess
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.plan import make_plan
from fedstill.runtime.result import Run
from fedstill.runtime.run import execute

Call = Callable[..., tuple[int, str, str]]
POINTS = 256


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    every = make_rooms(8, points=POINTS, seen=2)
    splits = {"train": some_scenes(every, torch.arange(6)), "test": some_scenes(every, torch.arange(6, 8))}
    training = {"epochs": 1, "batch": 3}
    given = {"method": "fedavg", "data": "few-rooms", "model": "small-detr3d-lite", "clients": 2, "rounds": 1}
    plan = make_plan(make_experiment({**given, "training": training}), bundle=scene_bundle("few-rooms", splits))
    with InProcess() as engine:
        return execute(plan, engine, tmp_path_factory.mktemp("runs")).path


@pytest.fixture
def scan(tmp_path: Path) -> np.ndarray:
    """A room of more points than the detector takes, in several formats."""
    points = make_rooms(1, points=600, first=20).points[0].numpy()
    np.save(tmp_path / "room.npy", points)
    np.savez(tmp_path / "room.npz", points=points)
    np.savetxt(tmp_path / "room.txt", points)
    trimesh.PointCloud(points).export(tmp_path / "room.ply")
    head = "FIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nPOINTS 600\nDATA binary\n"
    (tmp_path / "room.pcd").write_bytes(head.encode() + points.tobytes())
    (tmp_path / "room.bin").write_bytes(np.pad(points, ((0, 0), (0, 1))).tobytes())
    return points


@pytest.mark.usefixtures("scan")
@pytest.mark.parametrize("name", ["room.ply", "room.npy", "room.npz", "room.txt", "room.pcd", "room.bin"])
def test_boxes_are_those_the_task_finds(call: Call, run: Path, name: str) -> None:
    code, out, err = call("detect", str(run), name, "--least", "0", "--json")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert told["model"] == "small-detr3d-lite"
    assert told["units"].startswith("metres with z up")
    (scene,) = told["scenes"]
    assert (scene["file"], scene["points"]) == (name, POINTS)
    held = Run(run)
    cloud = read_cloud(Path(name), POINTS)[0].unsqueeze(0)
    (found,) = held.task.detect(held.model(), cloud)  # type: ignore[attr-defined]
    assert [box["score"] for box in scene["boxes"]] == [round(score, 4) for score in found.scores.tolist()]
    first = scene["boxes"][0]
    assert first["class"] == held.task.classes[int(found.classes[0])]
    assert [*first["centre"], *first["size"], first["heading"]] == pytest.approx(found.boxes[0].tolist(), abs=1e-3)
    assert [box["score"] for box in scene["boxes"]] == sorted((box["score"] for box in scene["boxes"]), reverse=True)


def test_neither_its_name_nor_a_few_missing_points_change_what_is_found(
    call: Call, run: Path, scan: np.ndarray
) -> None:
    np.save("other name.npy", scan)
    broken = np.insert(scan, 7, [np.nan, 0, 0], axis=0)
    np.save("broken.npy", broken)
    found = {}
    for name in ("room.npy", "other name.npy", "broken.npy"):
        code, out, err = call("detect", str(run), name, "--least", "0", "--json")
        assert code == 0
        found[name] = json.loads(out)["scenes"][0]["boxes"]
    assert err == "warning: broken.npy: 1 of 601 points left out, which has coordinates that are not finite\n"
    assert found["room.npy"] == found["other name.npy"] == found["broken.npy"]
    np.save("ruined.npy", np.where(np.arange(600)[:, None] < 60, np.nan, scan))
    code, out, err = call("detect", str(run), "ruined.npy")
    assert (code, out) == (2, "")
    assert "ruined.npy has points that are not finite numbers, 60 of 600: remove them, or export the scene again" in err


@pytest.mark.usefixtures("scan")
def test_files_are_written_and_the_score_is_kept_to(call: Call, run: Path) -> None:
    every = json.loads(call("detect", str(run), "room.ply", "--least", "0", "--json")[1])["scenes"][0]["boxes"]
    least = (every[0]["score"] + every[1]["score"]) / 2 if every[0]["score"] > every[1]["score"] else every[0]["score"]
    words = ("--out", "made/boxes.json", "--html", "made/view.html", "--least", str(least))
    code, out, _ = call("detect", str(run), "room.ply", *words)
    assert code == 0
    boxes = json.loads(Path("made/boxes.json").read_text())["scenes"][0]["boxes"]
    assert boxes == [box for box in every if box["score"] >= least]
    assert len(boxes) < len(every)
    lines = out.splitlines()
    assert lines[0].split()[:3] == ["class", "score", "centre"]
    assert lines[1].split()[0] == boxes[0]["class"]
    assert lines[-2:] == ["made/boxes.json", "made/view.html"]
    page = Path("made/view.html").read_text(encoding="utf-8")
    assert page.count('<canvas class="scene"') == 1
    assert "What is in room.ply" in page
    assert "metres" in page
    assert str(run) in page  # the command that makes it again


@pytest.mark.usefixtures("scan")
def test_folders_and_several_files(call: Call, run: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("no scan")
    told = json.loads(call("detect", str(run), ".", "room.npy", "--least", "0", "--json")[1])
    names = ["room.bin", "room.npy", "room.npz", "room.pcd", "room.ply", "room.txt", "room.npy"]
    assert [scene["file"] for scene in told["scenes"]] == names
    code, out, _ = call("detect", str(run), "room.npy", "room.txt", "--least", "1", "--html", "view.html")
    assert code == 0
    assert out.count("nothing with a score of at least 1; the surest was a ") == 2
    page = Path("view.html").read_text(encoding="utf-8")
    assert 'name="scene"' in page
    assert "nothing was found in two scans" in page


@pytest.mark.parametrize(("scale", "words"), [(1000.0, "millimetres"), (0.01, "unit size")])
def test_other_units_get_a_warning(call: Call, run: Path, scan: np.ndarray, scale: float, words: str) -> None:
    np.save("other.npy", scan * np.float32(scale))
    code, out, err = call("detect", str(run), "other.npy", "--json")
    assert code == 0
    said = " ".join(err.split())
    assert said.startswith("warning: other.npy is ")
    assert words in said
    assert words in json.loads(out)["scenes"][0]["warning"]


def test_bad_input_gets_a_sentence(call: Call, run: Path, scan: np.ndarray, tmp_path: Path) -> None:
    np.save("few.npy", scan[:20])
    (tmp_path / "empty").mkdir()
    (tmp_path / "picture.png").write_bytes(b"")
    (tmp_path / "torn.pcd").write_bytes((tmp_path / "room.pcd").read_bytes()[:60])
    (tmp_path / "scan.laz").write_bytes(b"LASF" + bytes(100) + bytes([129]) + bytes(200))
    (tmp_path / "notes.md").write_text("no scan")
    for words, sentence in {
        ("nowhere.ply",): "there is no file nowhere.ply",
        ("few.npy",): "few.npy has 20 points: a scene needs at least 64",
        ("empty",): "there is no scan in the folder empty",
        ("picture.png",): "picture.png is empty",
        ("torn.pcd",): "torn.pcd is no PCD file that can be read (it has 0 of 600 points)",
        ("scan.laz",): "scan.laz is damaged",
        ("notes.md",): "notes.md is no cloud: give .npz",
        ("room.npy", "--least", "30"): "--least is a score from 0 to 1, not 30",
        ("room.npy", "--out", "empty"): "empty is a folder: name a file in it",
        ("room.npy", "--which", "selected"): "has no selected model",
        ("room.npy", "--client", "0"): "client 0 has no model of its own",
    }.items():
        code, out, err = call("detect", str(run), *words)
        assert (code, out) == (2, ""), words
        assert sentence in " ".join(err.split()), words


@pytest.mark.usefixtures("scan")
def test_a_run_of_another_task_is_refused_and_predicting_points_here(call: Call, run: Path, tmp_path: Path) -> None:
    other = fedstill.run("fedavg", data="digits", clients=2, rounds=1, out=tmp_path / "runs", training={"epochs": 1})
    code, _, err = call("detect", str(other.path), "room.npy")
    assert code == 2
    assert "is no detector: its model cnn finds no boxes" in " ".join(err.split())
    code, _, err = call("predict", str(run), "room.npy")
    assert code == 2
    assert "fedstill detect" in " ".join(err.split())


def test_a_run_shows_its_map(call: Call, run: Path) -> None:
    code, out, _ = call("show", str(run))
    assert code == 0
    assert "mAP@0.25" in out.splitlines()[0]
    assert next(line for line in out.splitlines() if line.startswith("model")).split()[2:] == [
        *("mAP@0.25", "mAP@0.5", "AR@0.25", "AR@0.5")
    ]
    assert "accuracy" not in out
