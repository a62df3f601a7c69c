"""Checks of incoming requests at the server: who may send, and how much.

Flower's own interface to sites is behind it. It trusts registered sites more than we do: it keeps what they announce in
one store for all, expands any graph of objects that they describe, and has no limits. It also reads the whole body of a
request before it looks at the signature, so that anybody could fill its memory: here the signature comes first.
"""

from __future__ import annotations

import asyncio
import logging
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

from fedstill.core.errors import FedstillError
from fedstill.deploy.flower_inner import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
    ActivateNodeRequest,
    ObjectTree,
    PushMessagesRequest,
    bytes_to_public_key,
    now,
    sign_message,
    verify_signature,
)
from fedstill.deploy.key_rotation import LARGEST as LARGEST_ROTATION
from fedstill.deploy.key_rotation import ROTATE, read_rotation
from fedstill.deploy.keys import UNREADABLE, registered_bytes
from fedstill.deploy.site_keys import SiteKeys
from fedstill.deploy.timed_protocol import BODY_BYTES

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
_ACTIVATE, _ANNOUNCE, _SEND = f"{_FLEET}activate-node", f"{_FLEET}push-messages", f"{_FLEET}push-object"
_DEACTIVATE = f"{_FLEET}deactivate-node"
TOKEN_HEADER = "fedstill-process"  # what a site's process calls itself: it may connect again, a second one may not
_KEY_HEADER, _SIGNATURE_HEADER, _TIME_HEADER = (
    name.lower().encode() for name in (FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER, TIMESTAMP_HEADER)
)
_SIGNED = (_KEY_HEADER, _SIGNATURE_HEADER, _TIME_HEADER)
CLOCKS_DIFFER = 300.0  # seconds, both ways, by which a site's clock and the server's may differ
_SIGN_AGAIN = 60.0  # seconds after which a signature for the inside is made anew
AT_ONCE = 16  # requests of one site under way: ours has a handful, and each may hold a body in memory
_LEVELS = 5  # a message, its records, each record, an array, a piece of it
_OBJECTS = 200_000  # of one message

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class GuardObserver(Protocol):
    """Receives what the guard refuses, and the keys that change."""

    def refused(self, why: str, site: int | None = None, shown: bool = True) -> None: ...

    def event(self, sentence: str) -> None: ...


class _NoObserver:
    """The default: report nothing."""

    def refused(self, why: str, site: int | None = None, shown: bool = True) -> None: ...

    def event(self, sentence: str) -> None: ...


class InnerIdentity:
    """How a site is identified inside Flower: a node, and a key that is made for this process and never leaves it."""

    def __init__(self, key: EllipticCurvePrivateKey, node: int) -> None:
        self.key, self.node = key, node
        self.public = registered_bytes(key.public_key())
        self._headers: list[tuple[bytes, bytes]] = []
        self._signed: datetime | None = None

    def headers(self) -> list[tuple[bytes, bytes]]:
        """A signature of this minute, by the clock of the day: the inside compares with it, and it may be set."""
        if self._signed is None or abs((now() - self._signed).total_seconds()) > _SIGN_AGAIN:
            self._signed = now()
            self._headers = list(signature_headers(self.key, self.key.public_key()).items())
        return self._headers


def signature_headers(key: EllipticCurvePrivateKey, public: EllipticCurvePublicKey) -> dict[bytes, bytes]:
    """The headers with which the owner of a key signs a request, now."""
    stamp = now().isoformat().encode()
    told = (b64encode(registered_bytes(public)), b64encode(sign_message(key, stamp)), stamp)
    return dict(zip(_SIGNED, told, strict=True))


@dataclass(frozen=True)
class _Checked:
    """A request that its sender signed."""

    site: int
    key: bytes
    body: bytes


