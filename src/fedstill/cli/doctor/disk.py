"""Room for runs and caches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fedstill.cli.doctor.finding import Finding
from fedstill.cli.doctor.places import free_bytes, obstacle
from fedstill.core.numbers import count, size
from fedstill.data.readers.cache import VARIABLE, cache_folder

TOPIC = "disk"
SCARCE, NONE_LEFT = 2**30, 64 * 2**20  # bytes: a study of small models, and one checkpoint of a large one


def look_at_disk(out: Path) -> Iterator[Finding]:
    number = len(list(out.glob("*/config.json"))) if out.is_dir() else 0
    held = f"{count(number, 'run')}, " if number else ""
    free = "free some space (`fedstill clean` shows what runs take), or choose another folder with --out"
    yield _place("runs", out, held, "choose another folder with --out", free)
    cache = cache_folder()
    taken = sum(file.stat().st_size for file in cache.rglob("*") if file.is_file()) if cache.is_dir() else 0
    elsewhere = f"choose another folder with {VARIABLE}"
    yield _place("cache of clouds", cache, f"{size(taken)}, " if taken else "", elsewhere, elsewhere)


def _place(what: str, folder: Path, held: str, elsewhere: str, more_room: str) -> Finding:
    trouble = obstacle(folder)
    if trouble is not None:
        return Finding(TOPIC, "problem", f"{what} in {folder}: cannot be written ({trouble})", elsewhere)
    left = free_bytes(folder)
    said = f"{what} in {folder}: {held}{size(left)} free"
    if left < SCARCE:
        return Finding(TOPIC, "problem" if left < NONE_LEFT else "look", said, more_room)
    return Finding(TOPIC, "ok", said)
