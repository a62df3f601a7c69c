"""Procedural rooms: parametric furniture, placed without overlap, scanned by simulated depth cameras."""

from fedstill.detection.rooms.builtin_rooms import make_rooms
from fedstill.detection.rooms.furniture import CLASSES
from fedstill.detection.rooms.room_layout import KINDS

__all__ = ["CLASSES", "KINDS", "make_rooms"]
