from __future__ import annotations

import pytest

from fedstill.data.rooms import make_rooms
from fedstill.data.scenes import Scenes


@pytest.fixture(scope="session")
def rooms() -> Scenes:
    return make_rooms(40, seed=3)


@pytest.fixture(scope="session")
def turned_rooms() -> Scenes:
    return make_rooms(12, seed=3, points=1024, headings="free")
