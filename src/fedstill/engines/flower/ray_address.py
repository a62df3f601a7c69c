"""Which Ray the simulation uses: the cluster that RAY_ADDRESS names, as with everything on Ray, else one of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from fedstill.engines.ray_connection import check_answer, connection


@contextmanager
def connected(workers: int) -> Iterator[None]:
    """The Ray that RAY_ADDRESS names, else one on this machine with so many processors."""
    address = os.environ.get("RAY_ADDRESS")
    if address:
        check_address(address)
    with connection(address, workers):
        yield


def check_address(address: str) -> None:
    """Refuse at once an address where nobody answers."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdecimal():  # else it is `auto`, or whatever else Ray may know
        check_answer(host, port, f"RAY_ADDRESS={address}")