class RequestGuard:
    """Passes on requests to the sites' interface from registered keys, up to a limit of bytes for each site.

    A site gets a new allowance whenever it is asked something, so that one that floods the server fills nothing. Of a
    request that its owner did not sign, or not within five minutes of the server's clock, no byte of the body is read,
    and one that arrives too slowly is given up. Inside, a site has an identity that does not change with its key; that
    it speaks for itself alone is checked here for replies, and inside for the rest.
    """

    def __init__(
        self,
        app: Any,
        keys: SiteKeys,
        inside: Mapping[int, InnerIdentity],
        limit: int,
        seconds: float = 600.0,
        observer: GuardObserver | None = None,
        on_connect: Callable[[int, str], None] = lambda site, token: None,
        on_leave: Callable[[int], None] = lambda site: None,
        on_signed: Callable[[int, tuple[str, int]], None] = lambda site, peer: None,
    ) -> None:
        self.app, self.keys, self.inside, self.limit, self.seconds = app, keys, inside, limit, seconds
        self.observer, self.on_connect, self.on_leave = observer or _NoObserver(), on_connect, on_leave
        self.on_revoked: Callable[[int], None] = lambda site: (
            None
        )  # called when a site without a key has asked something
        self.on_signed = on_signed  # called with each signed request's site, and where its connection comes from
        self.left = dict.fromkeys(inside, 0)
        self.over: set[int] = set()  # who tried to send more than its allowance
        self.under_way = dict.fromkeys(inside, 0)  # requests, by site

    def refill(self, site: int) -> None:
        self.left[site] = self.limit
        self.over.discard(site)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in OPEN | {ROTATE}:
            self._note("a request for something that is not served here", None)
            await _refuse(send, 404)
            return
        site, key = await self._signed(scope, send)
        if site is None:
            return
        if self.under_way[site] >= AT_ONCE:
            self._note(f"more than {AT_ONCE} requests at once", site)
            await _refuse(send, 429)
            return
        self.under_way[site] += 1
        try:
            await self._serve(site, key, scope, receive, send)
        finally:
            self.under_way[site] -= 1

    async def _serve(self, site: int, key: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body of a request that its site signed, and pass it on."""
        checked = await self._checked(site, key, scope, receive, send)
        if checked is None:
            return
        if self.keys.confirm(checked.site, checked.key):
            self.observer.event(f"site {checked.site} uses its new key: the old one is revoked")
        if scope["path"] == ROTATE:
            await _refuse(send, self._rotated(checked))
        else:
            await self._pass_on(scope, receive, send, checked)

    async def _signed(self, scope: Scope, send: Send) -> tuple[int | None, bytes]:
        """The site that signed a request, and its key; otherwise, None, and it is refused."""
        key, why = _signer(scope, self.keys)
        site = self.keys.site_of(key) if key else None
        if why or site is None or site not in self.inside:
            former = self.keys.former(key) if key and site is None else site
            if former is not None and not self.keys.has_one(former):  # else it has a new one, and an old one was used
                self.on_revoked(former)
            self._note(why or "its key was revoked or replaced", former)
            await _refuse(send, 401)
            return None, b""
        if (peer := scope.get("client")) is not None:
            self.on_signed(site, (peer[0], peer[1]))
        return site, key

    async def _checked(self, site: int, key: bytes, scope: Scope, receive: Receive, send: Send) -> _Checked | None:
        """The whole request, if it arrives in time and is not too large; otherwise it is refused."""
        most = LARGEST_ROTATION if scope["path"] == ROTATE else BODY_BYTES
        try:
            body = await asyncio.wait_for(_body(receive, most), self.seconds)
        except TimeoutError:
            self._note(f"the body of a request took over {self.seconds:.0f} seconds", site)
            await _refuse(send, 408)
            return None
        if body is not None and len(body) > most:
            self._note(f"a request of over {most} bytes", site)
            await _refuse(send, 413)
            return None
        return None if body is None else _Checked(site, key, body)  # None: the sender has gone

    def _rotated(self, checked: _Checked) -> int:
        """Accept a site's next key; gives the status of the response."""
        try:
            self.keys.propose(checked.site, read_rotation(checked.body, checked.site, checked.key))
        except FedstillError as error:
            self._note(str(error), checked.site)
            return 400
        self.observer.event(f"site {checked.site} has sent its next key")
        return 200

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send, checked: _Checked) -> None:
        site, inner = checked.site, self.inside[checked.site]
        body = _translated(scope["path"], checked, inner)
        if body is None:
            self._note("a request that is no message, or speaks for another site", site)
            await _refuse(send, 400)
            return
        if scope["path"] == _ACTIVATE:
            self.on_connect(site, _token(scope))
        elif scope["path"] == _DEACTIVATE:
            self.on_leave(site)
        metered = scope["path"] in (_ANNOUNCE, _SEND)
        if metered and self.left[site] < len(body):
            self.over.add(site)
            self._note(f"a reply over the limit of {self.limit} bytes", site)
            await _refuse(send, 413)
            return
        unread = [{"type": "http.request", "body": body, "more_body": False}]
        outcome: list[int] = []

        async def again() -> MutableMapping[str, Any]:
            return unread.pop() if unread else await receive()

        async def noted(event: MutableMapping[str, Any]) -> None:
            if event["type"] == "http.response.start":
                outcome.append(event["status"])
            await send(event)

        replaced = (*_SIGNED, b"content-length")
        rest = [(name, value) for name, value in scope["headers"] if name.lower() not in replaced]
        headers = [*rest, *inner.headers(), (b"content-length", str(len(body)).encode())]
        await self.app({**scope, "headers": headers}, again, noted)
        if metered and outcome == [200]:
            self.left[site] -= len(body)
        if outcome and outcome[0] >= 400:  # also of a site that connects anew: nothing for the operator's screen
            second = scope["path"] == _ACTIVATE and outcome[0] == 412
            answered = f"its interface answered {scope['path'].removeprefix(_FLEET)} with {outcome[0]}"
            self._note("another process of this site is connected" if second else answered, site, False)

    def _note(self, why: str, site: int | None, shown: bool = True) -> None:
        _log.info("a request of %s was refused: %s", "a stranger" if site is None else f"site {site}", why)
        self.observer.refused(why, site, shown)


