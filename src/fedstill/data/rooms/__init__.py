"""Procedural rooms: parametric furniture, placed without overlap, seen by depth cameras."""

from fedstill.data.rooms.bundle import make_rooms
from fedstill.data.rooms.furniture import CLASSES
from fedstill.data.rooms.layout import KINDS

__all__ = ["CLASSES", "KINDS", "make_rooms"]
