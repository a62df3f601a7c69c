"""The server's end of the connection: Flower's SuperLink inside this process, with one interface.

Flower's own command opens three interfaces on one port: to sites (Fleet), to those who register keys and start runs
(Control, which requires no credentials), and to server programs (Runtime). Here only the first can be reached: this
process registers the sites' keys, and nobody outside can start a run or hand over a program.
"""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import Any, Self, cast

import uvicorn
from flwr.app import Error, Message, Metadata, RecordDict
from flwr.serverapp import Grid

from fedstill.core.errors import InputError, RunError
from fedstill.deploy.connection_limit import STRANGERS, LimitedSocket
from fedstill.deploy.flower_inner import (
    NOOP_ACCOUNT_NAME,
    NOOP_FEDERATION_ID,
    NOOP_FLWR_AID,
    SUPERLINK_NODE_ID,
    ErrorCode,
    LinkState,
    NodeInfo,
    Run,
    SubStatus,
    TaskIdentity,
    TaskType,
    create_app,
    get_all_nested_objects,
    get_object_tree,
    inflate_object_from_contents,
    iterate_object_tree,
    make_message,
    no_object_id_recompute,
    remove_content_from_message,
)
from fedstill.deploy.keys import make_key, registered_bytes
from fedstill.deploy.request_guard import InnerIdentity, RequestGuard
from fedstill.deploy.server_log import ServerLog
from fedstill.deploy.server_options import check_port
from fedstill.deploy.site_keys import SiteKeys
from fedstill.deploy.timed_protocol import TimedProtocol
from fedstill.engines.flower.correspondence import UNREADABLE

_log = logging.getLogger(__name__)

_ALIVE_EVERY = 10.0  # seconds
_LOOK_EVERY = 1.0  # seconds between looks for a new certificate
_PATIENCE = 30.0  # seconds for the next piece of a reply to arrive
# Layers of Flower's other interfaces, which every request would pass although it can never be theirs.
_ELSEWHERE = frozenset(
    {
        "ControlSensitiveResponseMiddleware",
        "ControlAuthenticationMiddleware",
        "ControlLicenseMiddleware",
        "ControlEventLogMiddleware",
        "RuntimeTracingMiddleware",
    }
)


@dataclass(frozen=True)
class Certificates:
    """Files of the server's certificate and its private key."""

    certificate: Path
    key: Path


