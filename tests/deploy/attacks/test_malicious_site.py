"""Strangers and malicious sites against the server's endpoint, over TLS: each ends in a refusal that is logged."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from flwr.app import Message as Envelope
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE

from fedstill.core.errors import RunError
from fedstill.deploy import request_guard
from fedstill.deploy.connection_limit import STRANGERS
from fedstill.deploy.deployment_folder import SiteFolder, make_deployment, open_server, open_site
from fedstill.deploy.egress_log import read_log
from fedstill.deploy.key_rotation import rotation_request
from fedstill.deploy.keys import make_key, registered_bytes
from fedstill.deploy.request_guard import CLOCKS_DIFFER, signature_headers
from fedstill.deploy.server_endpoint import Certificates, ServerEndpoint
from fedstill.deploy.server_log import ServerLog
from fedstill.deploy.site_connection import SiteConnection, StillConnectedError
from fedstill.deploy.site_keys import SiteKeys
from fedstill.engines.flower.encoding import packed, salted, unpacked, unsalted

pytestmark = pytest.mark.xdist_group("malicious-site")  # one server for all

PULL, PUSH = "/v1/fleet/pull-messages", "/v1/fleet/push-messages"


@dataclass
class Target:
    """A server with two registered sites, and what it noted since."""

    link: ServerEndpoint
    folder: Path
    sites: list[SiteFolder]
    seen: int = field(default=0)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.link.port}"

    def post(self, site: int, path: str, body: bytes, headers: dict[bytes, bytes] | None = None) -> int:
        trusted = ssl.create_default_context(cafile=str(self.sites[0].ca))
        signed = signature_headers(*self.sites[site].keys()) if headers is None else headers
        told = {b"content-type": PROTOBUF_MEDIA_TYPE.encode(), **signed}
        return httpx.post(f"https://{self.address}{path}", content=body, headers=told, verify=trusted).status_code

    def pull(self, node: int) -> bytes:
        return bytes(PullMessagesRequest(node=Node(node_id=node)).SerializeToString())

    def refusals(self) -> list[tuple[str, str]]:
        """The server's new lines: of whom, and why."""
        lines = [line.facts for line in read_log(self.folder)] if (self.folder / "egress.jsonl").exists() else []
        new, self.seen = lines[self.seen :], len(lines)
        return [(str(one["sender"]), str(one["sentence"])) for one in new if one["what"] == "refused"]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    path = tmp_path_factory.mktemp("target") / "d"
    make_deployment(path, 2)
    folder = open_server(path)
    keys = SiteKeys(folder.public_keys(), folder.registered)
    certificates = Certificates(folder.certificate, folder.key)
    with ServerEndpoint("127.0.0.1", 0, keys, certificates, 2**20, ServerLog(folder.path)) as link:
        yield Target(link, folder.path, [open_site(path, site) for site in range(2)])


