"""The server's end of the line, before anybody calls."""

from __future__ import annotations

import resource

import pytest
import torch
from flwr.app import Message as Envelope

from fedstill.deploy import server_endpoint
from fedstill.deploy.connection_limit import allow_open_files
from fedstill.deploy.keys import make_key, registered_bytes
from fedstill.deploy.server_endpoint import ServerEndpoint
from fedstill.deploy.site_connection import SiteConnection
from fedstill.engines.flower.encoding import packed, salted, unpacked, unsalted


def test_of_flowers_layers_only_those_about_other_interfaces_are_left_out() -> None:
    link = ServerEndpoint("127.0.0.1", 0, {0: b"key"}, None)
    link._socket.close()
    layers = [getattr(one.cls, "__name__", "") for one in link.app.user_middleware]
    assert "NodeAuthMiddleware" in layers  # who asks is verified
    assert "ProtobufTranslationMiddleware" in layers
    assert not [name for name in layers if name.startswith(("Control", "Runtime"))]


def test_only_the_process_that_was_connected_connects_again_at_once() -> None:
    """A site whose connection broke, and not a second process with the same key."""
    link = ServerEndpoint("127.0.0.1", 0, {0: b"key"}, None)
    link._socket.close()

    def connects(token: str) -> bool:
        link._reconnect(0, token)
        return bool(link.state.activate_node(link.nodes[0], 10.0))

    assert connects("first")
    since = link.since(link.nodes[0])
    assert not connects("second")
    assert not connects("")
    assert link.since(link.nodes[0]) == since
    assert connects("first")
    assert link.since(link.nodes[0]) != since
    link.state.deactivate_node(link.nodes[0])
    assert connects("second"), "the first one has left"
    assert not connects("first")


def test_a_server_may_open_as_many_files_as_the_system_permits() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        allow_open_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_last_reply_of_a_site_that_has_left_is_found() -> None:
    """As a site with `--once` does that has the final model, before the server looks again."""
    key = make_key()
    with ServerEndpoint("127.0.0.1", 0, {0: registered_bytes(key.public_key())}, None) as link:
        with SiteConnection(f"127.0.0.1:{link.port}", (key, key.public_key()), None) as line:
            letters = [Envelope(salted(packed({}, {})), link.nodes[0], "train.exchange", ttl=60.0) for _ in range(2)]
            answered, unanswered = link.push_messages(letters)
            asked = line.receive()
            assert asked is not None
            line.send(Envelope(salted(packed({"steps": torch.tensor(3)}, {})), reply_to=asked))
        assert link.get_node_ids() == []
        replies = {one.metadata.reply_to_message_id: one for one in link.pull_messages([answered, unanswered])}
    assert unpacked(unsalted(replies[answered].content))[0]["steps"] == 3
    assert replies[unanswered].has_error()


def test_a_reply_may_take_long_while_pieces_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(server_endpoint, "monotonic", lambda: now[0])
    coming = server_endpoint._Incomplete(None)  # type: ignore[arg-type]
    for missing in (5, 4, 3, 2):
        assert coming.goes_on(missing)
        now[0] += 29
    assert coming.goes_on(2)
    now[0] += 2
    assert not coming.goes_on(2)
