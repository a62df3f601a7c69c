"""What is not done for each piece of a message: fetching it again, and asking layers that have no say in it."""

from __future__ import annotations

import os
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest

if find_spec("flwr") is None and "FEDSTILL_ALL_TESTS" not in os.environ:
    pytest.skip("Flower is missing", allow_module_level=True)

from flwr.proto.message_pb2 import PullObjectRequest, PullObjectResponse
from flwr.proto.node_pb2 import Node

from fedstill.deploy.line import Line
from fedstill.deploy.link import Link


def test_a_piece_of_the_message_before_is_not_fetched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three messages (a b), (a c), (b c): a comes once, b twice, since only the last message is held, c once."""
    fetched: list[str] = []

    def pull(request: PullObjectRequest) -> PullObjectResponse:
        fetched.append(request.object_id)
        content = f"{request.object_id} of run {request.run_id}".encode()
        return PullObjectResponse(object_found=True, object_available=True, object_content=content)

    line: Any = Line("nowhere:1", (None, None), None, Node(node_id=1))  # type: ignore[arg-type]
    line._client, line._held = SimpleNamespace(PullObject=pull), {}
    came = []
    for message in ("ab", "ac", "bc"):
        fetch = line._pull_new(run_id=7)
        came.append([fetch(piece).decode() for piece in message])
    assert came == [[f"{piece} of run 7" for piece in message] for message in ("ab", "ac", "bc")]
    assert fetched == ["a", "b", "c", "b"]


def test_of_flowers_layers_only_those_about_other_interfaces_are_left_out() -> None:
    link = Link("127.0.0.1", 0, {0: b"key"}, None)
    link._socket.close()
    layers = [getattr(one.cls, "__name__", "") for one in link.app.user_middleware]
    assert "NodeAuthMiddleware" in layers  # who asks is verified
    assert "ProtobufTranslationMiddleware" in layers
    assert not [name for name in layers if name.startswith(("Control", "Runtime"))]
