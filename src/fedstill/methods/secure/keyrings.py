"""The secrets of simulated clients: from named streams, so that a run can be repeated to the bit.

They protect nobody, since anyone with the seed can compute them. A real site has secrets of its own (`deploy`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from fedstill.core.errors import RunError
from fedstill.core.keyring import Keyring
from fedstill.core.protocols import Client
from fedstill.core.streams import Streams
from fedstill.methods.secure.primitives import is_signed, signed, signing_public


@dataclass(frozen=True)
class StreamKeyring:
    """The secrets of one client of a simulation."""

    seed: int
    holder: int

    def secret(self, *names: str | int) -> bytes:
        return _drawn(self.seed, self.holder, *names)

    def sign(self, statement: bytes) -> bytes:
        return signed(_drawn(self.seed, self.holder, "signatures"), statement)

    def verify(self, holder: int, statement: bytes, signature: bytes) -> bool:
        return is_signed(_public(self.seed, holder), statement, signature)


def _drawn(seed: int, client: int, *names: str | int) -> bytes:
    return Streams(seed).draw("secure", "client", client, *names).bytes(32)


@lru_cache(maxsize=4096)
def _public(seed: int, client: int) -> bytes:
    return signing_public(_drawn(seed, client, "signatures"))


def keyring_of(client: Client, on_site: bool) -> Keyring:
    """A client's own keyring; in a simulation one from named streams, which a real site never uses."""
    if client.keyring is not None:
        return client.keyring
    if on_site:
        raise RunError("this site has no secrets for secure aggregation, and takes none from a seed that others know")
    return StreamKeyring(client.streams.seed, client.profile.id)
