"""Amount of work of the benchmarks: full (reliable figures), quick (estimates) or tiny (smoke test)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Size:
    rounds: int  # timed rounds, after one that warms up
    samples: int  # training samples of the `rounds` and `breakdown` benchmarks, shared by all clients
    federations: tuple[int, ...]  # numbers of clients
    jobs: int  # repetitions of whole processes
    job_samples: int  # training samples of whole-process benchmarks
    job_rounds: int
    memory_rounds: int
    populations: tuple[int, ...]  # the smallest number is also the cohort size of the others
    crowds: tuple[int, int]  # numbers of clients whose plans, rounds and memory are compared
    crashes: int
    malformed_replies: int
    connection_faults: int
    # Settings of server-side distillation and of its patches; empty: the defaults of the method.
    distillation: dict[str, Any] = field(default_factory=dict)
    pool: dict[str, Any] = field(default_factory=dict)


SIZES = {
    "full": Size(12, 6_000, (10, 100), 3, 60_000, 5, 3, (100, 1_000, 10_000), (10_000, 1_000_000), 200, 1_000, 64),
    "quick": Size(5, 6_000, (10, 100), 1, 60_000, 5, 1, (100, 1_000, 10_000), (10_000, 1_000_000), 28, 100, 24),
    "tiny": Size(
        *(1, 240, (4,), 1, 400, 2, 1, (4, 40), (30, 300), 2, 20, 4),
        distillation={"samples": 40, "steps": 3, "batch": 16},
        pool={"patches": {"count": 60}, "selection": {"kmeans": 5, "prune": 0.25}},
    ),
}
