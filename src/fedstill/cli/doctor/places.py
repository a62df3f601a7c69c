"""Whether a folder can be written, found out without leaving anything in it."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path


def standing(path: Path) -> Path:
    """The path itself, or the nearest above it that exists."""
    path = path.expanduser().absolute()
    return next(one for one in (path, *path.parents) if os.path.lexists(one))


def obstacle(folder: Path) -> str | None:
    """Why nothing could be written there; nothing where it could, also if the folder would have to be made."""
    place = standing(folder)
    if not place.is_dir():
        return f"{place} is no folder"
    try:
        with tempfile.TemporaryFile(dir=place):  # has no name, or loses it at once
            return None
    except OSError as error:
        return f"{place}: {error.strerror or error}"


def free_bytes(folder: Path) -> int:
    return shutil.disk_usage(standing(folder)).free
