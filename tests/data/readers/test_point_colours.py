"""Colours of points: the same from every format, beside the same coordinates, and one sentence where there are none."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trimesh
from PIL import Image

from fedstill.core.errors import InputError
from fedstill.data.readers.point_colours import scaled_colours
from fedstill.data.readers.whole_scans import is_scan, read_scan

DRAWN = np.random.default_rng(0)
POINTS = DRAWN.uniform(-3, 3, (50, 3)).astype(np.float32)
COLOURS = DRAWN.integers(0, 256, (50, 3)).astype(np.uint8)
PACKED = COLOURS.astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)
TABLE = np.column_stack([POINTS, COLOURS.astype(np.float32)])


def pcd(path: Path, fields: str, sizes: str, types: str, body: bytes, encoding: str = "binary") -> None:
    head = f"FIELDS {fields}\nSIZE {sizes}\nTYPE {types}\nWIDTH 50\nHEIGHT 1\nDATA {encoding}\n"
    path.write_bytes(head.encode() + body)


def structured(*columns: tuple[str, Any]) -> bytes:
    rows = np.zeros(50, [(f"f{at}", kind) for at, (kind, _) in enumerate(columns)])
    for at, (_, column) in enumerate(columns):
        rows[f"f{at}"] = column
    return rows.tobytes()


XYZ = [("<f4", POINTS[:, axis]) for axis in range(3)]


def text_pcd(path: Path, printed: Callable[[int], str], kind: str = "F") -> None:
    lines = [f"{x:.9g} {y:.9g} {z:.9g} {printed(int(c))}" for (x, y, z), c in zip(POINTS, PACKED, strict=True)]
    pcd(path, "x y z rgb", "4 4 4 4", f"F F F {kind}", "\n".join(lines).encode(), "ascii")


def las(path: Path, layout: int, size: int, at: int, colours: np.ndarray) -> None:
    head = bytearray(227)
    head[:4], head[24:26] = b"LASF", b"\x01\x02"
    struct.pack_into("<IHI", head, 94 + 2, 227, 0, 0)
    struct.pack_into("<BHI", head, 104, layout, size, 50)
    struct.pack_into("<6d", head, 131, 1e-6, 1e-6, 1e-6, 0, 0, 0)
    rows = np.zeros((50, size), np.uint8)
    rows[:, :12] = np.rint(POINTS.astype(np.float64) * 1e6).astype("<i4").view(np.uint8).reshape(50, 12)
    rows[:, at : at + 6] = colours.astype("<u2").view(np.uint8).reshape(50, 6)
    path.write_bytes(bytes(head) + rows.tobytes())


def ply(path: Path) -> None:
    trimesh.PointCloud(POINTS, colors=np.column_stack([COLOURS, np.full(50, 255, np.uint8)])).export(path)


WRITTEN: dict[str, Callable[[Path], object]] = {
    "cloud.ply": ply,
    "floats.npy": lambda path: np.save(path, np.column_stack([POINTS, COLOURS / np.float32(255)])),
    "scannet.npy": lambda path: np.save(path, np.column_stack([TABLE, np.zeros(50)])),
    "archive.npz": lambda path: np.savez(path, points=TABLE),
    "table.txt": lambda path: np.savetxt(path, TABLE, fmt="%.9g"),
    "packed.pcd": lambda path: pcd(path, "x y z rgba", "4 4 4 4", "F F F U", structured(*XYZ, ("<u4", PACKED))),
    "float.pcd": lambda path: pcd(path, "x y z rgb", "4 4 4 4", "F F F F", structured(*XYZ, ("<u4", PACKED))),
    "opaque.pcd": lambda path: pcd(
        path, "x y z rgba", "4 4 4 4", "F F F U", structured(*XYZ, ("<u4", PACKED | np.uint32(0xFF000000)))
    ),
    "three.pcd": lambda path: pcd(
        path,
        "r g b x y z",
        "1 1 1 4 4 4",
        "U U U F F F",
        structured(*[("u1", COLOURS[:, at]) for at in range(3)], *XYZ),
    ),
    "number.pcd": lambda path: text_pcd(path, str, "U"),
    "printed.pcd": lambda path: text_pcd(path, str),
    "bits.pcd": lambda path: text_pcd(path, lambda packed: f"{np.uint32(packed).view(np.float32):.9g}"),
    "byte.las": lambda path: las(path, 2, 26, 20, COLOURS),
    "word.las": lambda path: las(path, 3, 34, 28, COLOURS.astype(np.uint16) * 257),
    "new.las": lambda path: las(path, 7, 36, 30, COLOURS.astype(np.uint16) * 257),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_every_format_has_the_same_colours_beside_the_same_points(name: str, tmp_path: Path) -> None:
    WRITTEN[name](tmp_path / name)
    bare = read_scan(tmp_path / name, 50, "scan")
    found = read_scan(tmp_path / name, 50, "scan", colour=True)
    assert bare.shape == (50, 3)
    assert np.array_equal(found[:, :3], bare)
    nearest = np.abs(found[:, None, :3] - POINTS).max(axis=2).argmin(axis=1)
    assert sorted(nearest) == list(range(50))
    assert found[:, :3] == pytest.approx(POINTS[nearest], abs=1e-5)
    assert found[:, 3:] == pytest.approx(COLOURS[nearest] / 255 - 0.5, abs=1e-6)


def test_points_on_a_surface_have_colours_between_those_of_its_corners(tmp_path: Path) -> None:
    """Red grows along x from 0 to 255 over two metres."""
    corners = np.array([[0, 0, 0], [2, 0, 0], [0, 2, 0], [2, 2, 0]], np.float64)
    colours = np.array([[0, 9, 9, 255], [255, 9, 9, 255], [0, 9, 9, 255], [255, 9, 9, 255]], np.uint8)
    trimesh.Trimesh(corners, [[0, 1, 2], [1, 3, 2]], vertex_colors=colours, process=False).export(tmp_path / "a.ply")
    bare, found = (read_scan(tmp_path / "a.ply", 40, "scan", colour=colour) for colour in (False, True))
    assert np.array_equal(found[:, :3], bare)
    assert found[:, 3] == pytest.approx(found[:, 0] / 2 - 0.5, abs=1e-6)
    assert found[:, 4] == pytest.approx(np.full(40, 9 / 255 - 0.5), abs=1e-6)


CAMERA = {"fx": 2.0, "fy": 4.0, "cx": 1.0, "cy": 0.5, "scale": 1000}


def depth_image(folder: Path, size: tuple[int, int] = (3, 2)) -> Path:
    depth = np.array([[0, 2000, 4000], [1000, 0, 3000]], np.uint16)
    Image.fromarray(depth).save(folder / "room.png")
    (folder / "camera.json").write_text(json.dumps(CAMERA))
    pixels = np.arange(size[0] * size[1] * 3, dtype=np.uint8).reshape(size[1], size[0], 3)
    Image.fromarray(pixels).save(folder / "room.colour.png")
    return folder / "room.png"


def test_a_depth_image_takes_the_colours_of_its_own_pixels(tmp_path: Path) -> None:
    """Pixels 1, 2, 3 and 5 have a depth; pixel k has the colour 3k, 3k + 1, 3k + 2."""
    found = read_scan(depth_image(tmp_path), 9, "scan", colour=True)
    assert np.rint((found[:, 3] + 0.5) * 255).tolist() == [3, 6, 9, 15]
    assert np.rint((found[:, 5] + 0.5) * 255).tolist() == [5, 8, 11, 17]
    assert is_scan(tmp_path / "room.png")
    assert not is_scan(tmp_path / "room.colour.png")


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "bare.npy": (lambda path: np.save(path, POINTS), "bare.npy has no colours of points: export it with colours"),
    "bare.txt": (lambda path: np.savetxt(path, POINTS), "bare.txt has no colours"),
    "bare.ply": (lambda path: trimesh.PointCloud(POINTS).export(path), "bare.ply has no colours"),
    "bare.las": (lambda path: las(path, 0, 26, 20, COLOURS), "bare.las has no colours"),
    "bare.bin": (lambda path: path.write_bytes(bytes(160)), "bare.bin has no colours"),
    "bare.pcd": (lambda path: pcd(path, "x y z", "4 4 4", "F F F", structured(*XYZ)), "bare.pcd has no colours"),
    "normals.npy": (
        lambda path: np.save(path, np.column_stack([POINTS, POINTS / 3])),
        "they must be fractions from 0 to 1, or whole numbers from 0 to 255 or 65535",
    ),
    "mixed.npy": (lambda path: np.save(path, TABLE * 0.99), "has colours from"),
    "nan.npy": (lambda path: np.save(path, np.where(np.arange(6) > 4, np.nan, TABLE)), "colours that are not finite"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_scan_without_colours_is_refused_by_name(name: str, tmp_path: Path) -> None:
    write, sentence = REFUSED[name]
    write(tmp_path / name)
    with pytest.raises(InputError) as refused:
        read_scan(tmp_path / name, 50, "scan", [], colour=True)
    assert sentence in str(refused.value)
    assert name in str(refused.value)


def test_a_colour_image_must_be_there_and_have_the_size_of_its_depths(tmp_path: Path) -> None:
    path = depth_image(tmp_path, (4, 2))
    with pytest.raises(InputError, match=r"room.colour.png has 4 x 2 pixels, and room.png 3 x 2: give both one size"):
        read_scan(path, 9, "scan", colour=True)
    (tmp_path / "room.colour.png").unlink()
    with pytest.raises(InputError, match=r"room.png has no colours of points: write room.colour.jpg beside it"):
        read_scan(path, 9, "scan", colour=True)


def test_whole_numbers_are_bytes_unless_one_is_larger() -> None:
    for values, one in (
        (np.array([[0, 1, 255]]), 255),
        (np.array([[0, 256, 65535]]), 65535),
        (np.array([[0, 1, 1.0]]), 1),
    ):
        assert scaled_colours(values, Path("a")) == pytest.approx(values / one - 0.5)
