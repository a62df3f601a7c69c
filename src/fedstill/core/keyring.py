"""What secure aggregation needs of the place where a client runs: secrets, and the signatures of others."""

from __future__ import annotations

from typing import Protocol


class Keyring(Protocol):
    """A client's secrets in a run, and what it knows of others' signatures, for secure aggregation."""

    @property
    def holder(self) -> int:
        """The number by which others know this client's signatures."""
        ...

    def secret(self, *names: str | int) -> bytes:
        """32 secret bytes: the same for the same names in this run, also after a restart."""
        ...

    def sign(self, statement: bytes) -> bytes: ...

    def verify(self, holder: int, statement: bytes, signature: bytes) -> bool:
        """Whether that client signed this statement in this run."""
        ...