def test_a_captured_request_is_not_accepted_later(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    captured, body = signature_headers(*target.sites[0].keys()), target.pull(target.link.nodes[0])
    assert target.post(0, PULL, body, captured) == 200
    target.refusals()
    real = request_guard.now
    monkeypatch.setattr(request_guard, "now", lambda: real() + timedelta(seconds=CLOCKS_DIFFER + 10))
    assert target.post(0, PULL, body, captured) == 401
    assert target.refusals() == [("site 0", "it was signed more than 300 seconds before now, by the server's clock")]


def test_a_captured_request_of_another_site_does_not_serve(target: Target) -> None:
    """Its signature is good, and the body asks for what belongs to the other one."""
    assert target.post(0, PULL, target.pull(target.link.nodes[1])) == 401
    assert target.post(0, "/v1/fleet/activate-node", target.pull(target.link.nodes[1])) == 400
    assert target.refusals() == [
        ("site 0", "its interface answered pull-messages with 401"),
        ("site 0", "a request that is no message, or speaks for another site"),
    ]


def test_a_second_site_with_the_same_key_is_refused(target: Target) -> None:
    site = target.sites[0]
    with (
        SiteConnection(target.address, site.keys(), site.ca),
        pytest.raises(StillConnectedError, match="this site is connected already"),
        SiteConnection(target.address, site.keys(), site.ca),
    ):
        pass
    assert target.refusals() == [("site 0", "another process of this site is connected")]


def test_a_site_cannot_take_the_key_of_another_nor_one_that_it_does_not_have(target: Target) -> None:
    own, other = (site.keys() for site in target.sites)
    assert target.post(0, request_guard.ROTATE, rotation_request(0, own, other)) == 400
    assert target.post(1, request_guard.ROTATE, rotation_request(0, own, own)) == 400
    assert target.post(0, request_guard.ROTATE, bytes(20_000)) == 413
    assert [why for _, why in target.refusals()] == [
        "this key is, or was, used already: make another",
        "its statement about a new key is invalid",
        "a request of over 16384 bytes",
    ]


def test_a_reply_is_bound_to_the_key_of_its_connection(target: Target) -> None:
    honest = target.sites[0]
    link = target.link
    with SiteConnection(target.address, honest.keys(), honest.ca) as line:
        (name,) = link.push_messages(
            [Envelope(salted(packed({}, {"round": 0})), link.nodes[0], "train.exchange", ttl=60.0)]
        )
        asked = line.receive()
        assert asked is not None
        target.refusals()
        forged = Envelope(salted(packed({"steps": torch.tensor(9)}, {"status": "reply"})), reply_to=asked)
        request = PushMessagesRequest(
            node=Node(node_id=link.nodes[1]),
            messages_list=[message_to_proto(forged)],
            message_object_trees=[ObjectTree(object_id="0")],
        )
        for node in (link.nodes[1], link.nodes[0]):
            request.node.node_id = node
            assert target.post(1, PUSH, bytes(request.SerializeToString())) == 400
        assert set(target.refusals()) == {("site 1", "a request that is no message, or speaks for another site")}
        line.send(Envelope(salted(packed({"steps": torch.tensor(1)}, {"status": "reply"})), reply_to=asked))
        (reply,) = link.pull_messages([name])
        assert reply.metadata.src_node_id == link.nodes[0]
        assert unpacked(unsalted(reply.content))[0]["steps"] == 1, "the honest one"


def test_an_unsigned_request_is_answered_before_its_body_is_sent(target: Target) -> None:
    """A gigabyte is announced and none of it is waited for."""
    context = ssl.create_default_context(cafile=str(target.sites[0].ca))
    raw = socket.create_connection(("127.0.0.1", target.link.port), timeout=10)
    with context.wrap_socket(raw, server_hostname="127.0.0.1") as line:
        line.sendall(f"POST {PULL} HTTP/1.1\r\nHost: a\r\nContent-Length: {2**30}\r\n\r\n".encode())
        assert b" 401 " in line.recv(200)
    assert target.refusals() == [("a stranger", "it is not signed")]


def test_bodies_over_the_limit_are_refused(target: Target) -> None:
    assert target.post(0, PULL, bytes(25 * 2**20)) == 413
    assert target.refusals() == [("site 0", f"a request of over {24 * 2**20} bytes")]


def test_a_thousand_silent_connections_neither_shut_a_site_out_nor_take_all_descriptors(target: Target) -> None:
    """Each held a descriptor for a minute: with 1,100 of them a server could open no file, and the run ended."""
    address = ("127.0.0.1", target.link.port)
    held = []
    for number in range(2 * STRANGERS):
        held.append(socket.create_connection(address))
        if number % 50 == 0:
            assert target.post(0, PULL, target.pull(target.link.nodes[0])) == 200
    until = time.monotonic() + 10
    while sum(map(is_open, held)) > STRANGERS:
        assert time.monotonic() < until
        time.sleep(0.05)
    assert is_open(held[-1])
    assert target.post(0, PULL, target.pull(target.link.nodes[0])) == 200
    assert set(target.refusals()) == {("a stranger", f"more than {STRANGERS} connections at once")}
    for one in held:
        one.close()


def is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def test_connections_that_end_before_anybody_is_known_are_in_the_log(target: Target) -> None:
    context = ssl.create_default_context(cafile=str(target.sites[0].ca))
    for text, why in (
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "a request for something that is not served here"),
        (b"nonsense\r\n\r\n", "what came is no request"),
        (b"GET / HTTP/1.1\r\nX: " + 70_000 * b"x", "the head of a request has over 65536 bytes"),
    ):
        target.refusals()
        raw = socket.create_connection(("127.0.0.1", target.link.port), timeout=10)
        with context.wrap_socket(raw, server_hostname="127.0.0.1") as line, suppress(OSError):
            line.sendall(text)
            line.recv(200)
        assert target.refusals() == [("a stranger", why)]


def test_nobody_is_named_by_a_public_key_that_anyone_may_have(target: Target) -> None:
    """A key that was replaced, and a wrong signature: the line of the log does not point at the site."""
    keys = target.link.guard.keys
    old, spare = target.sites[1].keys()[1], make_key()
    keys._former[registered_bytes(spare.public_key())] = 1
    headers = signature_headers(make_key(), spare.public_key())
    assert target.post(1, PULL, b"", headers) == 401
    assert target.post(1, PULL, b"", signature_headers(make_key(), old)) == 401
    assert target.post(1, PULL, b"", signature_headers(spare, spare.public_key())) == 401
    assert set(target.refusals()) == {
        ("a stranger", "its signature is wrong"),
        ("site 1", "its key was revoked or replaced"),
    }


def test_forged_lines_of_the_log_are_noticed(target: Target) -> None:
    lines: list[Any] = read_log(target.folder)
    assert len(lines) > 3
    path = target.folder / "egress.jsonl"
    good = path.read_bytes()
    path.write_bytes(good.replace(b"site 1", b"site 0", 1))
    with pytest.raises(RunError, match="the log was changed or damaged"):
        read_log(target.folder)
    path.write_bytes(good)
