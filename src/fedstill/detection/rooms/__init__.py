"""Procedural rooms: parametric furniture, placed without overlap, seen by depth cameras."""

from fedstill.detection.rooms.builtin_rooms import make_rooms
from fedstill.detection.rooms.furniture import CLASSES
from fedstill.detection.rooms.room_layout import KINDS

__all__ = ["CLASSES", "KINDS", "make_rooms"]
