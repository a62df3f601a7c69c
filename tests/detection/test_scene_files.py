"""Scenes from files by name: layouts, splits, names of one's own, and one sentence for whatever is wrong."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any
from weakref import ref

import numpy as np
import pytest
import torch

from fedstill.core.dataset import ArrayDataset, Subset, has_boxes
from fedstill.core.errors import InputError
from fedstill.core.streams import Streams
from fedstill.data.bundle import Bundle, datasets
from fedstill.data.catalogue import add, available, check, load
from fedstill.data.readers.raw import FileFindings
from fedstill.data.site_archive import Shard
from fedstill.detection import scene_archives
from fedstill.detection.rooms import make_rooms
from fedstill.detection.scene_sets import scene_bundle

CHAIR = [1.0, 2.0, 0.5, 0.4, 0.6, 1.0]  # centre and sizes


def cloud(points: int = 100, columns: int = 6, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(points, columns)).astype(np.float32)


def scannet(folder: Path, *names: str) -> Path:
    """Scans with one chair each."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names):
        np.save(folder / f"{name}_vert.npy", cloud(seed=number))
        np.save(folder / f"{name}_bbox.npy", np.array([[*CHAIR, 5]]))
    return folder


def sunrgbd(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names):
        np.savez(folder / f"{name}_pc.npz", pc=cloud(seed=number))
        np.save(folder / f"{name}_bbox.npy", np.array([[*CHAIR, 0.3, 3]]))
    return folder


