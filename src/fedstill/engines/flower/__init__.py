"""Fedstill's messages on Flower: across machines (`carrier`), or on a Ray cluster (`simulation`).

Needs the extra `fedstill[flower]`; nothing here is imported before it is asked for. Flower reads its settings from the
environment when it is first imported: it must not call out, install anything, or talk to our terminal.
"""

from __future__ import annotations

import os

os.environ |= {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
os.environ.setdefault("FLWR_LOG_LEVEL", "CRITICAL")
