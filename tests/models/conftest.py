from __future__ import annotations

from collections.abc import Iterator

import pytest

from fedstill.core.streams import Streams


@pytest.fixture(autouse=True)
def same_draws_every_time() -> Iterator[None]:
    with Streams(0).ambient("tests"):
        yield
