"""The compiled point kernels: where they are kept, whether they are right, and whether they are fast.

Speed is judged by a ratio that is measured on the spot, compiled against plain torch on the same cloud with one thread,
so that it means the same on every machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from fedstill.cli.doctor.finding import Finding
from fedstill.cli.doctor.places import obstacle
from fedstill.core.streams import Streams
from fedstill.core.threads import one_thread
from fedstill.models.kernels import plain

TOPIC = "kernels"
VARIABLE = "NUMBA_CACHE_DIR"
CLOUDS, POINTS, SAMPLES, TIMES = 8, 2048, 256, 3
# 13 to 22 on the machine on which this was written; 5 allows for others, which is a guess.
EXPECTED = 5.0


def look_at_kernels() -> Iterator[Finding]:
    try:
        from fedstill.models.kernels import compiled
    except Exception as error:  # numba fails in many ways, and each is a finding
        advice = f"set {VARIABLE} to a folder that can be written" if "locator" in str(error) else "reinstall numba"
        yield Finding(TOPIC, "problem", f"the kernels cannot be loaded: {error}", advice)
        return
    yield _cache(compiled.farthest_points, Path(compiled.__file__))
    yield _speed(compiled.farthest_points)


def _cache(kernel: Any, source: Path) -> Finding:
    """Where numba keeps what it compiled. The folder named by NUMBA_CACHE_DIR it leaves aside if it cannot write it."""
    folder = Path(kernel.stats.cache_path)
    named = os.environ.get(VARIABLE)
    if named and (trouble := obstacle(Path(named))) is not None:
        return Finding(
            TOPIC,
            "problem",
            f"{VARIABLE} is {named}, which cannot be written ({trouble}); numba uses {folder} instead",
            f"set {VARIABLE} to a folder that can be written, or unset it",
        )
    if (trouble := obstacle(folder)) is not None:
        return Finding(
            TOPIC,
            "problem",
            f"the numba cache {folder} cannot be written ({trouble}): every process compiles all kernels anew",
            f"set {VARIABLE} to a folder that can be written",
        )
    age = source.stat().st_mtime
    kept = [file for file in folder.glob(f"{source.stem}.*.nbi") if file.stat().st_mtime >= age]
    state = "warm" if kept else "cold: the first run on clouds compiles for a while"
    return Finding(TOPIC, "ok", f"numba cache in {folder}, {state}")


def _speed(kernel: Any) -> Finding:
    """Farthest point sampling, compiled anew in memory, so that no cache is written."""
    from fedstill.core.jit import compiled  # here, because numba takes a while to load

    fresh: Any = compiled(kept=False)(kernel.py_func)
    cloud = torch.from_numpy(Streams(0).draw("check-up").random((CLOUDS, POINTS, 3), dtype="float32"))
    array = cloud.numpy()
    with one_thread():
        same = torch.equal(torch.from_numpy(fresh(array, SAMPLES)), plain.farthest_points(cloud, SAMPLES))
        times = [
            (_seconds(lambda: fresh(array, SAMPLES)), _seconds(lambda: plain.farthest_points(cloud, SAMPLES)))
            for _ in range(TIMES)  # in turns, so that a busy neighbour disturbs both
        ]
    if not same:
        return Finding(
            TOPIC,
            "problem",
            "compiled and plain kernels choose different points: results on clouds would be wrong",
            "reinstall numba and numpy in the versions that pip chooses",
        )
    ratio = min(slow for _, slow in times) / min(quick for quick, _ in times)
    said = f"farthest point sampling is {ratio:.1f} times as fast as in plain torch (at least {EXPECTED:g} expected)"
    if ratio < EXPECTED:
        busy = "look whether the machine is busy and ask again; else reinstall numba, and see whether NUMBA_DISABLE_JIT"
        return Finding(TOPIC, "look", said, f"{busy} or NUMBA_OPT is set")
    return Finding(TOPIC, "ok", f"{said}, with the same points")


def _seconds(work: Callable[[], object]) -> float:
    began = perf_counter()
    work()
    return perf_counter() - began
