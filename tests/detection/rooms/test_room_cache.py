"""Rooms from disk: the same bits, made once, and anew when anything that makes them changed."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from fedstill.detection.rooms import make_rooms, room_cache
from fedstill.detection.rooms.room_cache import kept_rooms


@pytest.fixture
def makings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rooms were made, each time."""
    numbers: list[int] = []
    make = room_cache.builtin_rooms.make_rooms

    def counted(number: int, seed: int, points: int) -> object:
        numbers.append(number)
        return make(number, seed, points)

    monkeypatch.setattr(room_cache.builtin_rooms, "make_rooms", counted)
    return numbers


def test_rooms_are_made_once(makings: list[int], cache: Path) -> None:
    made = make_rooms(3, 5, 128)
    for _ in range(2):
        scenes = kept_rooms(3, 5, 128)
        for name in ("points", "boxes", "classes", "kinds"):
            assert torch.equal(getattr(scenes, name), getattr(made, name))
        assert (scenes.names, scenes.class_names, scenes.kind_names) == (made.names, made.class_names, made.kind_names)
    assert makings == [3]
    assert [path.name.rpartition("-")[0] for path in cache.iterdir()] == ["rooms-3-128-5"]
    kept_rooms(3, 6, 128)
    assert makings == [3, 3]
    assert len(list(cache.iterdir())) == 2


@pytest.mark.parametrize("damage", ["cut", "flipped", "other", "shape"])
def test_what_cannot_be_trusted_is_made_anew(damage: str, makings: list[int], cache: Path) -> None:
    good = kept_rooms(2, 0, 64)
    (path,) = cache.iterdir()
    content = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "flipped":
        content[len(content) // 4] ^= 255
        path.write_bytes(content)
    elif damage == "other":
        np.savez(path, clouds=np.zeros(3))
    else:
        np.savez(
            path, points=np.zeros((2, 64, 3)), boxes=np.zeros((2, 9, 7)), classes=np.zeros((2, 9)), kinds=np.zeros(2)
        )
    assert torch.equal(kept_rooms(2, 0, 64).points, good.points)
    assert makings == [2, 2]


def test_other_code_makes_other_rooms(
    makings: list[int], cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The entry of the old code goes."""
    kept_rooms(2, 0, 64)
    (tmp_path / "layout.py").write_text("changed = True\n")
    changed = ModuleType("layout")
    changed.__file__ = str(tmp_path / "layout.py")
    monkeypatch.setattr(room_cache, "_MAKERS", (*room_cache._MAKERS, changed))
    kept_rooms(2, 0, 64)
    assert makings == [2, 2]
    assert len(list(cache.iterdir())) == 1


def test_code_without_files_makes_rooms_all_the_same(makings: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    zipped = ModuleType("zipped")
    zipped.__file__ = "/nowhere.zip/layout.py"
    monkeypatch.setattr(room_cache, "_MAKERS", (zipped,))
    assert len(kept_rooms(1, 0, 64)) == len(kept_rooms(1, 0, 64)) == 1
    assert makings == [1, 1]
