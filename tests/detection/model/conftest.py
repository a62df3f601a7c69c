from __future__ import annotations

import pytest
from torch import Tensor

from fedstill.detection.rooms import make_rooms


@pytest.fixture(scope="session")
def rooms() -> Tensor:
    """Three clouds of 300 points."""
    return make_rooms(3, points=300).points
