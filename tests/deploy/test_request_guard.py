"""At the server's door: nothing of a request is read before its signature, and nothing without end."""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from collections.abc import MutableMapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PushMessagesRequest
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.message_pb2 import Metadata, ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.supercore.primitives.asymmetric import (
    bytes_to_public_key,
    public_key_to_bytes,
    sign_message,
    verify_signature,
)

from fedstill.deploy import request_guard
from fedstill.deploy.request_guard import AT_ONCE, CLOCKS_DIFFER, OPEN, InnerIdentity, RequestGuard
from fedstill.deploy.site_keys import SiteKeys

PATH = "/v1/fleet/pull-messages"
OWNER, STRANGER = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
KEY = public_key_to_bytes(OWNER.public_key())
INSIDE = InnerIdentity(ec.generate_private_key(ec.SECP384R1()), 77)
SITE = 3


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


def signed_inside(headers: dict[bytes, bytes]) -> None:
    """Inside, the request has the signature of the site's inner identity, and nothing of its own."""
    stamp = headers[b"flwr-timestamp"]
    assert b64decode(headers[b"flwr-public-key"]) == INSIDE.public
    assert verify_signature(bytes_to_public_key(INSIDE.public), stamp, b64decode(headers[b"flwr-signature"]))


def knock(
    headers: list[tuple[bytes, bytes]], pieces: int = 3, size: int = 10, path: str = PATH, **settings: Any
) -> tuple[int, int, bytes]:
    """The status, how many pieces of the body were read, and what reached the inside."""
    read, inside, said = [0], bytearray(), list[int]()
    whole = settings.get("body")
    refusals: list[tuple[str, int | None]] = settings.get("refusals", [])

    async def receive() -> MutableMapping[str, Any]:
        if settings.get("slow"):
            await asyncio.sleep(10)
        read[0] += 1
        if whole is not None:
            return {"type": "http.request", "body": whole, "more_body": False}
        return {"type": "http.request", "body": b"x" * size, "more_body": read[0] < pieces}

    async def send(event: MutableMapping[str, Any]) -> None:
        if event["type"] == "http.response.start":
            said.append(event["status"])

    async def app(scope: Any, receive: Any, send: Any) -> None:
        inside.extend((await receive())["body"])
        signed_inside(dict(scope["headers"]))
        await send({"type": "http.response.start", "status": 200, "headers": []})

    seconds = 0.05 if settings.get("slow") else 60.0

    class Observer:
        def refused(self, why: str, site: int | None = None, shown: bool = True) -> None:
            refusals.append((why, site))

        def event(self, sentence: str) -> None: ...

    guard = RequestGuard(app, SiteKeys({SITE: KEY}), {SITE: INSIDE}, 100, seconds, Observer())
    guard.refill(SITE)
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
        signed(ago=CLOCKS_DIFFER + 5),
        signed(ago=-CLOCKS_DIFFER - 3600),
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


@pytest.mark.parametrize("ago", [CLOCKS_DIFFER - 5, 5 - CLOCKS_DIFFER])
def test_clocks_may_differ_alike_both_ways(ago: float) -> None:
    assert knock(signed(ago=ago))[0] == 200


def test_refusals_are_noted_with_the_site_where_it_is_known() -> None:
    refusals: list[tuple[str, int | None]] = []
    knock(signed(by=STRANGER), refusals=refusals)
    knock([], refusals=refusals)
    knock(signed(), slow=True, refusals=refusals)
    assert refusals == [
        ("its signature is wrong", None),
        ("it is not signed", None),
        ("the body of a request took over 0 seconds", SITE),
    ]


def announcement(node: int, source: int) -> bytes:
    message = ProtoMessage(metadata=Metadata(src_node_id=source))
    tree = ObjectTree(object_id="m")
    request = PushMessagesRequest(node=Node(node_id=node), messages_list=[message], message_object_trees=[tree])
    return bytes(request.SerializeToString())


@pytest.mark.parametrize(("node", "source", "status"), [(77, 77, 200), (77, 78, 400), (78, 78, 400), (78, 77, 400)])
def test_a_site_replies_in_its_own_name_only(node: int, source: int, status: int) -> None:
    body = announcement(node, source)
    found, _, inside = knock(signed(), path="/v1/fleet/push-messages", body=body)
    assert (found, inside) == (status, body if status == 200 else b"")


def test_activation_is_translated_to_the_identity_inside_and_only_for_the_own_key() -> None:
    path, other = "/v1/fleet/activate-node", public_key_to_bytes(STRANGER.public_key())
    status, _, inside = knock(signed(), path=path, body=ActivateNodeRequest(public_key=KEY).SerializeToString())
    assert (status, ActivateNodeRequest.FromString(inside).public_key) == (200, INSIDE.public)
    for body in (ActivateNodeRequest(public_key=other).SerializeToString(), b"\xff"):
        assert knock(signed(), path=path, body=body)[::2] == (400, b"")


def test_many_requests_of_one_site_at_once_do_not_fill_the_memory() -> None:
    """Each may hold a body of 24 MiB until it is whole."""
    statuses: list[int] = []

    async def flood() -> None:
        closing = asyncio.Event()

        async def receive() -> MutableMapping[str, Any]:
            await closing.wait()
            return {"type": "http.disconnect"}

        async def send(event: MutableMapping[str, Any]) -> None:
            if event["type"] == "http.response.start":
                statuses.append(event["status"])

        guard = RequestGuard(None, SiteKeys({SITE: KEY}), {SITE: INSIDE}, 100)
        scope = {"type": "http", "path": PATH, "headers": signed()}
        tasks = [asyncio.create_task(guard(scope, receive, send)) for _ in range(AT_ONCE + 5)]
        await asyncio.sleep(0)
        assert statuses == [429] * 5
        closing.set()
        await asyncio.gather(*tasks)
        assert guard.under_way == {SITE: 0}

    asyncio.run(flood())


@pytest.mark.parametrize("hours", [-3, 3])
def test_a_clock_that_is_set_locks_no_site_out(hours: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside, a signature of another time would be refused, and every site with it."""
    inner = InnerIdentity(ec.generate_private_key(ec.SECP384R1()), 77)
    before = dict(inner.headers())[b"flwr-timestamp"]
    assert dict(inner.headers())[b"flwr-timestamp"] == before
    real = request_guard.now
    monkeypatch.setattr(request_guard, "now", lambda: real() + timedelta(hours=hours))
    stamp = datetime.fromisoformat(dict(inner.headers())[b"flwr-timestamp"].decode())
    assert abs((stamp - request_guard.now()).total_seconds()) < 60
