"""How much work the benchmarks do: enough to trust the figures, to get an idea, or just to see that they run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Size:
    rounds: int  # timed rounds, after one that warms up
    samples: int  # training samples of the `rounds` and `where` benchmarks, shared by all clients
    federations: tuple[int, ...]  # numbers of clients
    jobs: int  # repetitions of whole processes
    job_samples: int  # training samples of whole-process benchmarks
    job_rounds: int
    memory_rounds: int
    populations: tuple[int, ...]  # the smallest takes part as a whole, as many of the others
    kills: int  # of `reliability`
    replies: int  # that lie
    # Of a server that distils, and of the patches that it does so with; left out, as the method has it.
    lesson: dict[str, Any] = field(default_factory=dict)
    pool: dict[str, Any] = field(default_factory=dict)


SIZES = {
    "full": Size(12, 6_000, (10, 100), 3, 60_000, 5, 3, (100, 1_000, 10_000), 200, 1_000),
    "quick": Size(5, 6_000, (10, 100), 1, 60_000, 5, 1, (100, 1_000, 10_000), 28, 100),
    "tiny": Size(
        *(2, 240, (4,), 1, 400, 2, 1, (4, 40), 2, 20),
        lesson={"samples": 40, "steps": 3, "batch": 16},
        pool={"patches": {"count": 60}, "selection": {"kmeans": 5, "prune": 0.25}},
    ),
}
