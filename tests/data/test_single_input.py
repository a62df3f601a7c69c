"""A scan of one's own for a detector, and a picture for a model of pictures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedstill.core.errors import InputError
from fedstill.data.single_input import read_cloud, read_input
from fedstill.detection.votenet import read_scannet


def points(count: int) -> np.ndarray:
    return (10 + np.random.default_rng(0).normal(size=(count, 3))).astype(np.float32)


def as_rows(cloud: np.ndarray) -> set[bytes]:
    return {row.tobytes() for row in np.asarray(cloud, np.float32)}


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".txt", ".xyz", ".ply"])
def test_every_format_gives_points_as_they_are(tmp_path: Path, suffix: str) -> None:
    """Drawn without repeats, in metres; the same file gives the same points."""
    cloud, path = points(300), tmp_path / f"scan{suffix}"
    if suffix == ".npy":
        np.save(path, np.hstack([cloud, cloud]))  # with colours
    elif suffix == ".npz":
        np.savez(path, points=np.hstack([cloud, cloud]))
    elif suffix == ".ply":
        head = "ply\nformat binary_little_endian 1.0\nelement vertex 300\n"
        head += "".join(f"property float {axis}\n" for axis in "xyz") + "end_header\n"
        path.write_bytes(head.encode() + cloud.astype("<f4").tobytes())
    else:
        np.savetxt(path, cloud, fmt="%.9g")
    found = read_cloud(path, 200)[0].numpy()
    assert (found.shape, found.dtype) == ((200, 3), np.float32)
    assert len(as_rows(found)) == 200
    assert as_rows(found) <= as_rows(cloud)
    assert np.array_equal(found, read_cloud(path, 200)[0].numpy())
    more = read_cloud(path, 1000)[0].numpy()
    assert more.shape == (1000, 3)
    assert as_rows(more) == as_rows(cloud)


def test_a_mesh_gives_points_of_its_surface(tmp_path: Path, write_box: Callable[..., Path]) -> None:
    """A box from 0 to 2, 3 and 4: every point lies on one of its faces."""
    found = read_cloud(write_box(tmp_path / "room.obj", 2, 3, 4), 500)[0].numpy()
    assert found.shape == (500, 3)
    on_face = np.isclose(found, 0, atol=1e-5) | np.isclose(found, [2, 3, 4], atol=1e-5)
    assert on_face.any(axis=1).all()


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no file .*nowhere.ply"):
        read_cloud(tmp_path / "nowhere.ply", 100)
    (tmp_path / "scan.e57").write_bytes(b"x")
    with pytest.raises(InputError, match=r"scan.e57 is no cloud: give .npz, .ply"):
        read_cloud(tmp_path / "scan.e57", 100)
    np.save(tmp_path / "few.npy", points(63))
    with pytest.raises(InputError, match=r"few.npy has 63 points: a scene needs at least 64"):
        read_cloud(tmp_path / "few.npy", 100)
    np.savez(tmp_path / "other.npz", y=points(80))
    with pytest.raises(InputError, match=r"other.npz should hold one cloud of the shape \(points, 3\)"):
        read_cloud(tmp_path / "other.npz", 100)
    bad = points(80)
    bad[:5, 1] = np.nan
    np.savez(tmp_path / "bad.npz", points=bad)
    with pytest.raises(InputError, match=r"bad.npz has points that are not finite numbers, 5 of 80: remove them"):
        read_cloud(tmp_path / "bad.npz", 100)


def test_a_few_points_that_are_not_finite_are_left_out(tmp_path: Path) -> None:
    some = points(80)
    some[3, 1], some[4, 0] = np.nan, np.inf
    np.save(tmp_path / "some.npy", some)
    found, note = read_cloud(tmp_path / "some.npy", 78)
    assert as_rows(found.numpy()) == as_rows(np.delete(some, [3, 4], axis=0))
    assert note == "some.npy: 2 of 80 points left out, which have coordinates that are not finite"


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".obj"])
def test_the_name_of_a_file_changes_nothing(tmp_path: Path, suffix: str, write_box: Callable[..., Path]) -> None:
    paths = [tmp_path / f"{name}{suffix}" for name in ("kitchen", "b")]
    for path in paths:
        if suffix == ".obj":
            write_box(path, 2, 3, 4)
        elif suffix == ".npy":
            np.save(path, points(300))
        else:
            np.savez(path, points=points(300))
    one, two = (read_cloud(path, 200)[0] for path in paths)
    assert np.array_equal(one.numpy(), two.numpy())


def test_a_picture_is_brought_to_the_size_and_colours_of_the_model(tmp_path: Path) -> None:
    Image.new("RGB", (20, 10), (255, 0, 51)).save(tmp_path / "a.png")
    found = read_input(tmp_path / "a.png", (3, 4, 4))
    assert found.shape == (3, 4, 4)
    assert found[:, 0, 0].tolist() == pytest.approx([1, -1, -0.6])  # from -1 to 1
    assert read_input(tmp_path / "a.png", (1, 4, 4)).shape == (1, 4, 4)


def test_a_picture_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text.png").write_text("no picture")
    with pytest.raises(InputError, match=r"text.png is no image"):
        read_input(tmp_path / "text.png", (1, 8, 8))
    Image.new("L", (20, 10)).save(tmp_path / "large.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 150)  # Pillow itself only warns, up to twice as many
    with pytest.raises(InputError, match=r"large.png is an image of too many pixels"):
        read_input(tmp_path / "large.png", (1, 8, 8))


def test_an_array_is_scaled_as_training_data_are(tmp_path: Path) -> None:
    """Whole numbers from 0 to 255 are pixels, whatever type they have: 0 is -1, 255 is 1, 51 is -0.6."""
    pixels = np.array([[[0, 51], [204, 255]]])
    for kind in (np.uint8, np.uint16, np.int64):
        np.save(tmp_path / "a.npy", pixels.astype(kind))
        assert read_input(tmp_path / "a.npy", (1, 2, 2)).flatten().tolist() == pytest.approx([-1, -0.6, 0.6, 1])
    np.save(tmp_path / "a.npy", np.array([[False, True], [True, False]]))
    assert read_input(tmp_path / "a.npy", (1, 2, 2)).flatten().tolist() == [-1, 1, 1, -1]
    np.save(tmp_path / "a.npy", pixels / 255)
    assert read_input(tmp_path / "a.npy", (1, 2, 2)).flatten().tolist() == pytest.approx([0, 0.2, 0.8, 1])


def test_an_array_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    wrong = {
        r"a.npy holds int64 of shape \(2, 3\): one of shape \(1, 2, 2\) is needed": np.zeros((2, 3), np.int64),
        r"whole-number samples range over 0..256, not 0..255 \(.*a.npy\)": np.array([[0, 256], [0, 0]]),
        r"a.npy holds numbers that are not finite": np.full((2, 2), np.nan),
        r"samples are of type <U1, expected are 8-bit or float numbers \(.*a.npy\)": np.full((2, 2), "x"),
    }
    for sentence, array in wrong.items():
        np.save(tmp_path / "a.npy", array)
        with pytest.raises(InputError, match=sentence):
            read_input(tmp_path / "a.npy", (1, 2, 2))
    np.savez(tmp_path / "b.npz", x=np.zeros((2, 2)))
    (tmp_path / "b.npz").rename(tmp_path / "b.npy")
    with pytest.raises(InputError, match=r"b.npy cannot be read as an array \(it is an archive\)"):
        read_input(tmp_path / "b.npy", (1, 2, 2))


def test_an_array_that_claims_to_be_huge_is_refused_wherever_it_is_read(tmp_path: Path) -> None:
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (70368744177664, 3), }".ljust(117) + b"\n"
    huge = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(240)
    for name in ("a.npy", "scene0000_00_vert.npy"):
        (tmp_path / name).write_bytes(huge)
    np.save(tmp_path / "scene0000_00_bbox.npy", np.zeros((0, 7)))
    with pytest.raises(InputError, match=r"a.npy claims to be larger than memory"):
        read_input(tmp_path / "a.npy", (1, 2, 2))
    with pytest.raises(InputError, match=r"a.npy claims to be larger than memory"):
        read_cloud(tmp_path / "a.npy", 100)
    with pytest.raises(InputError, match=r"_vert.npy claims to be larger than memory"):
        read_scannet(tmp_path)


def test_a_cloud_with_fewer_points_repeats_some_and_rows_of_tables_are_arrays(tmp_path: Path) -> None:
    np.save(tmp_path / "few.npy", points(40))
    cloud = read_input(tmp_path / "few.npy", (100, 3))
    assert cloud.shape == (100, 3)
    assert len(as_rows(cloud.numpy())) == 40
    np.save(tmp_path / "broken.npy", points(12))
    with pytest.raises(InputError, match=r"broken.npy holds 12 points: this model needs 100"):
        read_input(tmp_path / "broken.npy", (100, 3))
    (tmp_path / "rows.csv").write_text("age,dose\n1,2\n")
    for shape in ((2,), (100, 6)):
        with pytest.raises(
            InputError, match=r"rows.csv: this model reads numbers of the shape .*an array of that shape"
        ):
            read_input(tmp_path / "rows.csv", shape)
    np.save(tmp_path / "row.npy", np.array([1.5, 2.5], dtype=np.float32))
    assert read_input(tmp_path / "row.npy", (2,)).tolist() == [1.5, 2.5]
