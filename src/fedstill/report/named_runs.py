"""The runs that a user names: as objects, by their folders, or by folders that hold several."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def run_folders(sources: Sequence[Path]) -> list[Path]:
    """The folders of runs among these, and directly in these."""
    return [
        folder
        for source in sources
        for folder in (
            [source]
            if (source / "config.json").is_file()
            else [path.parent for path in sorted(source.glob("*/config.json"))]
        )
    ]
