"""Many files of one shape each as one array, read once and then cached."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedstill.core.errors import InputError
from fedstill.data.clouds import SPARSE
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
    before = len(found.faults) + len(found.skipped)
    for row, path in enumerate(files):
        with found.reading():
            clouds[row] = read(path)
    notes: list[str] = []
    if clouds:
        clouds = _of_one_length(clouds, files, found, notes)
    found.notes += notes
    pile = np.stack(list(clouds.values())) if clouds else np.empty((0, 1, 3), np.float32)
    if slot is not None and clouds and len(found.faults) + len(found.skipped) == before:
        slot.keep(pile, notes)
    return pile, list(clouds)


def _of_one_length(
    clouds: dict[int, Cloud], files: Sequence[Path], found: FileFindings, notes: list[str]
) -> dict[int, Cloud]:
    """All clouds cut to the shortest, but for clouds with less than half of the usual number of points.

    These repeat some of their points: otherwise a single sparse scan would reduce the points of all others. One with
    less than an eighth is probably broken, and a fault.
    """
    usual = int(np.median([len(cloud) for cloud in clouds.values()]))
    length = min(len(cloud) for cloud in clouds.values() if 2 * len(cloud) >= usual)
    enough: dict[int, Cloud] = {}
    for row, cloud in clouds.items():
        with found.reading():
            if SPARSE * len(cloud) < usual:
                raise InputError(f"{files[row]} holds {len(cloud):,} points: too few, the others hold about {usual:,}")
            enough[row] = repeated(cloud, length)
    if sparse := [files[row] for row in enough if len(clouds[row]) < length]:
        notes.append(
            f"{len(sparse):,} clouds hold fewer points than {length:,}, and repeat some: the first is {sparse[0]}"
        )
    if enough and max(len(clouds[row]) for row in enough) > length:
        notes.append(f"clouds hold {length:,} points or more: {length:,} of each are kept")
    return enough


def repeated(cloud: Cloud, length: int) -> Cloud:
    """The first points of a cloud, whose points are in random order; all of them over again where there are too few.

    >>> repeated(np.array([[0.0], [1.0]], dtype=np.float32), 3).ravel().tolist()
    [0.0, 1.0, 0.0]
    """
    return cloud[np.arange(length) % len(cloud)] if len(cloud) < length else cloud[:length]