class ServerEndpoint(Grid):
    """A SuperLink that serves registered sites, and the grid over which this process talks to them."""

    def __init__(
        self,
        host: str,
        port: int,
        public_keys: SiteKeys | Mapping[int, bytes],
        certificates: Certificates | None,
        limit: int = 2**30,
        log: ServerLog | None = None,
    ) -> None:
        self.app = create_app()
        layers = self.app.user_middleware
        self.app.user_middleware = [one for one in layers if getattr(one.cls, "__name__", "") not in _ELSEWHERE]
        self.app.state.enable_supernode_auth = True
        self.state: LinkState = self.app.state.linkstate_factory.state()
        keys = public_keys if isinstance(public_keys, SiteKeys) else SiteKeys(public_keys)
        inside = {site: self._registered(site) for site in keys.sites}
        self.nodes = {site: one.node for site, one in inside.items()}
        self.log = log
        self.guard = RequestGuard(
            self.app, keys, inside, limit, observer=log, on_connect=self._reconnect, on_leave=self._take_last_replies
        )
        self._sites = {node: site for site, node in self.nodes.items()}
        self._coming: dict[str, _Incomplete] = {}  # replies of which pieces are missing, by what they answer
        # By message under way, its site, which Flower's own errors do not name, and what it asks.
        self._receivers: dict[str, tuple[int, Mapping[str, Any]]] = {}
        self._replies = threading.Lock()  # both are also used where sites' requests are served
        self._tokens: dict[int, str] = {}  # by site, what the connected process calls itself
        self._socket = _bound(host, port, self._cut)
        self.guard.on_signed = self._socket.signed
        self.guard.on_revoked = self._shut_out
        logging.getLogger("uvicorn").addHandler(logging.NullHandler())  # strangers write no lines on our screen
        self._certificates = certificates
        files: dict[str, Any] = {}
        if certificates is not None:
            files = {"ssl_certfile": str(certificates.certificate), "ssl_keyfile": str(certificates.key)}
        self._server = uvicorn.Server(
            uvicorn.Config(
                self.guard,
                http=cast(Any, partial(TimedProtocol, self._cut)),
                log_config=None,
                access_log=False,
                lifespan="off",
                loop="asyncio",  # which asks our socket for connections; uvloop would take them past it
                backlog=STRANGERS,
                ws="none",
                server_header=False,
                **files,
            )
        )
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), daemon=True)
        self._closing = threading.Event()
        self._run: Run | None = None

    def _cut(self, why: str, site: int | None = None) -> None:
        """A connection was ended; mostly before anybody could tell whose it was."""
        if self.log is not None:
            self.log.refused(why, site)

    def _registered(self, site: int) -> InnerIdentity:
        """A site as Flower identifies it: by a key of this process, which stays when the site's own key changes."""
        key = make_key()
        public = registered_bytes(key.public_key())
        return InnerIdentity(
            key, self.state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, public, 0, name=f"site {site}")
        )

    @property
    def port(self) -> int:
        """The port in use, where any free one was asked for."""
        return int(self._socket.getsockname()[1])

    def __enter__(self) -> Self:
        run_id = self.state.create_run("", "", "", {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP)
        (self._run,) = self.state.get_run_info(run_ids=[run_id])
        task = self._run.primary_task_id
        self.state.claim_task(task)
        self.state.activate_task(task)
        # Where Flower's messages look for their sender.
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run_id, SUPERLINK_NODE_ID, task
        self._thread.start()
        threading.Thread(target=self._stay_alive, args=(task,), daemon=True).start()
        threading.Thread(target=self._watch_certificates, daemon=True).start()
        while not self._server.started:
            if not self._thread.is_alive():
                raise RunError("the server could not be started: check its certificate and key")
            sleep(0.01)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._server.should_exit = True
        self._thread.join(timeout=5)
        self._socket.close()
        self.state.finish_task(self.run.primary_task_id, SubStatus.COMPLETED, "")

    def _stay_alive(self, task: int) -> None:
        while not self._closing.wait(_ALIVE_EVERY):
            self.state.acknowledge_task_heartbeat(task)

    def _watch_certificates(self) -> None:
        """Use a new certificate for new connections as soon as both of its files are there."""
        if self._certificates is None:
            return
        files = (self._certificates.certificate, self._certificates.key)
        before = [_changed_at(path) for path in files]
        while not self._closing.wait(_LOOK_EVERY):
            if (found := [_changed_at(path) for path in files]) == before:
                continue
            before = found
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*files)  # tried, since both must fit
                # In the thread of the connections: a handshake in between would use a new certificate with an old key.
                loop = self._server.servers[0].get_loop()
                loop.call_soon_threadsafe(self._server.config.ssl.load_cert_chain, *files)
                _log.info("a new certificate is in use")
                if self.log is not None:
                    self.log.event("a new certificate is in use")
            except (OSError, ssl.SSLError):
                _log.warning("the certificate %s and its key cannot be used: the earlier ones are", files[0])

    @property
    def run(self) -> Run:
        assert self._run is not None
        return self._run

    def set_run(self, run: Run) -> None:
        """There is one run, made when the link is entered."""

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_nodes(self) -> Iterable[NodeInfo]:
        return self.state.get_node_info(node_ids=list(self.nodes.values()))

    def get_node_ids(self) -> Iterable[int]:
        """The sites that are connected."""
        return [info.node_id for info in self.get_nodes() if info.status == "online"]

    def since(self, node: int) -> str:
        """When a site connected: it changes if the site was restarted."""
        (info,) = self.state.get_node_info(node_ids=[node])
        return str(info.last_activated_at)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return [self._push(message) for message in messages]

    def _push(self, message: Message) -> str:
        self.guard.refill(self._sites[message.metadata.dst_node_id])
        site = self._sites[message.metadata.dst_node_id]
        asked = {} if self.log is None else self.log.sent(site, message)
        with no_object_id_recompute():
            message.metadata.__dict__["_message_id"] = message.object_id
            session = self.state.start_session(self.run.run_id)
            bare = remove_content_from_message(message)
            stored, missing = self.state.store_message_and_object_tree(bare, get_object_tree(message), session)
            if not stored:
                raise RunError(f"Flower did not take a message to node {message.metadata.dst_node_id}")
            objects = get_all_nested_objects(message)
            for name in missing:
                self.state.store_object(self.run.run_id, session, name, objects[name].deflate())
        with self._replies:
            self._receivers[message.metadata.message_id] = site, asked
        return str(message.metadata.message_id)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Complete replies that have arrived; one whose pieces do not arrive becomes an error reply."""
        asked = set(message_ids)
        with self._replies:
            self._note_announced(asked)
            coming = {name: self._coming[name] for name in asked & self._coming.keys()}
        found = {name: self._whole(one) for name, one in coming.items()}
        came = {name: reply for name, reply in found.items() if reply is not None}
        with self._replies:
            self.state.delete_messages(set(came))
            receivers = {name: self._receivers.pop(name) for name in came}
            for name in came:
                del self._coming[name]
        if self.log is not None:
            for name, reply in came.items():
                site, about = receivers[name]
                self.log.received(site, reply, about)
        return list(came.values())

    def _note_announced(self, names: set[str]) -> None:
        """Note replies to these messages that have been announced since the last look."""
        for reply in self.state.get_message_res(message_ids=names - self._coming.keys(), run_id=self.run.run_id):
            self._coming[reply.metadata.reply_to_message_id] = _Incomplete(reply)

    def _take_last_replies(self, site: int) -> None:
        """Note what a site has replied before it signs off: Flower gives no replies of nodes that are not there."""
        with self._replies:
            self._note_announced({name for name, (receiver, _) in self._receivers.items() if receiver == site})

    def drop_messages(self, message_ids: Iterable[str]) -> None:
        """Forget messages, and what has come of their replies: they are sent anew, or not wanted any more."""
        names, store = set(message_ids), self.state.object_store
        with self._replies:
            self.state.delete_messages(names)
            for name in names:
                if (coming := self._coming.pop(name, None)) is not None:
                    store.delete(coming.reply.metadata.message_id)
                store.delete(name)
                self._receivers.pop(name, None)

    def _shut_out(self, site: int) -> None:
        """The key of a connected site was revoked: nothing is waited for any more that it could still send."""
        if self.nodes[site] in self.get_node_ids():
            self.state.deactivate_node(self.nodes[site])

    def _reconnect(self, site: int, token: str) -> None:
        """Let a site whose connection broke connect again at once; another process with its key has to wait."""
        if self.nodes[site] not in self.get_node_ids():
            self._tokens[site] = token
        elif token and self._tokens.get(site) == token:
            _log.info("site %d connects again before its last connection has ended", site)
            self.state.deactivate_node(self.nodes[site])

    def _whole(self, coming: _Incomplete) -> Message | None:
        """The reply with its content; None while pieces are missing."""
        reply = coming.reply
        if reply.has_error():
            return reply
        store, name = self.state.object_store, reply.metadata.message_id
        try:
            wanted = [tree.object_id for tree in iterate_object_tree(store.get_object_tree(name))]
            if self._sites[reply.metadata.src_node_id] in self.guard.over:
                raise ValueError(f"it is over the limit of {self.guard.limit} bytes")
            if missing := sum(self.state.get_object(self.run.run_id, one) == b"" for one in wanted):
                return None if coming.goes_on(missing) else _lost(reply.metadata)
            contents = {one: self.state.get_object(self.run.run_id, one) for one in wanted}
            message = cast(Message, inflate_object_from_contents(name, contents))
            if not isinstance(message, Message) or not message.has_content():
                raise ValueError("it holds no records")
        except Exception as error:  # whatever a site sent, the others go on
            _log.info("a reply could not be read", exc_info=True)
            return _unreadable(reply.metadata, str(error))
        store.delete(name)
        message.metadata.__dict__["_message_id"] = name
        return message

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        waiting, replies = set(self.push_messages(messages)), list[Message]()
        until = None if timeout is None else monotonic() + timeout
        while waiting and (until is None or monotonic() < until):
            came = list(self.pull_messages(waiting))
            replies += came
            waiting -= {reply.metadata.reply_to_message_id for reply in came}
            sleep(0.05)
        return replies


@dataclass
class _Incomplete:
    """A reply that was announced."""

    reply: Message
    missing: int | None = None  # pieces
    until: float = field(default_factory=lambda: monotonic() + _PATIENCE)

    def goes_on(self, missing: int) -> bool:
        """Whether pieces still arrive; so many are missing now."""
        if self.missing is None or missing < self.missing:
            self.missing, self.until = missing, monotonic() + _PATIENCE
        return monotonic() < self.until


def _unreadable(about: Metadata, why: str) -> Message:
    return make_message(metadata=about, error=Error(UNREADABLE, why))


def _lost(about: Metadata) -> Message:
    return make_message(metadata=about, error=Error(ErrorCode.REPLY_MESSAGE_UNAVAILABLE, "some of it is missing"))


def _changed_at(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _bound(host: str, port: int, refused: Callable[[str, int | None], None]) -> LimitedSocket:
    check_port(port, least=0)
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        made = LimitedSocket(family, refused)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
    except OSError as error:
        raise InputError(
            f"cannot listen on {host} port {port}: {error.strerror or error}; choose another --host or --port"
        ) from None
    return made
