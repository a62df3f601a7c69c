"""Checks of incoming requests at the server: who may send, and how much.

Flower's own interface to sites is behind it. It trusts registered sites more than we do: it keeps what they announce in
one store for all, expands any graph of objects that they describe, and has no limits.
"""

from __future__ import annotations

import logging
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import ObjectTree

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
_KEY_HEADER = b"flwr-public-key"
_PIECE = 24 * 2**20  # bytes of one request: Flower cuts arrays into pieces of 20 MiB
_LEVELS = 5  # a message, its records, each record, an array, a piece of it
_OBJECTS = 200_000  # of one message

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class RequestGuard:
    """Passes on requests to the sites' interface from registered keys, up to a limit of bytes for each.

    A site gets a new allowance whenever it is asked something, so that one that floods the server fills nothing. The
    key is only claimed here; what its owner did not sign is turned away inside, and is not counted as the owner's.
    """

    def __init__(self, app: Any, keys: Iterable[bytes], limit: int) -> None:
        self.app, self.limit = app, limit
        self.left = dict.fromkeys(keys, 0)
        self.over: set[bytes] = set()  # who tried to send more than its allowance

    def refill(self, key: bytes) -> None:
        self.left[key] = self.limit
        self.over.discard(key)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in OPEN:
            await _refuse(send, 404)
            return
        whose = _claimed_key(scope)
        if whose not in self.left:
            _log.info("a request with an unregistered key was refused")
            await _refuse(send, 401)
            return
        body, more = bytearray(), True
        while more:
            piece = await receive()
            if piece["type"] == "http.disconnect":
                return
            body += piece.get("body", b"")
            more = bool(piece.get("more_body", False))
            if len(body) > _PIECE:
                await _refuse(send, 413)
                return
        metered = scope["path"] in (_ANNOUNCE, _SEND)
        if scope["path"] == _ANNOUNCE and not announces_a_message(bytes(body)):
            await _refuse(send, 400)
            return
        unread = [{"type": "http.request", "body": bytes(body), "more_body": False}]
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


def _claimed_key(scope: Scope) -> bytes:
    for name, value in scope["headers"]:
        if name.lower() == _KEY_HEADER:
            try:
                return b64decode(value)
            except ValueError:
                break
    return b""


async def _refuse(send: Send, status: int) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})
