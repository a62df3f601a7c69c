"""How a server is run, apart from what it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Terms:
    """How a server is run; none of it changes the result."""

    host: str = "0.0.0.0"
    port: int | None = None  # else the deployment's
    insecure: bool = False
    sites: Sequence[int] = ()  # else all
    patience: float = 3600.0  # seconds for one reply
    wait: float = 60.0  # seconds for sites that were there before, when a run goes on
    limit: int = 2**30  # bytes of one reply
    fresh: bool = False  # forget who took part before
    data_root: Path | None = None  # where data is that everybody shares
    device: str = "cpu"  # of what the server itself learns
