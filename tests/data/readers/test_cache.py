from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedstill.data.catalogue import load
from fedstill.data.readers import FileFindings, ReaderHints, points, read, shapes
from fedstill.data.readers.cache import cache_folder

Write = Callable[..., Path]


@pytest.fixture
def home(tmp_path: Path, write_box: Write) -> Path:
    for number in range(4):
        for kind in "ab":
            write_box(tmp_path / "home" / kind / f"{number}.off", 1, 2 + number, 1 + (kind == "a"))
    return tmp_path / "home"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Every file that is really read."""
    seen: list[Path] = []

    def counted(path: Path, count: int, key: str, normals: bool) -> np.ndarray:
        seen.append(path)
        return points.read_shape(path, count, key, normals=normals)

    monkeypatch.setattr(shapes, "read_shape", counted)
    return seen


def test_files_are_read_once(home: Path, cache: Path, reads: list[Path]) -> None:
    first = load(f"folder:{home}")
    assert len(reads) == 8
    again = load(f"folder:{home}")
    assert len(reads) == 8
    assert again.fingerprint() == first.fingerprint()
    assert [path.suffix for path in cache.iterdir()] == [".npz"]
    with np.load(next(cache.iterdir()), allow_pickle=False) as entry:
        assert entry["clouds"].shape == (8, 2048, 3)


def test_a_changed_source_is_read_anew_and_the_old_entry_goes(
    home: Path, cache: Path, reads: list[Path], write_box: Write
) -> None:
    before = load(f"folder:{home}").fingerprint()
    entry = next(cache.iterdir())
    write_box(home / "a" / "0.off", 7, 8, 1)
    os.utime(home / "a" / "0.off", ns=(1, 1))
    changed = load(f"folder:{home}").fingerprint()
    assert changed != before
    assert len(reads) == 16
    assert not entry.exists()
    assert len(list(cache.iterdir())) == 1
    os.utime(home / "a" / "0.off", ns=(2, 2))  # touched only: read again, and the same
    assert load(f"folder:{home}").fingerprint() == changed
    assert len(reads) == 24
    (home / "b" / "3.off").rename(home / "b" / "9.off")
    load(f"folder:{home}")
    assert len(reads) == 32


def test_points_and_versions_have_entries_of_their_own(
    home: Path, reads: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for points_wanted in (64, 64, 32):
        raw = read(home, FileFindings(), ReaderHints(points=points_wanted))
        assert raw.splits["whole"].inputs.shape[1] == points_wanted
    assert len(reads) == 16
    monkeypatch.setattr(shapes, "VERSION", shapes.VERSION + 1)
    read(home, FileFindings(), ReaderHints(points=64))
    assert len(reads) == 24


def test_a_broken_entry_is_rebuilt(home: Path, cache: Path, reads: list[Path]) -> None:
    before = load(f"folder:{home}").fingerprint()
    entry = next(cache.iterdir())
    whole = entry.read_bytes()
    middle = len(whole) // 2
    strange = entry.with_name("strange.npz")
    np.savez(strange, clouds=np.zeros((8, 5)), notes=np.array(["x"]))
    broken = (b"", b"PK", whole[:-100], whole[:middle] + bytes(50) + whole[middle + 50 :], strange.read_bytes())
    for times, damage in enumerate(broken, start=2):
        entry.write_bytes(damage)
        assert load(f"folder:{home}").fingerprint() == before
        assert len(reads) == 8 * times
        assert entry.read_bytes() == whole


def test_nothing_is_kept_of_faulty_files(home: Path, cache: Path) -> None:
    (home / "a" / "0.off").write_text("OFF?")
    found = FileFindings()
    read(home, found, ReaderHints())
    assert len(found.faults) == 1
    assert not cache.exists()


def test_a_cache_that_cannot_be_written_does_no_harm(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("FEDSTILL_CACHE", str(tmp_path / "file"))
    assert len(load(f"folder:{home}").train) == 6


def test_the_place_comes_from_the_environment_or_the_user(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    assert cache_folder() == cache
    monkeypatch.delenv("FEDSTILL_CACHE")
    assert cache_folder().parent.name == "fedstill"
