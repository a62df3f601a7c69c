"""How a server is run, apart from what it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from fedstill.core.errors import InputError


@dataclass(frozen=True)
class ServerOptions:
    """How a server is run; none of it changes the result."""

    host: str = "0.0.0.0"
    port: int | None = None  # else the deployment's
    insecure: bool = False
    sites: Sequence[int] = ()  # else all
    patience: float = 3600.0  # seconds for one reply
    wait: float = 60.0  # seconds for sites that lost their connection, were there before a restart, or were refused
    min_sites: int | None = None  # that are enough to start with if others refuse; else all
    limit: int = 2**30  # bytes of one reply
    fresh: bool = False  # forget who took part before
    data_root: Path | None = None  # where data is that everybody shares
    device: str = "cpu"  # of what the server itself learns

    def __post_init__(self) -> None:
        if not (isfinite(self.patience) and self.patience > 0):
            raise InputError(f"--patience must be a number of seconds above zero, not {self.patience:g}")
        check_seconds("--wait", self.wait)
        if self.min_sites is not None and self.min_sites < 1:
            raise InputError(f"--min-sites must be 1 or more, not {self.min_sites}")


def check_seconds(option: str, seconds: float | None) -> None:
    """Refuse what is no time to wait."""
    if seconds is not None and not (isfinite(seconds) and seconds >= 0):
        raise InputError(f"{option} must be a number of seconds, zero or more, not {seconds:g}")


def bytes_of(megabytes: float) -> int:
    """The largest reply, as it is given."""
    if not (isfinite(megabytes) and megabytes * 2**20 >= 1):
        raise InputError(f"--limit must be a number of megabytes above zero, not {megabytes:g}")
    return int(megabytes * 2**20)


def check_port(port: int, least: int = 1) -> None:
    """A server that listens for a test may take any free port, which is what 0 asks for."""
    if not least <= port <= 65535:
        raise InputError(f"there is no port {port}: ports are 1 to 65535")
