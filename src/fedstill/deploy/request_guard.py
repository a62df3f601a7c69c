"""Checks of incoming requests at the server: who may send, and how much.

Flower's own interface to sites is behind it. It trusts registered sites more than we do: it keeps what they announce in
one store for all, expands any graph of objects that they describe, and has no limits. It also reads the whole body of a
request before it looks at the signature, so that anybody could fill its memory: here the signature comes first.
"""

from __future__ import annotations

import asyncio
import logging
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from datetime import datetime
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature

_log = logging.getLogger(__name__)

_FLEET = "/v1/fleet/"
OPEN = frozenset(
    _FLEET + name
    for name in (
        "activate-node",
        "deactivate-node",
        "send-node-heartbeat",
        "pull-messages",
        "confirm-message-received",
        "pull-object",
        "push-messages",
        "push-object",
    )
)
_ANNOUNCE, _SEND = f"{_FLEET}push-messages", f"{_FLEET}push-object"
_KEY_HEADER, _SIGNATURE_HEADER, _TIME_HEADER = (
    name.lower().encode() for name in (FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER, TIMESTAMP_HEADER)
)
_PIECE = 24 * 2**20  # bytes of one request: Flower cuts arrays into pieces of 20 MiB
_LEVELS = 5  # a message, its records, each record, an array, a piece of it
_OBJECTS = 200_000  # of one message

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class RequestGuard:
    """Passes on requests to the sites' interface from registered keys, up to a limit of bytes for each.

    A site gets a new allowance whenever it is asked something, so that one that floods the server fills nothing. Of a
    request that its owner did not sign, or signed too long ago, no byte of the body is read, and one that arrives too
    slowly is given up. Whether the key belongs to the node that the body names is checked inside.
    """

    def __init__(self, app: Any, keys: Iterable[bytes], limit: int, seconds: float = 600.0) -> None:
        self.app, self.limit, self.seconds = app, limit, seconds
        self.left = dict.fromkeys(keys, 0)
        self.over: set[bytes] = set()  # who tried to send more than its allowance

    def refill(self, key: bytes) -> None:
        self.left[key] = self.limit
        self.over.discard(key)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in OPEN:
            await _refuse(send, 404)
            return
        whose = _signer(scope)
        if whose not in self.left:
            _log.info("a request without a registered key, or that its owner did not sign just now, was refused")
            await _refuse(send, 401)
            return
        try:
            body = await asyncio.wait_for(_body(receive), self.seconds)
        except TimeoutError:
            _log.info("a request whose body took over %.0f seconds was given up", self.seconds)
            await _refuse(send, 408)
            return
        if body is None:
            return  # the sender has gone
        if len(body) > _PIECE:
            await _refuse(send, 413)
            return
        metered = scope["path"] in (_ANNOUNCE, _SEND)
        if scope["path"] == _ANNOUNCE and not announces_a_message(body):
            await _refuse(send, 400)
            return
        unread = [{"type": "http.request", "body": body, "more_body": False}]
        outcome: list[int] = []

        async def again() -> MutableMapping[str, Any]:
            return unread.pop() if unread else await receive()

        async def noted(event: MutableMapping[str, Any]) -> None:
            if event["type"] == "http.response.start":
                outcome.append(event["status"])
            await send(event)

        if metered and self.left[whose] < len(body):
            self.over.add(whose)
            _log.info("a reply over the limit of %d bytes was refused", self.limit)
            await _refuse(send, 413)
            return
        await self.app(scope, again, noted)
        if metered and outcome == [200]:
            self.left[whose] -= len(body)


def announces_a_message(body: bytes) -> bool:
    """Whether a request announces one message whose objects make a tree as Flower's own do.

    An object that is named twice must have the same parts each time: what is stored by name would otherwise be another
    graph than the one that was looked at, and could be expanded without end.
    """
    try:
        request = PushMessagesRequest.FromString(body)
    except Exception:  # not a protobuf of that kind
        _log.info("a request that is not a protobuf message was refused", exc_info=True)
        return False
    if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
        return False
    parts: dict[str, tuple[str, ...]] = {}
    level: list[ObjectTree] = [request.message_object_trees[0]]
    for _ in range(_LEVELS):
        for tree in level:
            own = tuple(child.object_id for child in tree.children)
            if parts.setdefault(tree.object_id, own) != own or len(parts) > _OBJECTS:
                return False
        level = [child for tree in level for child in tree.children]
    return not level


async def _body(receive: Receive) -> bytes | None:
    """The body of a request, up to one byte more than is allowed; None if its sender goes away."""
    body, more = bytearray(), True
    while more and len(body) <= _PIECE:
        piece = await receive()
        if piece["type"] == "http.disconnect":
            return None
        body += piece.get("body", b"")
        more = bool(piece.get("more_body", False))
    return bytes(body)


def _signer(scope: Scope) -> bytes:
    """The key that signed a request, as its owner sends it; empty if nobody did, or not just now."""
    told: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name.lower() in told:
            return b""  # said twice: which of them counts inside is not ours to guess
        told[name.lower()] = value
    try:
        key, signature = (b64decode(told[name], validate=True) for name in (_KEY_HEADER, _SIGNATURE_HEADER))
        stamp = told[_TIME_HEADER]
        age = (now() - datetime.fromisoformat(stamp.decode("ascii"))).total_seconds()
        recent = -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE
        return key if recent and verify_signature(bytes_to_public_key(key), stamp, signature) else b""
    except (KeyError, ValueError, TypeError, UnsupportedAlgorithm):
        return b""


async def _refuse(send: Send, status: int) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})
