"""Scans in the formats of sensors: the same points from each, and one sentence for whatever is wrong."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedstill.core.errors import InputError
from fedstill.data.readers.las import read_las
from fedstill.data.readers.pcd import decompressed, read_pcd
from fedstill.data.readers.whole_scans import is_scan, read_scan

POINTS = np.random.default_rng(0).uniform(-3, 3, (100, 3)).astype(np.float32)
CAMERA: dict[str, Any] = {"fx": 2.0, "fy": 4.0, "cx": 1.0, "cy": 0.5, "scale": 1000}


def pcd_header(encoding: str, count: int = 100, **changed: str) -> str:
    lines = {
        "VERSION": "0.7",
        "FIELDS": "intensity x y z normal",
        "SIZE": "1 4 4 8 4",
        "TYPE": "U F F F F",
        "COUNT": "1 1 1 1 3",
        "WIDTH": str(count),
        "HEIGHT": "1",
        "VIEWPOINT": "0 0 0 1 0 0 0",
        "POINTS": str(count),
        "DATA": encoding,
    } | changed
    return "# .PCD v0.7\n" + "".join(f"{key} {value}\n" for key, value in lines.items() if value)


def columns(points: np.ndarray = POINTS) -> list[np.ndarray]:
    intensity, normals = np.full(len(points), 7, "<u1"), np.ones((len(points), 3), "<f4")
    return [intensity, points[:, 0].astype("<f4"), points[:, 1].astype("<f4"), points[:, 2].astype("<f8"), normals]


def binary(points: np.ndarray = POINTS) -> bytes:
    row = np.dtype([("i", "<u1"), ("x", "<f4"), ("y", "<f4"), ("z", "<f8"), ("n", "<f4", 3)])
    table = np.zeros(len(points), row)
    for name, column in zip(row.names or (), columns(points), strict=True):
        table[name] = column
    return table.tobytes()


def compressed(points: np.ndarray = POINTS, size: int = 0) -> bytes:
    """LZF without any repetition: runs of at most 32 bytes as they are, and one repetition of the normals."""
    whole = b"".join(np.ascontiguousarray(column).tobytes() for column in columns(points))
    ones = b"\x00\x00\x80\x3f" * 3 * len(points)
    assert whole.endswith(ones)
    start = whole[: len(whole) - len(ones) + 4]
    packed = b"".join(
        bytes([len(part) - 1]) + part for part in (start[at : at + 32] for at in range(0, len(start), 32))
    )
    left = len(ones) - 4
    while left:
        length = min(264, left) if left - min(264, left) not in (1, 2) else min(264, left) - 3
        packed += bytes([7 << 5, length - 9, 3]) if length >= 9 else bytes([(length - 2) << 5, 3])
        left -= length
    return struct.pack("<II", len(packed), size or len(whole)) + packed


def las(points: np.ndarray = POINTS, layout: int = 1, count: int | None = None, scale: float = 0.001) -> bytes:
    header = bytearray(227)
    header[:4], header[24], header[25] = b"LASF", 1, 2
    struct.pack_into("<HI", header, 94, 227, 230)
    struct.pack_into("<BHI", header, 104, layout, 28, len(points) if count is None else count)
    struct.pack_into("<6d", header, 131, scale, scale, scale, 10.0, 20.0, 0.0)
    rows = np.zeros((len(points), 28), np.uint8)
    numbers = np.rint((points - [10.0, 20.0, 0.0]) / 0.001).astype("<i4")
    rows[:, :12] = numbers.view(np.uint8).reshape(len(points), 12)
    return bytes(header) + b"xxx" + rows.tobytes()


WRITTEN: dict[str, Callable[[], bytes]] = {
    "ascii.pcd": lambda: (
        pcd_header("ascii") + "".join(f"7 {x} {y} {z} 1 1 1\n" for x, y, z in POINTS.tolist())
    ).encode(),
    "binary.pcd": lambda: pcd_header("binary").encode() + binary(),
    "packed.PCD": lambda: pcd_header("binary_compressed").encode() + compressed(),
    "scan.las": las,
    "drive.bin": lambda: np.column_stack([POINTS, np.zeros(100)]).astype("<f4").tobytes(),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_every_format_holds_the_same_points(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(WRITTEN[name]())
    found = read_scan(path, 50, name)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, POINTS, atol=6e-4 if name.endswith(".las") else 1e-6)
    assert is_scan(path)


def test_the_packed_file_is_what_it_should_be() -> None:
    """The compressed bytes of the test are right: they unpack to the columns."""
    packed = compressed()
    whole = b"".join(np.ascontiguousarray(column).tobytes() for column in columns())
    assert decompressed(packed[8:], len(whole)) == whole


def test_missing_returns_are_left_out(tmp_path: Path) -> None:
    points = POINTS.copy()
    points[:10] = np.nan
    (tmp_path / "some.pcd").write_bytes(pcd_header("binary").encode() + binary(points))
    assert np.array_equal(read_pcd(tmp_path / "some.pcd"), POINTS[10:].astype(np.float64))


def test_a_large_las_counts_in_64_bits(tmp_path: Path) -> None:
    data = bytearray(las(count=0))
    data[25] = 4
    body = bytes(data[230:])
    data = data[:227] + bytearray(375 - 227)
    struct.pack_into("<I", data, 96, 375)
    struct.pack_into("<Q", data, 247, 100)
    (tmp_path / "large.las").write_bytes(bytes(data) + body)
    np.testing.assert_allclose(read_las(tmp_path / "large.las"), POINTS, atol=6e-4)


def packed_las(path: Path, layout: int, version: str, points: np.ndarray = POINTS) -> Path:
    """A scan written by laspy, with colours where the format of points has them; compressed if called .laz."""
    laspy = pytest.importorskip("laspy")
    header = laspy.LasHeader(point_format=layout, version=version)
    header.scales, header.offsets = np.full(3, 0.001), np.array([10.0, 20.0, 0.0])
    file = laspy.LasData(header)
    file.x, file.y, file.z = points.T.astype(np.float64)
    file.intensity = np.arange(len(points))
    if "red" in file.point_format.dimension_names:
        file.red = file.green = file.blue = np.linspace(0, 65535, len(points)).astype(np.uint16)
    file.write(str(path))
    return path


@pytest.mark.parametrize(
    ("layout", "version"), [(0, "1.2"), (1, "1.2"), (2, "1.2"), (3, "1.3"), (6, "1.4"), (7, "1.4")]
)
def test_a_compressed_scan_is_the_one_that_is_not(tmp_path: Path, layout: int, version: str) -> None:
    plain, packed = (packed_las(tmp_path / name, layout, version) for name in ("scan.las", "scan.laz"))
    assert plain.read_bytes()[104] == layout
    assert packed.read_bytes()[104] == layout + 128
    assert np.array_equal(read_las(plain), read_las(packed))
    np.testing.assert_allclose(read_scan(packed, 50, "scan"), POINTS, atol=6e-4)
    packed.rename(tmp_path / "other.LAS")  # the content decides, not the name
    assert np.array_equal(read_las(tmp_path / "other.LAS"), read_las(plain))
    if layout in (2, 3, 7):
        assert np.array_equal(read_las(plain, colour=True), read_las(tmp_path / "other.LAS", colour=True))
    else:
        with pytest.raises(InputError, match="colour"):
            read_las(tmp_path / "other.LAS", colour=True)


def test_a_damaged_compressed_scan(tmp_path: Path) -> None:
    data = packed_las(tmp_path / "scan.laz", 1, "1.2").read_bytes()
    (tmp_path / "torn.laz").write_bytes(data[:-300])
    with pytest.raises(InputError, match=r"torn.laz is damaged \(.+\): fetch it again"):
        read_las(tmp_path / "torn.laz")


def test_without_the_extra_a_compressed_scan_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed_las(tmp_path / "scan.laz", 1, "1.2")
    monkeypatch.setitem(sys.modules, "lazrs", None)
    with pytest.raises(InputError, match=r"lazrs is not installed: pip install 'fedstill\[las\]' brings it"):
        read_las(tmp_path / "scan.laz")


def depth(folder: Path, values: list[list[int]], camera: object = CAMERA, name: str = "room.camera.json") -> Path:
    Image.fromarray(np.array(values, np.uint16)).save(folder / "room.png")
    if camera is not None:
        (folder / name).write_text(camera if isinstance(camera, str) else json.dumps(camera))
    return folder / "room.png"


def test_a_depth_image_is_unprojected_by_hand(tmp_path: Path) -> None:
    """Pixel (row 0, column 2) at 2 m: right by (2 - 1) / 2 * 2 = 1 m, up by 0.5 / 4 * 2 = 0.25 m, ahead 2 m."""
    path = depth(tmp_path, [[0, 0, 2000, 0], [1000, 0, 0, 0]])
    # Pixel (1, 0) at 1 m: left by 1 / 2, down by 0.5 / 4, ahead 1 m.
    np.testing.assert_allclose(read_scan(path, 9, "x"), [[1, 2, 0.25], [-0.5, 1, -0.125]], atol=1e-6)
    turned = [[0, 0, 1, 5], [-1, 0, 0, 6], [0, -1, 0, 7], [0, 0, 0, 1]]  # looks along +x, from (5, 6, 7)
    depth(tmp_path, [[0, 0, 2000, 0], [1000, 0, 0, 0]], CAMERA | {"pose": turned})
    np.testing.assert_allclose(read_scan(path, 9, "x"), [[7, 5, 7.25], [6, 6.5, 6.875]], atol=1e-6)


def test_images_are_scans_only_with_a_camera(tmp_path: Path) -> None:
    path = depth(tmp_path, [[0, 1]], None)
    assert not is_scan(path)
    (tmp_path / "camera.json").write_text(json.dumps(CAMERA))
    assert is_scan(path)


BAD: dict[str, tuple[bytes, str]] = {
    "empty.pcd": (b"", "is empty"),
    "magic.pcd": (b"ply\nformat ascii 1.0\nend_header\n", "its header has no line DATA"),
    "noise.pcd": (bytes(range(256)) * 4, "is no PCD file"),
    "torn-text.pcd": (WRITTEN["ascii.pcd"]()[:900], "of 100 points"),
    "torn.pcd": (WRITTEN["binary.pcd"]()[:-40], "it has 98 of 100 points"),
    "torn-packed.pcd": (WRITTEN["packed.PCD"]()[:-40], "its compressed points are incomplete"),
    "wrong-size.pcd": (
        pcd_header("binary_compressed").encode() + compressed(size=5),
        "compressed points are incomplete",
    ),
    "no-z.pcd": (pcd_header("binary", FIELDS="intensity x y w normal").encode() + binary(), "it has no field z"),
    "fields.pcd": (pcd_header("binary", SIZE="4 4").encode() + binary(), "do not fit together"),
    "type.pcd": (pcd_header("binary", TYPE="U F F Q F").encode() + binary(), "is no PCD file"),
    "count.pcd": (pcd_header("binary", POINTS="many").encode() + binary(), "is no PCD file"),
    "uncounted.pcd": (pcd_header("binary", POINTS="", WIDTH="", HEIGHT="").encode() + binary(), "how many points"),
    "encoding.pcd": (pcd_header("zip").encode() + binary(), "encoded as zip"),
    "words.pcd": (pcd_header("ascii", 1).encode() + b"a b c d e f g\n", "is no PCD file"),
    "nan.pcd": (pcd_header("binary").encode() + binary(np.full_like(POINTS, np.nan)), "holds no points"),
    "infinite.pcd": (pcd_header("binary").encode() + binary(np.full_like(POINTS, np.inf)), "NaN or infinite"),
    "none.pcd": (pcd_header("binary", 0).encode(), "holds no points"),
    "far.pcd": (pcd_header("binary").encode() + binary(POINTS + 5e6), "subtract an origin"),
    "empty.las": (b"", "is empty"),
    "magic.las": (b"LAZF" + las()[4:], "does not begin with LASF"),
    "short.las": (las()[:100], "its header is incomplete"),
    "torn.las": (las()[:-1], "it has 99 of 100 points"),
    "packed.las": (las(layout=129), "packed.las is "),
    "bomb.laz": (las(layout=129, count=2**31), "cannot hold 2,147,483,648 points"),
    "within.las": (las()[:96] + bytes(4) + las()[100:], "its points begin within its header"),
    "scale.las": (las(scale=float("nan")), "impossible"),
    "zero.las": (las(scale=0.0), "impossible"),
    "none.las": (las(count=0), "holds no points"),
    "empty.bin": (b"", "is empty"),
    "torn.bin": (WRITTEN["drive.bin"]()[:-3], "no multiple of 16"),
    "nan.bin": (np.full(400, np.nan, "<f4").tobytes(), "NaN or infinite"),
    "cloud.xml": (b"<x/>", "is no cloud: give .npz"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_get_a_sentence_that_names_them(name: str, tmp_path: Path) -> None:
    data, sentence = BAD[name]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError) as caught:
        read_scan(tmp_path / name, 10, name)
    assert str(tmp_path / name) in str(caught.value)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("camera", "sentence"),
    [
        (None, "is an image without a camera: write room.camera.json"),
        ("{", "is no JSON file"),
        ([1, 2], "should hold an object"),
        ({"fx": 2.0}, "needs a number 'fy', not None"),
        (CAMERA | {"fx": 0}, "fx must be above 0, not 0"),
        (CAMERA | {"scale": -1}, "scale must be above 0"),
        (CAMERA | {"fy": "4"}, "needs a number 'fy', not '4'"),
        (CAMERA | {"cx": 640.0}, "the principal point 640, 0.5 is outside the image of 4 x 2 pixels"),
        (CAMERA | {"width": 640}, "is for images of width 640, and this one has 4"),
        (CAMERA | {"pose": [[1, 0], [0, 1]]}, "pose must be a 4 x 4 matrix"),
        (CAMERA | {"pose": (2 * np.eye(4)).tolist()}, "pose must be a 4 x 4 matrix"),
    ],
)
def test_bad_cameras_get_a_sentence(camera: object, sentence: str, tmp_path: Path) -> None:
    path = depth(tmp_path, [[0, 0, 2000, 0], [1000, 0, 0, 0]], camera)
    with pytest.raises(InputError) as caught:
        read_scan(path, 10, "x")
    assert sentence in str(caught.value)
    assert "room." in str(caught.value)


def test_bad_images_get_a_sentence(tmp_path: Path) -> None:
    path = depth(tmp_path, [[0, 0, 0, 0], [0, 0, 0, 0]])
    with pytest.raises(InputError, match="no pixel with a depth above 0"):
        read_scan(path, 10, "x")
    Image.fromarray(np.zeros((2, 4, 3), np.uint8)).save(path)
    with pytest.raises(InputError, match="one channel of 16 bits, and its mode is RGB"):
        read_scan(path, 10, "x")
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(InputError, match="is no image that can be read"):
        read_scan(path, 10, "x")
