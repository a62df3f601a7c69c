"""The files that processes of this machine hold locks on, from the system's list: no lock is taken to find out."""

from __future__ import annotations

import os
from pathlib import Path

from fedstill.core.locks import LOCK_FILE

_TABLE = Path("/proc/locks")


def held_inodes(table: Path = _TABLE) -> frozenset[int] | None:
    """The inodes of locked files; None where the system does not list them."""
    try:
        lines = table.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    fields = [line.split() for line in lines if "->" not in line]  # with an arrow: a process that waits for one
    found = (one[5].rpartition(":")[2] for one in fields if len(one) > 5)
    return frozenset(int(inode) for inode in found if inode.isdigit())


def is_held(folder: Path, held: frozenset[int]) -> bool:
    """Whether some process works on a folder: it then holds the folder itself, or the lock file in it."""
    for path in (folder, folder / LOCK_FILE):
        try:
            if os.stat(path).st_ino in held:
                return True
        except (OSError, ValueError):
            continue
    return False