def _translated(path: str, checked: _Checked, inner: InnerIdentity) -> bytes | None:
    """The body as the inside understands it; None for one that is not a site's own."""
    if path == _ANNOUNCE:
        return checked.body if announced_by(checked.body) == inner.node else None
    if path != _ACTIVATE:
        return checked.body
    try:
        request = ActivateNodeRequest.FromString(checked.body)
    except Exception:  # not a protobuf of that kind
        _log.info("a request that is not a protobuf message was refused", exc_info=True)
        return None
    if request.public_key != checked.key:
        return None
    request.public_key = inner.public
    return bytes(request.SerializeToString())


def announced_by(body: bytes) -> int | None:
    """The node in whose name a request announces a message; None if its objects make no tree as Flower's own do.

    An object that is named twice must have the same parts each time: what is stored by name would otherwise be another
    graph than the one that was looked at, and could be expanded without end.
    """
    try:
        request = PushMessagesRequest.FromString(body)
    except Exception:  # not a protobuf of that kind
        _log.info("a request that is not a protobuf message was refused", exc_info=True)
        return None
    if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
        return None
    parts: dict[str, tuple[str, ...]] = {}
    level: list[ObjectTree] = [request.message_object_trees[0]]
    for _ in range(_LEVELS):
        for tree in level:
            own = tuple(child.object_id for child in tree.children)
            if parts.setdefault(tree.object_id, own) != own or len(parts) > _OBJECTS:
                return None
        level = [child for tree in level for child in tree.children]
    whose = int(request.messages_list[0].metadata.src_node_id)
    return None if level or whose != request.node.node_id else whose


async def _body(receive: Receive, most: int) -> bytes | None:
    """The body of a request, up to one byte more than is allowed; None if its sender goes away."""
    body, more = bytearray(), True
    while more and len(body) <= most:
        piece = await receive()
        if piece["type"] == "http.disconnect":
            return None
        body += piece.get("body", b"")
        more = bool(piece.get("more_body", False))
    return bytes(body)


def _signer(scope: Scope, keys: SiteKeys) -> tuple[bytes, str]:
    """The key with which a request was signed, and why that does not count; empty: it does.

    Without a signature the sender of a request is unknown: anyone can name a key that belongs to another.
    """
    told: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name.lower() in told:
            return b"", "it has a header twice"  # which of them counts inside is not ours to guess
        told[name.lower()] = value
    try:
        key, signature = (b64decode(told[name], validate=True) for name in (_KEY_HEADER, _SIGNATURE_HEADER))
        stamp = told[_TIME_HEADER]
        age = (now() - datetime.fromisoformat(stamp.decode("ascii"))).total_seconds()
        if (unknown := keys.site_of(key) is None) and keys.former(key) is None:
            return b"", "its key is not registered"
        if not verify_signature(bytes_to_public_key(key), stamp, signature):
            return b"", "its signature is wrong"
        if unknown:
            return key, "its key was revoked or replaced"
        if abs(age) <= CLOCKS_DIFFER:
            return key, ""
        when = "before now" if age > 0 else "after now"
        return key, f"it was signed more than {CLOCKS_DIFFER:.0f} seconds {when}, by the server's clock"
    except (KeyError, *UNREADABLE):
        return b"", "it is not signed"


def _token(scope: Scope) -> str:
    told = [value for name, value in scope["headers"] if name.lower() == TOKEN_HEADER.encode()]
    return told[0].decode("latin-1")[:64] if len(told) == 1 else ""


async def _refuse(send: Send, status: int) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})
