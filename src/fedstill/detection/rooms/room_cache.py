"""An on-disk cache of rooms: making a thousand takes a while, and every process of a study needs them."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from fedstill.core import streams
from fedstill.data.readers.cache import Slot
from fedstill.detection import scenes
from fedstill.detection.rooms import builtin_rooms, footprints, furniture, rays, room_layout, scan
from fedstill.detection.rooms.furniture import CLASSES
from fedstill.detection.rooms.room_layout import KINDS, MOST
from fedstill.detection.scenes import Scenes

_log = logging.getLogger(__name__)

_MAKERS = (
    streams,
    scenes,
    footprints,
    furniture,
    room_layout,
    rays,
    scan,
    builtin_rooms,
)  # the code that determines the bits of a room


def kept_rooms(number: int, seed: int = 0, points: int = builtin_rooms.POINTS) -> Scenes:
    """`make_rooms`, from the cache if possible; other code, or another numpy version, makes them anew."""
    try:
        slot = Slot.made(f"rooms {number} {points} {seed}", [Path(str(maker.__file__)) for maker in _MAKERS])
    except OSError:  # a package without files, as in a zip
        _log.info("rooms are not cached: the generator's code cannot be read", exc_info=True)
        return builtin_rooms.make_rooms(number, seed, points)
    kept = _fetched(slot, number, seed, points)
    if kept is None:
        kept = builtin_rooms.make_rooms(number, seed, points)
        slot.keep_arrays(
            points=kept.points.numpy(), boxes=kept.boxes.numpy(), classes=kept.classes.numpy(), kinds=kept.kinds.numpy()
        )
    return kept


def _fetched(slot: Slot, number: int, seed: int, points: int) -> Scenes | None:
    arrays = slot.fetch_arrays("points", "boxes", "classes", "kinds")
    wanted = [
        ("float32", (number, points, 3)),
        ("float32", (number, MOST, 7)),
        ("int64", (number, MOST)),
        ("int64", (number,)),
    ]
    if arrays is None or [(array.dtype.name, array.shape) for array in arrays] != wanted:
        return None
    names = tuple(builtin_rooms.room_name(seed, index) for index in range(number))
    clouds, boxes, classes, kinds = (torch.from_numpy(array) for array in arrays)
    return Scenes(clouds, boxes, classes, kinds, CLASSES, KINDS, names)
