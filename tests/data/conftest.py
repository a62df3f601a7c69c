from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedstill.detection import scene_sets
from fedstill.detection.rooms import make_rooms
from fedstill.detection.scenes import Scenes


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """No test reads what another, or a user, has cached."""
    place = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("FEDSTILL_CACHE", str(place))
    return place / "clouds"


@pytest.fixture
def few_rooms(monkeypatch: pytest.MonkeyPatch) -> None:
    """The data set `rooms` with its first 24 rooms to train on and the next 8 to test on."""
    monkeypatch.setattr(scene_sets, "TRAINING_ROOMS", 24)
    monkeypatch.setattr(scene_sets, "TEST_ROOMS", 8)


@pytest.fixture
def write_box() -> Callable[..., Path]:
    """A box as a mesh file, in the format of its suffix."""
    corners = np.array([[x, y, z] for x in (0, 1) for y in (0, 1) for z in (0, 1)], dtype=float)
    squares = ((0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3))
    faces = [face for a, b, c, d in squares for face in ((a, b, c), (a, c, d))]

    def write(path: Path, *sides: float) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        points = corners * (sides or (1, 1, 1))
        rows = "\n".join(" ".join(map(str, point)) for point in points)
        threes = "\n".join("3 " + " ".join(map(str, face)) for face in faces)
        if path.suffix == ".off":
            text = f"OFF{len(points)} {len(faces)} 0\n{rows}\n{threes}\n"  # as some of ModelNet40's begin
        elif path.suffix == ".obj":
            numbered = "\n".join("f " + " ".join(str(corner + 1) for corner in face) for face in faces)
            text = "mtllib none.mtl\n" + "".join(f"v {row}\n" for row in rows.splitlines()) + numbered + "\n"
        elif path.suffix == ".stl":
            loops = ("".join(f"vertex {' '.join(map(str, points[corner]))}\n" for corner in face) for face in faces)
            facets = "".join(f"facet normal 0 0 0\nouter loop\n{loop}endloop\nendfacet\n" for loop in loops)
            text = f"solid box\n{facets}endsolid box\n"
        else:
            text = (
                f"ply\nformat ascii 1.0\nelement vertex {len(points)}\n"
                "property float x\nproperty float y\nproperty float z\n"
                f"element face {len(faces)}\nproperty list uchar int vertex_indices\nend_header\n{rows}\n{threes}\n"
            )
        path.write_text(text)
        return path

    return write


@pytest.fixture
def write_cloud() -> Callable[..., Path]:
    """A random cloud as a text file or an array; the number decides which."""

    def write(path: Path, number: int = 0, points: int = 40, mark: str = " ") -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        cloud = np.random.default_rng(number).normal(size=(points, 6))
        if path.suffix == ".npy":
            np.save(path, cloud[:, :3])
        else:
            path.write_text("".join(mark.join(f"{value:.6f}" for value in row) + "\n" for row in cloud))
        return path

    return write


@pytest.fixture(scope="session")
def rooms() -> Scenes:
    return make_rooms(40, seed=3)


@pytest.fixture(scope="session")
def turned_rooms() -> Scenes:
    return make_rooms(12, seed=3, points=1024, headings="free")
