"""The global generators of torch, numpy and Python, for code of the user's own that draws from them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from fedstill.core.streams import Streams


@contextmanager
def seeded_from(streams: Streams) -> Iterator[None]:
    """All three seeded from these streams, and afterwards as they were; nothing is drawn from them here."""
    of_numpy, of_python = np.random.get_state(), random.getstate()
    np.random.seed(streams.draw("numpy").integers(0, 2**32, size=8, dtype=np.uint64).astype(np.uint32))
    random.seed(int.from_bytes(streams.draw("python").bytes(16), "little"))
    try:
        with streams.ambient("torch"):
            yield
    finally:
        np.random.set_state(of_numpy)
        random.setstate(of_python)
