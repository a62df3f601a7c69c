"""A scan of one's own for a detector."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedstill.core.errors import InputError
from fedstill.data.single import read_cloud


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
    found = read_cloud(path, 200).numpy()
    assert (found.shape, found.dtype) == ((200, 3), np.float32)
    assert len(as_rows(found)) == 200
    assert as_rows(found) <= as_rows(cloud)
    assert np.array_equal(found, read_cloud(path, 200).numpy())
    more = read_cloud(path, 1000).numpy()
    assert more.shape == (1000, 3)
    assert as_rows(more) == as_rows(cloud)


def test_a_mesh_gives_points_of_its_surface(tmp_path: Path, write_box: Callable[..., Path]) -> None:
    """A box from 0 to 2, 3 and 4: every point lies on one of its faces."""
    found = read_cloud(write_box(tmp_path / "room.obj", 2, 3, 4), 500).numpy()
    assert found.shape == (500, 3)
    on_face = np.isclose(found, 0, atol=1e-5) | np.isclose(found, [2, 3, 4], atol=1e-5)
    assert on_face.any(axis=1).all()


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no file .*nowhere.ply"):
        read_cloud(tmp_path / "nowhere.ply", 100)
    (tmp_path / "scan.las").write_bytes(b"x")
    with pytest.raises(InputError, match=r"scan.las is no cloud: give .npz, .ply"):
        read_cloud(tmp_path / "scan.las", 100)
    np.save(tmp_path / "few.npy", points(63))
    with pytest.raises(InputError, match=r"few.npy has 63 points: a scene needs at least 64"):
        read_cloud(tmp_path / "few.npy", 100)
    np.savez(tmp_path / "other.npz", y=points(80))
    with pytest.raises(InputError, match=r"other.npz should hold one cloud of the shape \(points, 3\)"):
        read_cloud(tmp_path / "other.npz", 100)
    bad = points(80)
    bad[3, 1] = np.nan
    np.savez(tmp_path / "bad.npz", points=bad)
    with pytest.raises(InputError, match=r"bad.npz: 1 of 80 points are NaN or infinite"):
        read_cloud(tmp_path / "bad.npz", 100)
