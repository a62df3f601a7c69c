"""Unlabelled rooms for pre-training, different from those that clients have."""

from __future__ import annotations

from fedstill.core.dataset import ArrayDataset
from fedstill.data.bundle import Bundle, Source, datasets
from fedstill.detection.rooms.builtin_rooms import POINTS
from fedstill.detection.rooms.room_cache import kept_rooms

ROOMS, SEED = 2000, 1  # the data set `rooms` is of seed 0


@datasets.register("rooms-unlabelled")
def rooms_unlabelled(source: Source) -> Bundle:
    """2,000 furnished rooms as depth cameras see them, none of them in `rooms`, without boxes: for pre-training."""
    scenes = ArrayDataset(inputs=kept_rooms(ROOMS, SEED).points)
    return Bundle(source.name, train=scenes, test=scenes, classes=(), kind="scene", shape=(POINTS, 3))
