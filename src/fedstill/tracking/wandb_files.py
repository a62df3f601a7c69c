"""Reading what Weights & Biases has written offline: which steps of a run are kept."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_BLOCK, _HEAD, _START = 32768, struct.Struct("<IHB"), 7  # as in LevelDB's logs: checksum, length and kind of a piece
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def pieces(data: bytes) -> Iterator[bytes]:
    """The records of such a file, as far as they are complete."""
    place, held = _START, b""
    while place + _HEAD.size <= len(data):
        left = _BLOCK - place % _BLOCK
        if left < _HEAD.size:
            place += left
            continue
        _, length, kind = _HEAD.unpack_from(data, place)
        place += _HEAD.size
        if place + length > len(data) or kind not in (_WHOLE, _FIRST, _MIDDLE, _LAST):
            return
        held = (b"" if kind in (_WHOLE, _FIRST) else held) + data[place : place + length]
        place += length
        if kind in (_WHOLE, _LAST):
            yield held


def histories(file: Path, messages: Any) -> Iterator[dict[str, Any]]:
    """The logged steps, with their numbers; `messages` is the package's own module of message types."""
    for data in pieces(file.read_bytes()):
        record = messages.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            yield {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
