"""Locks: one process at a time, also when the lock file is deleted."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fedstill.core import locks
from fedstill.core.errors import RunError
from fedstill.core.locks import LOCK_FILE, lock_folder, take_lock


def test_one_process_at_a_time_has_a_lock(tmp_path: Path) -> None:
    lock = take_lock(tmp_path / LOCK_FILE)
    assert lock is not None
    assert take_lock(tmp_path / LOCK_FILE) is None
    lock.release()
    again = take_lock(tmp_path / LOCK_FILE)
    assert again is not None
    again.release()


def test_a_folder_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    lock = lock_folder(tmp_path)
    assert lock is not None
    with lock:
        assert lock_folder(tmp_path) is None
        lock.check()
    again = lock_folder(tmp_path)
    assert again is not None
    again.release()


def test_a_process_that_locks_the_file_alone_is_respected(tmp_path: Path) -> None:
    """As earlier versions do; and what was tried then holds nothing."""
    earlier = take_lock(tmp_path / LOCK_FILE)
    assert earlier is not None
    assert lock_folder(tmp_path) is None
    earlier.release()
    lock = lock_folder(tmp_path)
    assert lock is not None
    lock.release()


def test_a_deleted_lock_file_lets_nobody_in(tmp_path: Path) -> None:
    lock = lock_folder(tmp_path)
    assert lock is not None
    with lock:
        (tmp_path / LOCK_FILE).unlink()
        assert lock_folder(tmp_path) is None
        lock.check()


def test_a_replaced_folder_is_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    lock = lock_folder(folder)
    assert lock is not None
    with lock:
        folder.rename(tmp_path / "moved")
        with pytest.raises(RunError, match="another process may be writing"):
            lock.check()
        folder.mkdir()
        with pytest.raises(RunError, match="was deleted or replaced"):
            lock.check()
        shutil.rmtree(folder)


def test_where_folders_cannot_be_locked_a_deleted_file_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "_locked_folder", lambda folder: (None, True))
    lock = lock_folder(tmp_path)
    assert lock is not None
    with lock:
        lock.check()
        assert lock_folder(tmp_path) is None
        (tmp_path / LOCK_FILE).unlink()
        second = lock_folder(tmp_path)
        assert second is not None
        with second, pytest.raises(RunError, match=r"\.lock was deleted or replaced"):
            lock.check()
