"""Output files of a command: which must be equal, and what they show about the phase of a kill."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from fedstill.core.errors import BusyError
from fedstill.runtime import checkpoint
from fedstill.runtime.run_folder import RunFolder

Place = Literal["starting", "in a round", "committing", "finishing", "between runs"]
PLACES: tuple[Place, ...] = ("starting", "in a round", "committing", "finishing", "between runs")
Look = Mapping[str, tuple[int, int]]

_LOCK, _TIMES = ".lock", "timing.json"
_DIGITS = 4  # of each figure's digest in a line of a study's results


def look(out: Path) -> dict[str, tuple[int, int]]:
    """Every file below a folder with its size and modification time; files that vanish meanwhile are left out."""
    found: dict[str, tuple[int, int]] = {}
    folders = [str(out)]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    else:
                        about = entry.stat(follow_symlinks=False)
                        found[entry.path] = (about.st_size, about.st_mtime_ns)
        except OSError:
            continue
    return found


def landed(before: Look, after: Look, out: Path, rounds: Callable[[str], int]) -> Place:
    """The phase of a kill, derived from the folder before the command started and after the kill.

    A command locks a run after planning and then runs its rounds. `rounds` gives the number of rounds by folder name.
    """
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    if not changed:
        return "starting"
    touched = {Path(name).parent for name in changed if Path(name).name == _LOCK}
    places = {_in_run(run, rounds(run.name)) for run in touched if run.is_dir()}
    for place in ("committing", "in a round", "finishing"):
        if place in places:
            return place
    return "finishing" if _is_one_run(out) else "between runs"


def _in_run(run: Path, rounds: int) -> Place | None:
    """The phase of a run; None if it is finished."""
    if (run / "result.json").exists():
        return None
    found, _ = checkpoint.candidates(run)
    committed = found[0].round if found else 0
    if committed >= rounds:
        return "finishing"
    journal = run / "journal.jsonl"
    lines = journal.read_bytes().count(b"\n") if journal.exists() else committed
    replacing = (run / checkpoint.PREVIOUS).exists() and not (run / checkpoint.NAME).exists()
    half = any(path.name != ".config.json" for path in run.glob(".*.tmp"))
    return "committing" if lines != committed or replacing or half else "in a round"


def _is_one_run(out: Path) -> bool:
    return len([path for path in out.iterdir() if path.is_dir()]) < 2 if out.is_dir() else True


def progress(out: Path, rounds: Callable[[str], int]) -> int:
    """Number of committed rounds of all runs below a folder."""
    total = 0
    for run in {path.parent for path in out.glob("*/checkpoint*.safetensors")}:
        found, _ = checkpoint.candidates(run)
        total += min(found[0].round if found else 0, rounds(run.name))
    return total


def contents(out: Path) -> dict[str, bytes]:
    """All files that must be equal, by name, without times and locks."""
    return {
        path.relative_to(out).as_posix(): timeless(path.read_bytes(), path.suffix)
        for path in sorted(out.rglob("*"))
        if path.is_file() and path.name not in (_LOCK, _TIMES)
    }


def timeless(data: bytes, suffix: str) -> bytes:
    """The content of a file without measured seconds (of an encoder, or in the results of a study).

    >>> timeless(b'{"losses": [1.5], "seconds": 3}', ".json")
    b'{"losses": [1.5]}'
    >>> timeless(b'{"figures": ["seed", "seconds", "bytes"], "runs": [[7, 0.4, 9]]}', ".json")
    b'{"figures": ["seed", "bytes"], "runs": [[7, 9]]}'
    """
    try:
        content = json.loads(data) if suffix == ".json" else None
    except ValueError:
        return data
    if not isinstance(content, dict) or not {"seconds", "figures"} & content.keys():
        return data
    return json.dumps(_without_seconds(content)).encode()


def _without_seconds(content: dict[str, Any]) -> dict[str, Any]:
    left = {name: value for name, value in content.items() if name != "seconds"}
    if "seconds" in left.get("figures", ()):
        place = left["figures"].index("seconds")
        runs = [_without_digest(row, place) if left["figures"][-1] == "digests" else row for row in left["runs"]]
        left["runs"] = [row[:place] + row[place + 1 :] for row in runs]
        left["figures"] = left["figures"][:place] + left["figures"][place + 1 :]
    if isinstance(left.get("students"), dict):
        left["students"] = _without_seconds(left["students"])
    return left


def _without_digest(row: list[Any], place: int) -> list[Any]:
    """A line of a study's results without the digest of one of its figures.

    >>> _without_digest([7, 0.4, "aaaabbbb"], 1)
    [7, 0.4, 'aaaa']
    """
    digests, at = row[-1], place * _DIGITS
    return [*row[:-1], digests[:at] + digests[at + _DIGITS :]]


def differences(killed: Mapping[str, bytes], whole: Mapping[str, bytes]) -> tuple[list[str], list[str]]:
    """Names of files that are missing, unexpected or different, and of hidden files that were left behind.

    >>> differences({"a": b"1", "b": b"3", ".a.7.tmp": b"1"}, {"a": b"1", "b": b"2", "c": b""})
    (['b', 'c'], ['.a.7.tmp'])
    """
    unequal = sorted(name for name in killed.keys() | whole.keys() if killed.get(name) != whole.get(name))
    hidden = {name for name in unequal if name not in whole and Path(name).name.startswith(".")}
    return [name for name in unequal if name not in hidden], sorted(hidden)


def held_locks(out: Path) -> list[str]:
    """Runs that are still locked."""
    held = []
    for lock in sorted(out.rglob(_LOCK)):
        try:
            RunFolder(lock.parent).lock().release()
        except BusyError:
            held.append(lock.parent.name)
    return held
