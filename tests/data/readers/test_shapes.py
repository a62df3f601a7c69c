from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedstill.core.errors import InputError
from fedstill.data.catalogue import check, datasets, load
from fedstill.data.readers import FileFindings, ReaderHints, read

Write = Callable[..., Path]


def test_modelnets_meshes(tmp_path: Path, write_box: Write) -> None:
    for kind, side in (("chair", 2), ("bed", 5)):
        for part, count in (("train", 3), ("test", 2)):
            for number in range(count):
                write_box(tmp_path / "ModelNet10" / kind / part / f"{kind}_{part}{number}.off", 1, side, 1 + number)
    (tmp_path / "ModelNet10" / "README.txt").write_text("CAD models of two kinds.")
    bundle = load("modelnet10", tmp_path)
    assert (bundle.classes, bundle.kind, bundle.shape) == (("bed", "chair"), "cloud", (2048, 3))
    assert bundle.train.labels().tolist() == [0, 0, 0, 1, 1, 1]
    assert bundle.test.labels().tolist() == [0, 0, 1, 1]
    clouds = bundle.train.columns["inputs"]
    assert clouds.norm(dim=2).amax(dim=1) == pytest.approx(torch.ones(6).tolist(), abs=1e-6)
    assert check("modelnet10", root=tmp_path).ok
    assert load("modelnet10", path=tmp_path).fingerprint() == bundle.fingerprint()  # from the folder above, too


def test_splits_above_the_classes_and_a_class_called_train(tmp_path: Path, write_cloud: Write) -> None:
    for number, part in enumerate(("train", "val", "test")):
        for kind in ("train", "bus"):
            for row in range(2):
                write_cloud(tmp_path / part / kind / f"{row}.xyz", 10 * number + 2 * row + (kind == "bus"))
    bundle = load(f"folder:{tmp_path}")
    assert bundle.classes == ("bus", "train")
    assert {name: len(data) for name, data in bundle.splits().items()} == {"train": 4, "validation": 4, "test": 4}
    shutil.rmtree(tmp_path / "test")
    bundle = load(f"folder:{tmp_path}")  # as many data sets are published
    assert (bundle.classes, bundle.validation) == (("bus", "train"), None)
    assert "there is no test split: the validation split is tested on" in bundle.notes


@pytest.mark.parametrize("suffix", [".xyz", ".pts", ".txt", ".npy", ".ply", ".obj", ".off", ".stl"])
def test_class_folders_of_any_format_are_split(
    tmp_path: Path, write_box: Write, write_cloud: Write, suffix: str
) -> None:
    for number in range(10):
        for kind in ("a", "b"):
            path = tmp_path / kind / f"{number}{suffix}"
            if suffix in (".ply", ".obj", ".off", ".stl"):
                write_box(path, 1, 1 + number, 3 if kind == "a" else 0.5)
            else:
                write_cloud(path, number + 100 * (kind == "a"))
    bundle = load(f"folder:{tmp_path}")
    assert (len(bundle.train), len(bundle.test), bundle.kind) == (16, 4, "cloud")
    assert torch.bincount(bundle.test.labels()).tolist() == [2, 2]


def test_a_shape_does_not_depend_on_the_others(tmp_path: Path, write_box: Write) -> None:
    for kind in "ab":
        for number in range(4):
            write_box(tmp_path / kind / f"{number}.ply", 1, 2, 1 + number)

    def third() -> np.ndarray:
        raw = read(tmp_path, FileFindings(), ReaderHints(points=64))
        split = raw.splits["whole"]
        return np.asarray(split.inputs[split.names.index(str(tmp_path / "b" / "3.ply"))])

    before = third()
    (tmp_path / "a" / "0.ply").unlink()
    write_box(tmp_path / "b" / "0.ply", 9, 9, 1)
    assert np.array_equal(third(), before)


