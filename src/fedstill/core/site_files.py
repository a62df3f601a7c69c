"""What an exchange may store at a real site, for that site alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from fedstill.core.message import Message
from fedstill.core.protocols import Client


@runtime_checkable
class KeepsOnSite(Protocol):
    """An exchange that is called once more at a real site, after its reply."""

    def models_to_keep(self, request: Message) -> int:
        """The number of models of other sites in a request that would be stored."""

    def keep_on_site(self, client: Client, request: Message, folder: Path, run: str) -> Sequence[str]:
        """Store files in the site's folder; gives lines for its operator."""
