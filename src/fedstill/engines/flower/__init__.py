"""Fedstill's messages on Flower: across machines (`carrier`), or on a Ray cluster (`simulation`).

Needs the extra `fedstill[flower]`; nothing here is imported before it is asked for. Flower reads its settings from the
environment when it is first imported: it must not call out, install anything, or talk to our terminal.
"""

from __future__ import annotations

import os
import re
from importlib.metadata import version

from fedstill.core.errors import InputError

LOWEST, HIGHEST = (1, 40), (1, 42)  # as in pyproject.toml

os.environ |= {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
os.environ.setdefault("FLWR_LOG_LEVEL", "CRITICAL")


def _check(found: str) -> None:
    """Refuse a version of Flower that was not tried: what we use of it is in part not for others to use."""
    numbers = re.match(r"(\d+)\.(\d+)", found)
    if numbers is None or not LOWEST <= (int(numbers[1]), int(numbers[2])) <= HIGHEST:
        lowest, highest = (".".join(map(str, one)) for one in (LOWEST, HIGHEST))
        raise InputError(
            f"Flower {found} is installed, and this version of Fedstill works with {lowest} to {highest}:"
            ' pip install "fedstill[flower]"'
        )


_check(version("flwr"))