def test_textures_beside_meshes_do_not_make_them_images(tmp_path: Path, write_box: Write) -> None:
    for number in range(3):
        for kind in ("cup", "pan"):
            write_box(
                tmp_path / kind / f"{kind}_{number}" / "Scan" / "Scan.obj", 1, 2 + number, 3 if kind == "cup" else 1
            )
            Image.new("RGB", (4, 4)).save(tmp_path / kind / f"{kind}_{number}" / "Scan" / "Scan.jpg")
    bundle = load("omniobject3d", path=tmp_path)
    assert (bundle.kind, bundle.classes, len(bundle.train) + len(bundle.test)) == ("cloud", ("cup", "pan"), 6)


def test_images_with_text_or_arrays_beside_them_stay_images(tmp_path: Path, write_cloud: Write) -> None:
    for kind in "ab":
        (tmp_path / kind).mkdir()
        for number in range(5):
            Image.new("L", (4, 4), number + 50 * (kind == "a")).save(tmp_path / kind / f"{number}.png")
            write_cloud(tmp_path / kind / f"{number}.txt", number)  # boxes, say
    np.save(tmp_path / "labels.npy", np.zeros((9, 3)))
    assert load(f"folder:{tmp_path}").kind == "image"


def test_the_same_shape_in_two_formats_counts_once(tmp_path: Path, write_box: Write) -> None:
    for number in range(3):
        for kind in "ab":
            for suffix in (".obj", ".ply"):
                write_box(tmp_path / kind / f"{number}{suffix}", 1, 2 + number, 1 + (kind == "a"))
    found = FileFindings()
    raw = read(tmp_path, found, ReaderHints(points=32))
    assert [Path(name).suffix for name in raw.splits["whole"].names] == [".ply"] * 6
    assert found.notes == ["12 files hold 6 shapes: one file of each is used"]


def test_a_table_names_the_classes(tmp_path: Path, write_box: Write) -> None:
    home = tmp_path / "scanned-objects"
    for number in range(9):
        write_box(home / f"Thing_{number}" / "meshes" / "model.obj", 1, 1 + number, 2)
    rows = [f"Thing_{number},{'Shoe' if number % 2 else 'Mug'}" for number in range(8)]
    (home / "metadata.csv").write_text("Name,Category\n" + "\n".join([*rows, "Gone,Mug"]) + "\n")
    bundle = load("scanned-objects", tmp_path)
    assert load("gazebo", tmp_path).fingerprint() == bundle.fingerprint()
    assert bundle.classes == ("Mug", "Shoe")
    assert len(bundle.train) + len(bundle.test) == 8
    assert "1 of 9 files have no class in metadata.csv and are left out: Thing_8/meshes/model.obj" in str(bundle.notes)
    assert "1 objects of" in str(bundle.notes)

    (home / "metadata.csv").unlink()
    (home / "classes.json").write_text(json.dumps({f"Thing_{n}": "Shoe" if n % 2 else "Mug" for n in range(8)}))
    assert load("scanned-objects", tmp_path).fingerprint() == bundle.fingerprint()

    (home / "classes.json").write_text(
        json.dumps(
            [
                {"id": f"Thing_{n}", "class": "Shoe" if n % 2 else "Mug", "split": "test" if n > 3 else "train"}
                for n in range(8)
            ]
        )
    )
    assert len(load("scanned-objects", tmp_path).test) == 4
    (home / "classes.json").write_text("{")
    with pytest.raises(InputError, match=r"classes.json is no JSON"):
        load("scanned-objects", tmp_path)


def test_a_table_of_something_else_is_passed_over(tmp_path: Path, write_cloud: Write) -> None:
    for number in range(3):
        for kind in "ab":
            write_cloud(tmp_path / kind / f"{number}.xyz", number + 10 * (kind == "a"))
    (tmp_path / "people.csv").write_text("name,type\nAda,author\n")
    (tmp_path / "sizes.csv").write_text("width,height\n3,4\n")
    (tmp_path / "empty.json").write_text("[]")
    assert load(f"folder:{tmp_path}").classes == ("a", "b")


def test_a_table_that_cannot_be_read_is_named(tmp_path: Path, write_cloud: Write) -> None:
    for number in range(4):
        write_cloud(tmp_path / "ab"[number % 2] / f"{number}.xyz", number)
    (tmp_path / "long.csv").write_text(f"name,type\nAda,{'x' * 200_000}\n")
    with pytest.raises(InputError, match=r"long.csv is no CSV \(field larger than field limit"):
        load(f"folder:{tmp_path}")


