"""A site's end of the connection: what Flower's SuperNode does, without running code that the server sends.

A SuperNode fetches a program from the server with each run and executes it. This one speaks the same protocol
(activate, heartbeat, pull, push; every call signed with the site's key, inside TLS) and hands messages to the code that
is installed here; a program is never asked for.
"""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
from flwr.app import Message

from fedstill.core.errors import FedstillError, InputError
from fedstill.core.message import DEFAULT_LIMIT
from fedstill.deploy.flower_inner import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    Node,
    NodeAuthHttpInterceptor,
    ObjectPullError,
    ObjectPushError,
    ProtobufCall,
    ProtobufClientInterceptor,
    ProtobufRequestContext,
    PullMessagesRequest,
    PushMessagesRequest,
    RuntimeVersionHttpInterceptor,
    SendNodeHeartbeatRequest,
    add_headers,
    get_all_nested_objects,
    get_object_id,
    get_object_tree,
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
    message_from_proto,
    message_to_proto,
    no_object_id_recompute,
    now,
    public_key_to_bytes,
    pull_and_inflate_object_from_tree,
    push_objects,
    remove_content_from_message,
)
from fedstill.deploy.key_rotation import ROTATE, Keys, rotation_request
from fedstill.deploy.request_guard import CLOCKS_DIFFER, TOKEN_HEADER, signature_headers
from fedstill.deploy.server_responses import check_tree, fleet_client, one_server

_log = logging.getLogger(__name__)

HEARTBEAT = 10.0  # seconds, Flower's least: a site that is silent for twice as long counts as gone
_BEAT = 4.0  # seconds between heartbeats, so that one may be lost
_FETCH = 60.0  # seconds after which a part of a message that the server announced and does not have is given up

T = TypeVar("T")


class SiteConnectionError(Exception):
    """The server cannot be reached at the moment; retry."""


class DamagedMessageError(SiteConnectionError):
    """Something came that is no message, or not all of one."""


class UnwelcomeMessageError(FedstillError):
    """A message that this site does not take, as it answers the server: `envelope` is the message without content."""

    def __init__(self, envelope: Message, why: str) -> None:
        super().__init__(why)
        self.envelope = envelope


class UntrustedServerError(InputError):
    """What answers has no certificate that this site trusts; a bit that was flipped on the way looks the same."""


class StillConnectedError(SiteConnectionError):
    """The server still lists this site as connected: it was just restarted, or runs twice."""


class _Signing:
    """Signs each call with the key that is in use at that moment."""

    def __init__(self, keys: Keys) -> None:
        self.by = NodeAuthHttpInterceptor(*keys)

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        return self.by.intercept(context, call_next)


