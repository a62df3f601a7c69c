"""A federation across machines: its folder of certificates and keys, what sites allow, its server and its sites."""

from __future__ import annotations

import fedstill.engines.flower  # noqa: F401 - settings that Flower reads when it is first imported