def test_ycbs_objects_are_grouped_by_number_and_the_best_mesh_is_taken(tmp_path: Path, write_box: Write) -> None:
    for number, name in enumerate(("002_can", "003_box", "024_bowl", "025_mug", "999_odd")):
        for place in ("clouds/merged.ply", "google_16k/nontextured.stl", "google_16k/nontextured.ply"):
            write_box(tmp_path / "ycb" / name / place, 1, 2 + number, 3 if place.startswith("clouds") else 1)
    found = FileFindings()
    raw = read(tmp_path / "ycb", found, datasets["ycb"].hints)  # type: ignore[attr-defined]
    assert raw.classes == ("food", "kitchen")
    assert {Path(name).parent.name + "/" + Path(name).name for name in raw.splits["whole"].names} == {
        "google_16k/nontextured.ply"
    }
    assert len(load("ycb", tmp_path).train) == 2


def test_heads_in_folders_named_after_their_class(tmp_path: Path, write_box: Write) -> None:
    home = tmp_path / "craniosynostosis" / "ssm"
    for number, kind in enumerate(("Control", "coronal_fusion", "metopic-instances", "sagittal")):
        for row in range(5):
            write_box(home / kind / f"instance_{row}.ply", 1 + number, 2 + row, 3)
    write_box(home / "mean" / "mean.ply")
    bundle = load("craniosynostosis-ssm", tmp_path)
    assert bundle.classes == ("control", "coronal", "metopic", "sagittal")
    assert (len(bundle.train), len(bundle.test)) == (16, 4)
    assert "mean/mean.ply" in str(bundle.notes)


def test_everything_wrong_is_listed_at_once(tmp_path: Path, write_box: Write, write_cloud: Write) -> None:
    for number in range(4):
        for kind in "ab":
            write_cloud(tmp_path / kind / f"{number}.xyz", number + 10 * (kind == "a"), points=30)
    write_cloud(tmp_path / "a" / "few.xyz", 50, points=3)
    (tmp_path / "a" / "empty.pts").write_text("")
    (tmp_path / "b" / "broken.ply").write_text("ply?")
    (tmp_path / "b" / "gaps.xyz").write_text("1 2 3\nnan 1 2\n")
    report = check(f"folder:{tmp_path}")
    assert not report.usable
    assert [problem.removeprefix(f"{tmp_path}/").split(" (")[0] for problem in report.problems] == [
        "a/empty.pts is empty",
        "b/broken.ply is no PLY file that can be read",
        "b/gaps.xyz: 1 of 2 points are NaN or infinite",
        "a/few.xyz holds 3 points: too few, the others hold about 30",
    ]
    assert report.sizes == {"train": 6, "test": 2}
    with pytest.raises(InputError, match=r"empty.pts is empty .*and 3 more"):
        load(f"folder:{tmp_path}")


def test_clouds_of_about_one_length_are_cut_to_the_shortest(tmp_path: Path, write_cloud: Write) -> None:
    for number in range(4):
        for kind in "ab":
            write_cloud(tmp_path / kind / f"{number}.npy", number + 10 * (kind == "a"), points=40 + number)
    bundle = load(f"folder:{tmp_path}")
    assert bundle.shape == (40, 3)
    assert "clouds hold 40 points or more: 40 of each are kept" in bundle.notes
    assert load(f"folder:{tmp_path}").notes == bundle.notes  # from the cache, too


def test_a_class_with_one_sample_is_left_out_and_named(tmp_path: Path, write_cloud: Write) -> None:
    for number in range(5):
        for kind in "ac":
            write_cloud(tmp_path / kind / f"{number}.xyz", number + 10 * (kind == "a"))
    write_cloud(tmp_path / "b" / "alone.xyz", 77)
    sentence = (
        f"class 'b' has a single sample, {tmp_path / 'b' / 'alone.xyz'}: "
        "it cannot be trained on and tested on at once, and is left out"
    )
    report = check(f"folder:{tmp_path}")
    assert report.problems == (sentence,)
    assert report.usable
    bundle = load(f"folder:{tmp_path}")
    assert sentence in bundle.notes
    assert bundle.classes == ("a", "c")
    assert torch.bincount(bundle.train.labels()).tolist() == [4, 4]
    assert bundle.fingerprint() == report.fingerprint


