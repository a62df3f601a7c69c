"""Locks are read, not taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedstill.core.locks import lock_folder
from fedstill.live.held_locks import held_inodes, is_held


@pytest.mark.skipif(held_inodes() is None, reason="this system lists no locks")
def test_a_locked_folder_is_seen_and_not_taken(tmp_path: Path) -> None:
    for name in ("worked-on", "free"):
        (tmp_path / name).mkdir()
    lock = lock_folder(tmp_path / "worked-on")
    assert lock is not None
    seen = {name: is_held(tmp_path / name, held_inodes() or frozenset()) for name in ("worked-on", "free", "none")}
    assert seen == {"worked-on": True, "free": False, "none": False}
    lock.release()
    assert not is_held(tmp_path / "worked-on", held_inodes() or frozenset())
    assert not (tmp_path / "free" / ".lock").exists()


def test_a_table_of_another_form_and_none(tmp_path: Path) -> None:
    table = tmp_path / "locks"
    table.write_text("1: FLOCK ADVISORY WRITE 7 08:01:42 0 EOF\n1: -> FLOCK ADVISORY WRITE 8 08:01:43 0 EOF\nx\n")
    assert held_inodes(table) == {42}
    assert held_inodes(tmp_path / "none") is None
