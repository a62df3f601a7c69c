"""Many files of one shape each as one array, read once and then cached."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedstill.core.errors import InputError
from fedstill.data.readers.cache import Slot
from fedstill.data.readers.raw import FileFindings

Cloud = NDArray[np.float32]


def stack(
    home: Path,
    files: Sequence[Path],
    read: Callable[[Path], Cloud],
    made_by: str,
    found: FileFindings,
) -> tuple[Cloud, list[int]]:
    """Clouds (files, points, 3) of the readable files, and the indices of these files.

    A problem with a file is a fault that names it; nothing is cached then.
    """
    slot: Slot | None = None
    with found.collecting():
        slot = Slot.of(home, files, made_by)
    kept = slot.fetch() if slot is not None else None
    if kept is not None and len(kept[0]) == len(files):
        found.notes += kept[1]
        return kept[0], list(range(len(files)))
    clouds: dict[int, Cloud] = {}
    before = len(found.faults)
    for row, path in enumerate(files):
        with found.collecting():
            clouds[row] = read(path)
    notes: list[str] = []
    if clouds:
        clouds = _of_one_length(clouds, files, found, notes)
    found.notes += notes
    pile = np.stack(list(clouds.values())) if clouds else np.empty((0, 1, 3), np.float32)
    if slot is not None and clouds and len(found.faults) == before:
        slot.keep(pile, notes)
    return pile, list(clouds)


def _of_one_length(
    clouds: dict[int, Cloud], files: Sequence[Path], found: FileFindings, notes: list[str]
) -> dict[int, Cloud]:
    """All clouds cut to the shortest.

    A cloud with less than half of the usual number of points is a fault instead: otherwise a single broken scan would
    reduce the points of all others.
    """
    usual = int(np.median([len(cloud) for cloud in clouds.values()]))
    enough: dict[int, Cloud] = {}
    for row, cloud in clouds.items():
        with found.collecting():
            if 2 * len(cloud) < usual:
                raise InputError(f"{files[row]} holds {len(cloud):,} points: too few, the others hold about {usual:,}")
            enough[row] = cloud
    lengths = [len(cloud) for cloud in enough.values()]
    shortest = min(lengths)
    if shortest < max(lengths):
        notes.append(f"clouds hold {shortest:,} points or more: {shortest:,} of each are kept")
    return {row: cloud[:shortest] for row, cloud in enough.items()}