def test_nothing_but_single_samples_is_refused(tmp_path: Path, write_cloud: Write) -> None:
    for number, kind in enumerate("abc"):
        write_cloud(tmp_path / kind / "0.xyz", number)
    with pytest.raises(InputError, match="every class has a single sample"):
        load(f"folder:{tmp_path}")


def test_one_training_sample_in_files_with_a_split_is_told(tmp_path: Path, write_cloud: Write) -> None:
    for part, count in (("train", 1), ("test", 2)):
        for kind in "ab":
            for number in range(count):
                write_cloud(
                    tmp_path / part / kind / f"{number}.xyz", number + 10 * (kind == "a") + 50 * (part == "test")
                )
    report = check(f"folder:{tmp_path}")
    assert report.usable
    assert report.problems[0] == "class 'a' has a single training sample: it can hardly be learned"


def test_pcd_files_are_shapes_and_files_that_are_not_read_are_reported(tmp_path: Path, write_cloud: Write) -> None:
    for number in range(4):
        write_cloud(tmp_path / "a" / f"{number}.xyz", number)
        points = np.random.default_rng(number).random((40, 3))
        rows = "\n".join(" ".join(f"{one:.4f}" for one in point) for point in points)
        head = "VERSION 0.7\nFIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nCOUNT 1 1 1\nWIDTH 40\nHEIGHT 1\n"
        (tmp_path / "b").mkdir(exist_ok=True)
        (tmp_path / "b" / f"{number}.pcd").write_text(f"{head}POINTS 40\nDATA ascii\n{rows}\n")
        (tmp_path / "c").mkdir(exist_ok=True)
        (tmp_path / "c" / f"{number}.fbx").write_bytes(b"mesh")
    found = FileFindings()
    raw = read(tmp_path, found, ReaderHints(points=32))
    assert raw.classes == ("a", "b")
    assert len(raw.splits["whole"].labels) == 8
    assert f"4 files of {tmp_path} are no shapes and are left out: 4 .fbx" in found.notes
    assert "the folder c holds no file that can be read (4 .fbx)" in found.doubts[0]


def test_sparse_clouds_repeat_points_and_leave_the_others_theirs(tmp_path: Path, write_cloud: Write) -> None:
    for number in range(5):
        for kind in "ab":
            write_cloud(tmp_path / kind / f"{number}.npy", number + 10 * (kind == "a"), points=40)
    write_cloud(tmp_path / "a" / "sparse.npy", 50, points=8)
    bundle = load(f"folder:{tmp_path}")
    assert bundle.shape == (40, 3)
    distinct = [
        len(torch.unique(cloud, dim=0)) for part in (bundle.train, bundle.test) for cloud in part.columns["inputs"]
    ]
    assert sorted(distinct) == [8, *[40] * 10]
    assert f"1 clouds hold fewer points than 40, and repeat some: the first is {tmp_path}/a/sparse.npy" in bundle.notes


def test_archives_of_one_cloud_each_in_class_folders_are_read_and_drawn_from(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    for number in range(8):
        folder = tmp_path / "ab"[number % 2]
        folder.mkdir(exist_ok=True)
        cloud = draw.normal(size=(4096, 3))
        np.savez(folder / f"{number}.npz", points=cloud[cloud[:, 2].argsort()])
    bundle = load(f"folder:{tmp_path}")
    assert (bundle.kind, bundle.shape, bundle.classes) == ("cloud", (2048, 3), ("a", "b"))
    heights = bundle.train.batch(torch.arange(len(bundle.train)))["inputs"][:, :, 2]
    assert heights[:, :1024].mean(dim=1).abs().max() < 0.05  # the first half is as high as the second
    np.savez(tmp_path / "a" / "odd.npz", weights=np.zeros(3))
    with pytest.raises(InputError, match=r"odd.npz should hold one cloud of the shape \(points, 3\), called points"):
        load(f"folder:{tmp_path}")
