"""Runs an experiment in a process of its own and kills it, with SIGKILL, at a chosen place.

    python killable.py OUT METHOD [PLACE COUNT]

PLACE is one of PLACES; the process dies when that place is reached for the COUNT-th time, and says so first.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import fedstill
from fedstill.core import files, fit
from fedstill.runtime import checkpoint
from fedstill.runtime.round import Federation

EXPERIMENT = {
    "data": "digits",
    "model": "cnn-bn",
    "clients": 4,
    "rounds": 5,
    "seed": 5,
    "participation": {"name": "random", "number": 3},
    "dropout": {"name": "independent", "rate": 0.2, "when": "during", "replace": True},
    "fleet": {"plugged": 0.5},
    "clusters": {"number": 2, "every": 2},
    "training": {"epochs": 1, "batch": 64, "keep_optimiser": True},
}


def die(place: str) -> None:
    print(f"killed in {place}", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def dying(function: Callable[..., Any], place: str, count: list[int], after: bool = False) -> Callable[..., Any]:
    """The same function, deadly when called for the count-th time: before its work, or right after."""

    def replacement(*args: Any, **kwargs: Any) -> Any:
        count[0] -= 1
        if count[0] == 0 and not after:
            die(place)
        result = function(*args, **kwargs)
        if count[0] == 0:
            die(place)
        return result

    return replacement


def torn_checkpoint(place: str, count: list[int]) -> None:
    """Die with half of the checkpoint's bytes in the temporary file."""
    write = files.write_atomically

    def half(path: Any, data: bytes) -> None:
        if path.name == checkpoint.NAME:
            count[0] -= 1
            if count[0] == 0:
                path.with_name(f".{path.name}.tmp").write_bytes(data[: len(data) // 2])
                die(place)
        write(path, data)

    checkpoint.write_atomically = half  # type: ignore[attr-defined]


def arm(place: str, times: int) -> None:
    count = [times]
    if place == "training":
        fit._step = dying(fit._step, place, count)
    elif place == "merging":
        run_round = Federation.run_round

        def armed(self: Federation, *args: Any) -> Any:
            # Of this object alone: a class that is changed by hand is another method, and its runs are other runs.
            vars(self.method).setdefault("aggregate", dying(self.method.aggregate, place, count))
            return run_round(self, *args)

        Federation.run_round = armed  # type: ignore[method-assign]
    elif place == "writing the checkpoint":
        torn_checkpoint(place, count)
    elif place == "replacing files":
        os.replace = dying(os.replace, place, count)
    elif place == "right after replacing files":
        os.replace = dying(os.replace, place, count, after=True)
    elif place == "idle":
        Federation.run_round = dying(Federation.run_round, place, count)  # type: ignore[method-assign]
    else:
        raise SystemExit(f"no place {place}")


if __name__ == "__main__":
    out, method, *where = sys.argv[1:]
    if where:
        arm(where[0], int(where[1]))
    print(fedstill.run({**EXPERIMENT, "method": method}, out=out).sha256)
