from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedstill.core.errors import InputError
from fedstill.core.streams import Streams
from fedstill.data.readers.meshes import read_mesh, sample_surface
from fedstill.data.readers.points import is_table, read_shape, read_table

Write = Callable[..., Path]


def test_tables_of_all_kinds(tmp_path: Path) -> None:
    expected = [[1, 2, 3], [4, 5, 6]]
    for number, text in enumerate(
        (
            "1,2,3,0,0,1\n4,5,6,0,0,1\n",
            "1 2 3\n4 5 6\n",
            "# x y z\n1\t2\t3\n\n4\t5\t6\n",
            "2\n1 2 3 255\n4 5 6 255\n",
            "//X Y Z R\n1.0 2.0 3.0 9\n4e0 5 6 9",
        )
    ):
        path = tmp_path / f"{number}.xyz"
        path.write_text(text)
        assert read_table(path).tolist() == expected
        assert is_table(path)
    assert read_table(tmp_path / "3.xyz", most=1).tolist() == expected[:1]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.txt", "", r"a.txt is empty"),
        ("a.txt", "# nothing\n", r"a.txt holds no points"),
        ("a.txt", "1,2\n3,4\n", r"a.txt is no table with the numbers x, y and z"),
        ("a.txt", "1 2 3\n4 five 6\n", r"a.txt is no table"),
        ("a.pts", "3\n", r"a.pts holds no points"),
        ("a.xyz", "1 2 3\nnan 5 6\n4 inf 6\n7 8 9\n", r"a.xyz: 2 of 4 points are NaN or infinite"),
        ("a.xyz", "1 2 3\n1 2 3\n", r"a.xyz holds one place only, 2 times"),
        ("a.npy", "nonsense", r"a.npy cannot be read as an array"),
        ("a.off", "hello", r"a.off is no OFF file that can be read"),
        ("a.ply", "ply\nformat ascii 1.0\n", r"a.ply is no PLY file that can be read"),
        ("a.obj", "# nothing\n", r"a.obj holds no points"),
        ("a.stl", "solid x\nendsolid x\n", r"a.stl (holds no points|is no STL)"),
        ("a.off", "OFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1 7\n", r"a.off is (damaged|no OFF file)"),
        ("a.off", "OFF\n3 1 0\n0 0 0\n1 0 0\n2 0 0\n3 0 1 2\n", r"a.off is a mesh without any surface"),
        ("a.off", "OFF\n3 1 0\n0 0 0\nnan 0 0\n0 1 0\n3 0 1 2\n", r"a.off holds vertices that are NaN"),
        ("a.off", "", r"a.off is empty"),
    ],
)
def test_what_is_wrong_is_said_with_the_file(tmp_path: Path, name: str, content: str, sentence: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=sentence):
        read_shape(tmp_path / name, 10, name)


def test_an_array_of_more_columns_than_points_is_no_cloud(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((2, 100)))
    with pytest.raises(InputError, match=r"shape \(2, 100\).*exchange its axes, or read signals as signals:FOLDER"):
        read_shape(tmp_path / "a.npy", 10, "a")


def test_arrays_of_the_wrong_shape(tmp_path: Path) -> None:
    for array in (np.zeros(9), np.zeros((4, 2)), np.array([["a", "b", "c"]])):
        np.save(tmp_path / "a.npy", array)
        with pytest.raises(InputError, match=r"a.npy should hold numbers of the shape \(points, 3\)"):
            read_shape(tmp_path / "a.npy", 10, "a")


def test_prose_is_no_table(tmp_path: Path, write_cloud: Write) -> None:
    (tmp_path / "a.txt").write_text("These 3 files were made in 2015.\n")
    assert not is_table(tmp_path / "a.txt")
    (tmp_path / "a.txt").write_text("")
    assert not is_table(tmp_path / "a.txt")
    assert is_table(write_cloud(tmp_path / "b.txt"))


@pytest.mark.parametrize("suffix", [".ply", ".obj", ".off", ".stl"])
def test_points_lie_on_the_surface_and_are_spread_by_area(tmp_path: Path, write_box: Write, suffix: str) -> None:
    """A box of 1 x 2 x 3: the faces have 2, 3 and 6 of 11 halves of its surface."""
    cloud = read_shape(write_box(tmp_path / f"box{suffix}", 1, 2, 3), 6000, "box")
    assert cloud.shape == (6000, 3)
    shares = []
    for axis, side in enumerate((1, 2, 3)):
        on = np.isclose(cloud[:, axis], 0, atol=1e-6) | np.isclose(cloud[:, axis], side, atol=1e-6)
        shares.append(on.mean())
    assert shares == pytest.approx([6 / 11, 3 / 11, 2 / 11], abs=0.025)
    assert cloud.mean(axis=0) == pytest.approx([0.5, 1, 1.5], abs=0.06)


def test_points_of_a_triangle_are_equally_likely_everywhere() -> None:
    corners = np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0]])
    cloud = sample_surface(corners, np.array([[0, 1, 2]]), 20_000, Streams(0).draw("t"), Path("t"))
    assert cloud.mean(axis=0) == pytest.approx([1 / 3, 1 / 3, 0], abs=0.01)
    assert (cloud[:, 0] + cloud[:, 1] < 0.5).mean() == pytest.approx(0.25, abs=0.015)  # a quarter of the area


def test_a_shape_depends_on_its_key_alone(tmp_path: Path, write_box: Write) -> None:
    here, there = write_box(tmp_path / "a" / "box.ply"), write_box(tmp_path / "b" / "other.ply")
    assert np.array_equal(read_shape(here, 50, "chair/1.ply"), read_shape(there, 50, "chair/1.ply"))
    assert not np.array_equal(read_shape(here, 50, "chair/1.ply"), read_shape(here, 50, "chair/2.ply"))
    assert np.array_equal(read_shape(here, 80, "k")[:50], read_shape(here, 50, "k"))  # the first are the same


def test_clouds_are_shuffled_so_that_the_first_points_are_a_fair_sample(tmp_path: Path) -> None:
    line = np.arange(1000)[:, None] * np.array([1.0, 1, 1])  # ordered, as scanners write
    np.save(tmp_path / "line.npy", line)
    some = read_shape(tmp_path / "line.npy", 100, "line")
    assert len({*some[:, 0].tolist()}) == 100
    assert some[:, 0].mean() == pytest.approx(500, abs=100)
    assert sorted(read_shape(tmp_path / "line.npy", 5000, "line")[:, 0].tolist()) == line[:, 0].tolist()


def test_meshes_of_several_parts_and_of_none(tmp_path: Path) -> None:
    (tmp_path / "two.obj").write_text(
        "o a\nusemtl red\nv 0 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 3\n"
        "o b\nusemtl blue\nv 5 5 5\nv 6 5 5\nv 6 6 5\nv 5 6 5\nf 4 5 6 7\n"
    )
    vertices, faces = read_mesh(tmp_path / "two.obj")
    assert (len(vertices), len(faces)) == (7, 3)
    assert {len(set(map(tuple, vertices[face]))) for face in faces} == {3}
    (tmp_path / "cloud.ply").write_text(
        "ply\nformat ascii 1.0\nelement vertex 3\nproperty float x\nproperty float y\nproperty float z\nend_header\n"
        "0 0 0\n1 0 0\n0 1 0\n"
    )
    assert sorted(read_shape(tmp_path / "cloud.ply", 9, "c").tolist()) == [[0, 0, 0], [0, 1, 0], [1, 0, 0]]
