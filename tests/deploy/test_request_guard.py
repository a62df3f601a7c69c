"""At the server's door: nothing of a request is read before its signature, and nothing without end."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import MutableMapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

from fedstill.deploy.request_guard import OPEN, RequestGuard

PATH = "/v1/fleet/pull-messages"
OWNER, STRANGER = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
KEY = public_key_to_bytes(OWNER.public_key())


def signed(
    by: ec.EllipticCurvePrivateKey = OWNER, claimed: bytes = KEY, ago: float = 0.0, **changes: bytes
) -> list[tuple[bytes, bytes]]:
    stamp = (datetime.now(UTC) - timedelta(seconds=ago)).isoformat()
    told = {
        "flwr-public-key": b64encode(claimed),
        "flwr-timestamp": stamp.encode(),
        "flwr-signature": b64encode(sign_message(by, stamp.encode())),
    }
    told |= {name.replace("_", "-"): value for name, value in changes.items()}
    return [(name.encode(), value) for name, value in told.items()]


def knock(
    headers: list[tuple[bytes, bytes]], pieces: int = 3, size: int = 10, path: str = PATH, **settings: Any
) -> tuple[int, int, bytes]:
    """The status, how many pieces of the body were read, and what reached the inside."""
    read, inside, said = [0], bytearray(), list[int]()

    async def receive() -> MutableMapping[str, Any]:
        if settings.get("slow"):
            await asyncio.sleep(10)
        read[0] += 1
        return {"type": "http.request", "body": b"x" * size, "more_body": read[0] < pieces}

    async def send(event: MutableMapping[str, Any]) -> None:
        if event["type"] == "http.response.start":
            said.append(event["status"])

    async def app(scope: Any, receive: Any, send: Any) -> None:
        inside.extend((await receive())["body"])
        await send({"type": "http.response.start", "status": 200, "headers": []})

    guard = RequestGuard(app, [KEY], 100, seconds=0.05 if settings.get("slow") else 60.0)
    scope = {"type": "http", "path": path, "headers": headers}
    asyncio.run(guard(scope, receive, send))
    return said[0], read[0], bytes(inside)


def test_what_an_owner_signed_goes_through_whole() -> None:
    assert PATH in OPEN
    assert knock(signed()) == (200, 3, b"x" * 30)


@pytest.mark.parametrize(
    "headers",
    [
        [],
        signed(by=STRANGER),
        signed(by=STRANGER, claimed=public_key_to_bytes(STRANGER.public_key())),
        signed(ago=400),
        signed(ago=-60),
        signed(flwr_signature=b"!!"),
        signed(flwr_timestamp=b"yesterday"),
        signed(flwr_timestamp=b"2026-01-01T00:00:00"),
        signed(flwr_timestamp=b"\xff"),
        signed(flwr_public_key=b64encode(b"key")),
        [*signed(), (b"Flwr-Signature", b"AAAA")],
        [header for header in signed() if header[0] != b"flwr-signature"],
    ],
    ids=[
        *("nothing", "another-signer", "unregistered", "old", "future", "no-base64", "no-time", "no-zone", "no-ascii"),
        *("no-key", "twice", "unsigned"),
    ],
)
def test_nothing_of_an_unsigned_body_is_read(headers: list[tuple[bytes, bytes]]) -> None:
    assert knock(headers, pieces=1000, size=2**20) == (401, 0, b"")


def test_large_and_slow_bodies_and_other_paths_are_refused() -> None:
    status, read, inside = knock(signed(), pieces=1000, size=2**20)
    assert (status, inside) == (413, b"")
    assert read == 25, "one piece more than the limit of 24 MiB"
    assert knock(signed(), slow=True) == (408, 0, b"")
    assert knock(signed(), path="/v1/fleet/register-node") == (404, 0, b"")
