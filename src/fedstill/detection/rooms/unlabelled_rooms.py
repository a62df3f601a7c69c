"""Rooms for pre-training, without and with boxes, different from those that clients have."""

from __future__ import annotations

import torch

from fedstill.core.dataset import ArrayDataset
from fedstill.data.bundle import Bundle, Source, datasets
from fedstill.detection.rooms.builtin_rooms import POINTS
from fedstill.detection.rooms.room_cache import kept_rooms
from fedstill.detection.scene_sets import scene_bundle, some_scenes

ROOMS, SEED = 2000, 1  # the data set `rooms` is of seed 0
HELD_OUT = 200  # further rooms, for measuring an encoder


@datasets.register("rooms-unlabelled")
def rooms_unlabelled(source: Source) -> Bundle:
    """2,000 furnished rooms as depth cameras see them, none of them in `rooms`, without boxes: for pre-training."""
    scenes = ArrayDataset(inputs=kept_rooms(ROOMS, SEED).points)
    return Bundle(source.name, train=scenes, test=scenes, classes=(), kind="scene", shape=(POINTS, 3))


@datasets.register("rooms-pretraining")
def rooms_pretraining(source: Source) -> Bundle:
    """The 2,000 rooms of `rooms-unlabelled` with boxes, and 200 more to test on; none of them is in `rooms`."""
    every = kept_rooms(ROOMS + HELD_OUT, SEED)
    train, test = torch.arange(len(every)).split([ROOMS, HELD_OUT])
    return scene_bundle(source.name, {"train": some_scenes(every, train), "test": some_scenes(every, test)})