@dataclass
class SiteConnection:
    """One connection to the server, from activation to the first error."""

    address: str
    keys: Keys
    authority: Path | None  # None: without TLS
    token: str = ""  # what this process calls itself: with the same one it may connect again at once
    limit: int = DEFAULT_LIMIT  # bytes of one message of the server
    patience: float | None = None  # seconds for the server's answer while connecting; None: as for any other answer
    node: Node | None = None

    def __enter__(self) -> Self:
        self._signing = _Signing(self.keys)
        version = RuntimeVersionHttpInterceptor(component_name="SuperNode")
        layers: list[ProtobufClientInterceptor] = [version, self._signing, _Token(self.token)]
        self._client = fleet_client(self.address, self.authority, layers)
        usual = self._client._client.timeout
        if self.patience is not None:
            self._client._client.timeout = httpx.Timeout(max(1.0, min(self.patience, usual.read or self.patience)))
        self._closing = threading.Event()
        request = ActivateNodeRequest(public_key=public_key_to_bytes(self.keys[1]), heartbeat_interval=HEARTBEAT)
        try:
            self.node = Node(node_id=self._call(self._client.ActivateNode, request).node_id)
        except BaseException:
            self._client.close()
            raise
        self._client._client.timeout = usual
        threading.Thread(target=self._beat, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        if not (self.token and isinstance(error, SiteConnectionError)):  # else it connects again
            self._sign_off()
        self._client.close()

    def _sign_off(self) -> None:
        try:
            self._client.DeactivateNode(DeactivateNodeRequest(node_id=self._node.node_id))
        except Exception:  # the server forgets a silent site by itself
            _log.debug("could not sign off at %s", self.address, exc_info=True)

    def receive(self) -> Message | None:
        """The next message; None if there is none just now."""
        pulled = self._call(self._client.PullMessages, PullMessagesRequest(node=self._node))
        if not pulled.messages_list:
            return None
        return self._guarded(lambda: self._fetched(pulled.messages_list[0], pulled.message_object_trees[0]))

    def _fetched(self, announced: Any, tree: Any) -> Message:
        """A message with its content, which is fetched up to the limit."""
        run_id = announced.metadata.run_id
        pull = _Verified(make_pull_object_fn_protobuf(self._client.PullObject, self._node, run_id), self.limit)
        confirm = make_confirm_message_received_fn_protobuf(self._client.ConfirmMessageReceived, self._node, run_id)
        check_tree(tree)
        try:
            message = pull_and_inflate_object_from_tree(tree, pull, confirm, return_type=Message, max_time=_FETCH)
        except ObjectPullError as error:
            if not pull.over:
                raise
            why = f"it has over {self.limit / 2**20:g} megabytes, the most that this site receives"
            envelope = message_from_proto(announced)
            envelope.metadata.__dict__["_message_id"] = tree.object_id
            raise UnwelcomeMessageError(envelope, why) from error
        message.metadata.__dict__["_message_id"] = tree.object_id
        return message

    def send(self, reply: Message) -> None:
        with no_object_id_recompute():
            reply.metadata.__dict__["_message_id"] = reply.object_id
            pushed = self._call(
                self._client.PushMessages,
                PushMessagesRequest(
                    node=self._node,
                    messages_list=[message_to_proto(remove_content_from_message(reply))],
                    message_object_trees=[get_object_tree(reply)],
                    clientapp_runtime_list=[0.0],
                ),
            )
            push = make_push_object_fn_protobuf(
                self._client.PushObject, self._node, reply.metadata.run_id, pushed.session_id
            )
            objects = get_all_nested_objects(reply)
            self._guarded(lambda: push_objects(objects, push, object_ids_to_push=set(pushed.objects_to_push)))

    def propose_key(self, site: int, new: Keys) -> bool:
        """Ask the server to accept a site's next key beside the present one; whether it does."""
        where = f"{'http' if self.authority is None else 'https'}://{self.address}{ROTATE}"

        def ask() -> httpx.Response:
            body = rotation_request(site, self.keys, new)
            with one_server(self.authority) as client:
                return client.post(where, content=body, headers=list(signature_headers(*self.keys).items()))

        return self._guarded(ask).status_code == 200

    def use_key(self, keys: Keys) -> None:
        """Sign everything from now on with another key, which the server has accepted; the connection stays."""
        self.keys, self._signing.by = keys, NodeAuthHttpInterceptor(*keys)

    @property
    def _node(self) -> Node:
        assert self.node is not None
        return self.node

    def _beat(self) -> None:
        """Send a heartbeat every few seconds, also during training."""
        while not self._closing.wait(_BEAT):
            try:
                self._client.SendNodeHeartbeat(SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=HEARTBEAT))
            except Exception:  # the next call on the main thread fails in the same way, and is reported
                _log.debug("a heartbeat to %s failed", self.address, exc_info=True)

    def _call(self, call: Callable[[Any], Any], request: Any) -> Any:
        return self._guarded(lambda: call(request))

    def _guarded(self, act: Callable[[], T]) -> T:
        """Call `act`, and translate errors of httpx and Flower."""
        try:
            return act()
        except httpx.HTTPStatusError as error:
            raise self._refused(error.response) from error
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        except (ObjectPullError, ObjectPushError, KeyError, ValueError, TypeError) as error:
            raise DamagedMessageError(f"a message did not arrive completely ({type(error).__name__})") from error

    def _refused(self, response: httpx.Response) -> Exception:
        match response.status_code:
            case 401 if self.node is None:
                if (ahead := _ahead(response)) is not None and abs(ahead) > CLOCKS_DIFFER:
                    return InputError(
                        f"the server at {self.address} refuses this site: this machine's clock is {abs(ahead):.0f}"
                        f" seconds {'ahead of' if ahead > 0 else 'behind'} the server's, and may differ by"
                        f" {CLOCKS_DIFFER:.0f}: set both clocks"
                    )
                return InputError(
                    f"the server at {self.address} does not know this site's key: ask its operator to put site.pub into"
                    " server/sites/, unless it was revoked"
                )
            case 412 if self.node is None:
                return StillConnectedError(
                    f"the server at {self.address} says that this site is connected already: either it was restarted"
                    f" within {2 * HEARTBEAT:.0f} seconds, or it runs twice"
                )
            case 413:
                return SiteConnectionError(
                    "the server takes no reply of that size: ask its operator for a higher --limit"
                )
            case 401 | 412:  # it knew us before: it was restarted, or has given us up
                return SiteConnectionError(f"the server at {self.address} does not know this connection any more")
        return SiteConnectionError(f"the server at {self.address} answered with status {response.status_code}")

    def _unreachable(self, error: httpx.TransportError) -> Exception:
        cause = error.__cause__ or error.__context__ or error
        while cause is not None and not isinstance(cause, ssl.SSLError):
            cause = cause.__cause__ or cause.__context__
        if isinstance(cause, ssl.SSLCertVerificationError):
            return UntrustedServerError(_certificate_trouble(self.address, cause))
        if cause is not None and "WRONG_VERSION_NUMBER" in str(cause):
            return UntrustedServerError(
                f"the server at {self.address} does not use TLS, and this site requires it: nothing was sent"
            )
        return SiteConnectionError(f"no answer from the server at {self.address} ({type(error).__name__})")