def archive(
    path: Path, classes: tuple[str, ...] = ("chair", "table"), held: tuple[int, ...] = (0,), **other: Any
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {
        "points": cloud(seed=len(path.stem)),
        "boxes": np.array([[*CHAIR, 0.5]] * len(held)).reshape(-1, 7),
        "labels": np.array(held, np.int64),
        "classes": np.array(classes),
    }
    np.savez(path, **{key: value for key, value in (arrays | other).items() if value is not None})
    return path


def scenes(folder: Path, count: int = 5) -> Path:
    for number in range(count):
        archive(folder / f"{'s' * (number + 1)}.npz", held=(number % 2,))
    return folder


def test_scannet_with_its_lists(tmp_path: Path) -> None:
    """Lists lie beside the folder of scans, and name scans that are not here; val is what one tests on."""
    scannet(tmp_path / "scannet" / "scannet_train_detection_data", "scene0000_00", "scene0001_00", "scene0002_00")
    meta = tmp_path / "scannet" / "meta_data"
    meta.mkdir()
    (meta / "scannetv2_train.txt").write_text("scene0002_00\nscene0000_00\nscene0009_00\n")
    (meta / "scannetv2_val.txt").write_text("scene0001_00\n")
    bundle = load("scannet", tmp_path)
    assert (bundle.kind, bundle.shape, len(bundle.classes)) == ("scene", (20_000, 3), 18)
    assert (len(bundle.train), len(bundle.test)) == (2, 1)
    assert bundle.notes == ("of 3 train scans 2 are here",)
    assert bundle.train.labels().tolist() == [[2], [2]]
    assert has_boxes(bundle.train)
    entry = next(entry for entry in available(tmp_path) if entry.name == "scannet")
    assert entry.found
    direct = load("scannet", path=tmp_path / "scannet" / "scannet_train_detection_data")
    assert direct.fingerprint() == bundle.fingerprint()
    (meta / "scannetv2_val.txt").write_text("scene0077_00\n")
    with pytest.raises(InputError, match="there is no test split"):
        load("scannet", tmp_path)


def test_scannet_without_lists_keeps_the_scans_of_a_room_together(tmp_path: Path) -> None:
    """Six rooms of two scans: the third is held out, with both."""
    names = [f"scene000{room}_0{scan}" for room in range(6) for scan in range(2)]
    scannet(tmp_path / "scannet", *names)
    bundle = load("scannet", tmp_path)
    assert (len(bundle.train), len(bundle.test)) == (10, 2)
    assert bundle.notes == ("the files have no split: every fifth room is held out for testing",)
    clouds = {row.tobytes() for row in bundle.test.columns["inputs"].numpy()}
    whole = load("scannet", path=scannet(tmp_path / "two", *names[:6]))
    assert len(whole.test) == 2  # scene0002_00 and scene0002_01 again
    assert {row.tobytes() for row in whole.test.columns["inputs"].numpy()} == clouds


def test_sunrgbd_by_folders(tmp_path: Path) -> None:
    home = tmp_path / "sunrgbd"
    sunrgbd(home / "sunrgbd_pc_bbox_votes_50k_v1_train", "000003", "000004")
    sunrgbd(home / "sunrgbd_pc_bbox_votes_50k_v1_val", "000001")
    sunrgbd(home / "sunrgbd_pc_bbox_votes_50k_v2_val", "000001", "000002")
    bundle = load("sunrgbd", tmp_path)
    assert (len(bundle.train), len(bundle.test), len(bundle.classes)) == (2, 1, 10)
    assert "v2_val is left out: sunrgbd_pc_bbox_votes_50k_v1_val is used" in bundle.notes[0]
    assert bundle.test.columns["boxes"][0, 0].tolist() == pytest.approx([1, 2, 0.5, 0.8, 1.2, 2.0, -0.3])
    alone = load("sunrgbd", path=sunrgbd(tmp_path / "all", *(f"{number:06d}" for number in range(7))))
    assert (len(alone.train), len(alone.test)) == (6, 1)


def test_archives_of_different_classes(tmp_path: Path) -> None:
    """Classes are counted in the order in which files name them: chair, table, bed, and again chair."""
    home = tmp_path / "scenes"
    archive(home / "a.npz", ("chair", "table"), (1, 0))
    archive(home / "bb.npz", ("bed", "chair"), (0, 1, 1), points=cloud(150, 4))
    archive(home / "ccc.npz", ("chair", "table"), ())
    bundle = load("scenes", tmp_path)
    assert bundle.classes == ("chair", "table", "bed")
    assert bundle.train.labels().tolist() == [[1, 0, -1], [2, 0, 0]]
    assert bundle.test.labels().tolist() == [[-1, -1, -1]]
    assert bundle.shape == (150, 3)  # as many as the largest has: of the others some come twice
    assert len(bundle.train.columns["inputs"][0].unique(dim=0)) == 100
    assert bundle.notes[0] == "files name different classes: together they are 3"
    assert bundle.train.columns["boxes"][1, 0].tolist() == pytest.approx([*CHAIR, 0.5])
    report = check("scenes", root=tmp_path)
    assert (report.counted, report.counts["train"], report.usable) == ("boxes", (3, 1, 1), True)
    assert "no test scene has a box of 'chair', 'table', 'bed'" in report.problems[0]
    assert report.fingerprint == bundle.fingerprint()


def test_archives_in_folders_by_split(tmp_path: Path) -> None:
    home = tmp_path / "mine"
    scenes(home / "train", 3)
    scenes(home / "val", 2)
    assert (len(load(f"folder:{home}").train), len(load(f"folder:{home}").test)) == (3, 2)
    scenes(home / "test", 1)
    bundle = load(f"folder:{home}")
    assert bundle.validation is not None
    assert [len(data) for data in bundle.splits().values()] == [3, 2, 1]


def test_two_folders_of_scenes_for_one_split_are_a_fault(tmp_path: Path) -> None:
    for place in ("train", "val", "valid"):
        scenes(tmp_path / "mine" / place, 2)
    with pytest.raises(InputError, match="mine has several folders of validation data, val and valid: make them one"):
        load(f"folder:{tmp_path / 'mine'}")


def test_large_scans_are_cut_one_by_one_to_the_points_of_their_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Points are those that a permutation of the scan's own stream begins with; one whole scan is kept at a time."""
    clouds = {name: cloud(points, 4, seed) for seed, (name, points) in enumerate([("a", 300), ("b", 90), ("c", 250)])}
    paths = [archive(tmp_path / f"{name}.npz", points=points) for name, points in clouds.items()]
    whole: list[ref[Any]] = []
    read = scene_archives._read

    def watched(path: Path) -> Any:
        assert sum(points() is not None for points in whole) <= 1
        scene, *more = read(path)
        whole.extend([ref(scene.points)] if len(scene.points) >= 200 else [])
        return scene, *more

    monkeypatch.setattr(scene_archives, "_read", watched)
    found = scene_archives.read_archives({"whole": [paths[0], paths[2], paths[1]]}, FileFindings(), points=200)["whole"]
    assert found.points.shape == (3, 200, 3)
    for row, name in enumerate("ac"):
        order = Streams(0).draw("scene points", name).permutation(len(clouds[name]))[:200]
        assert torch.equal(found.points[row], torch.from_numpy(clouds[name][order, :3]).float())
    assert len(found.points[2].unique(dim=0)) == 90


def test_scenes_of_ones_own_can_have_a_name(tmp_path: Path) -> None:
    scenes(tmp_path / "flat")
    root = tmp_path / "root"
    bundle = add("flat", tmp_path / "flat", root)
    assert (bundle.kind, len(bundle.train)) == ("scene", 4)
    again = load("flat", root)
    assert again.fingerprint() == bundle.fingerprint() == load(f"folder:{tmp_path / 'flat'}").fingerprint()
    assert len(load("flat[:50%]", root).train) == 2
    assert check("flat", root=root).usable
    assert add("scenes", tmp_path / "flat", root).fingerprint() == bundle.fingerprint()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"boxes": np.array([[0, 0, 0, 1, 0, 1, 0.0]])},
            r"bad.npz: box 0 has sizes 1, 0, 1: all three must be above 0",
        ),
        ({"boxes": np.array([[0, 0, 0, 1, 1, -2, 0.0]])}, r"bad.npz: box 0 has sizes 1, 1, -2"),
        ({"boxes": np.array([[*CHAIR, np.nan]])}, r"bad.npz: box 0 has numbers that are not finite"),
        ({"boxes": np.zeros((1, 6))}, r"bad.npz: 1 boxes must be 7 numbers each, not \(1, 6\)"),
        ({"boxes": np.array(["a box"])}, r"bad.npz: boxes must be numbers, not <U5"),
        ({"labels": np.array([2])}, r"bad.npz: box 0 is of class 2, and classes are 0 to 1"),
        ({"labels": np.array([-1])}, r"bad.npz: box 0 is of class -1, and classes are 0 to 1"),
        ({"labels": np.array([0.5])}, r"bad.npz: labels must be whole numbers, not float64"),
        ({"labels": np.array([0, 1])}, r"bad.npz: 2 boxes must be 7 numbers each, not \(1, 7\)"),
        ({"labels": None}, r"bad.npz lacks 'labels'; it holds boxes, classes, points"),
        ({"classes": np.array(["chair", "chair"])}, r"bad.npz names a class twice: chair, chair"),
        ({"points": cloud(63)}, r"bad.npz has 63 points: a scene needs at least 64"),
        ({"points": cloud(100, 2)}, r"bad.npz: a cloud must be \(points, 3 or more\), not \(100, 2\)"),
        ({"points": np.full((100, 3), np.inf)}, r"bad.npz has points that are not finite"),
        ({"points": np.array([{}] * 100)}, r"'points' in .*bad.npz is an array of Python objects"),
    ],
    ids=range(15),
)
def test_what_is_wrong_with_a_file_is_one_sentence_that_names_it(
    tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    archive(scenes(tmp_path / "scenes") / "bad.npz", **changes)
    with pytest.raises(InputError, match=sentence) as error:
        load("scenes", tmp_path)
    assert "\n" not in str(error.value)


def test_every_bad_file_is_reported(tmp_path: Path) -> None:
    home = scenes(tmp_path / "scenes")
    archive(home / "x.npz", points=cloud(10))
    (home / "y.npz").write_bytes(b"PK\x03\x04 cut off")
    (home / "z.npz").write_bytes(b"")
    report = check("scenes", root=tmp_path)
    assert not report.usable
    assert [problem.rpartition("/")[2].partition(".npz")[0] for problem in report.problems[:3]] == ["x", "y", "z"]
    assert report.sizes == {"train": 4, "test": 1}
    scans = scannet(tmp_path / "scannet", *(f"scene000{number}_00" for number in range(4)))
    np.save(scans / "scene0001_00_vert.npy", cloud(9))
    (scans / "scene0003_00_bbox.npy").unlink()
    report = check("scannet", root=tmp_path)
    assert "scene0001_00_vert.npy has 9 points" in report.problems[0]
    assert "scene0003_00_bbox.npy does not exist" in report.problems[1]
    with pytest.raises(InputError, match=r"scene0001_00_vert.npy has 9 points.*\(and [1-9] more: `fedstill data check"):
        load("scannet", tmp_path)


def test_what_is_no_folder_of_scenes_is_said(tmp_path: Path) -> None:
    path = archive(tmp_path / "one.npz")
    with pytest.raises(InputError, match=r"one.npz is no folder of scenes; expected is a folder of scenes"):
        load(f"npz:{path}")
    (tmp_path / "scenes").mkdir()
    with pytest.raises(InputError, match="holds no scenes; expected is"):
        load("scenes", tmp_path)
    archive(tmp_path / "scenes" / "one.npz")
    with pytest.raises(InputError, match="one is all there is: nothing can be learned and tested on one room"):
        load("scenes", tmp_path)


def test_scenes_without_any_box_are_scenes(tmp_path: Path) -> None:
    for name in ("a", "bb", "ccc"):
        archive(tmp_path / "scenes" / f"{name}.npz", held=(), boxes=np.zeros(0))
    bundle = load("scenes", tmp_path)
    assert bundle.train.labels().tolist() == [[-1], [-1]]
    assert check("scenes", root=tmp_path).usable


def test_scenes_made_by_code_are_examined_too() -> None:
    made = make_rooms(2, points=64, seen=0)
    boxes = made.boxes.clone()
    boxes[1, 0, 4] = 0.0
    good = scene_bundle("made", {"train": made, "test": made})
    bad = ArrayDataset(**{**good.train.columns, "boxes": boxes})
    blind = good.train.unlabelled()
    for data, sentence in (
        (bad, "1 train boxes have sizes that are not above 0"),
        (blind, "train split has no labels"),
    ):
        datasets.register("made")(
            lambda source, data=data: Bundle("made", data, good.test, good.classes, "scene", (64, 3))
        )
        try:
            report = check("made")
        finally:
            del datasets._parts["made"]
        assert not report.usable
        assert sentence in report.problems[0]


def test_a_shard_of_scenes_comes_back_to_the_bit(tmp_path: Path) -> None:
    """Ids, boxes and types of rooms stay; a site's classes are those of the whole, found there or not."""
    whole = scene_bundle("whole", {"train": make_rooms(6, points=64), "test": make_rooms(2, points=64, first=6)})
    rows = torch.tensor([1, 4])
    part = Subset(whole.train, rows).batch(torch.arange(2))
    nothing = whole.test.batch(torch.zeros(0, dtype=torch.int64))
    with (tmp_path / "site.npz").open("wb") as file:
        Shard("scene", whole.classes, {"train": part, "test": nothing}, whole.categories).write(file)
    site = load(f"npz:{tmp_path / 'site.npz'}", part=True)
    assert (site.kind, site.classes, site.categories, site.shape) == ("scene", whole.classes, whole.categories, (64, 3))
    assert len(site.test) == 0
    for name, column in site.train.columns.items():
        assert torch.equal(column, whole.train.columns[name][rows]), name
    archives = {name: tensor.numpy() for name, tensor in part.items()}
    for key, spoilt in (("boxes", archives["boxes"][:, :, :6]), ("labels", archives["labels"][:, 0])):
        broken = {**part, key: torch.from_numpy(spoilt.copy())}
        content = BytesIO()
        Shard("scene", whole.classes, {"train": broken, "test": nothing}, whole.categories).write(content)
        (tmp_path / "broken.npz").write_bytes(content.getvalue())
        with pytest.raises(InputError, match="no proper labels or ids: have the file written again"):
            load(f"npz:{tmp_path / 'broken.npz'}", part=True)