@dataclass(frozen=True)
class _Token:
    """Adds this process's name for itself to each request."""

    token: str

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        if self.token:
            add_headers(context.request, {TOKEN_HEADER: self.token})
        return call_next(context)


class _Verified:
    """Fetches bytes that have the digest by which they were announced, up to a limit; others are refused."""

    def __init__(self, pull: Callable[[str], bytes], limit: int = DEFAULT_LIMIT) -> None:
        self.pull, self.limit, self.left, self.over = pull, limit, limit, False
        self._lock = threading.Lock()

    def __call__(self, name: str) -> bytes:
        content = self.pull(name)
        if get_object_id(content) != name:
            raise ObjectPullError(name, "its bytes do not have the digest that was announced")
        with self._lock:  # several pieces are fetched at once
            self.left -= len(content)
            self.over = self.over or self.left < 0
        if self.over:
            raise ObjectPullError(name, f"the message has over {self.limit} bytes")
        return content


def _ahead(response: httpx.Response) -> float | None:
    """Seconds by which this machine's clock is ahead of the server's; None if it does not give the time."""
    try:
        return (now() - parsedate_to_datetime(response.headers["date"])).total_seconds()
    except (KeyError, ValueError, TypeError):
        return None


def _certificate_trouble(address: str, error: ssl.SSLCertVerificationError) -> str:
    """One sentence for each way in which a certificate is wrong, by OpenSSL's numbers."""
    what = error.verify_message or str(error)
    match error.verify_code:
        case 10:
            return f"the certificate of the server at {address} has expired: ask its operator for a new one"
        case 9:
            return f"the certificate of the server at {address} is not valid yet: compare the clocks of both machines"
        case 18 | 19 | 20 | 21:
            return (
                f"the certificate of the server at {address} was not signed by this deployment's authority (ca.crt):"
                " this may not be the server you mean, so nothing was sent"
            )
        case 62 | 64:
            return f"the certificate of the server was made for another address than {address}: ask for the right one"
    return f"the certificate of the server at {address} cannot be trusted ({what}): nothing was sent"
