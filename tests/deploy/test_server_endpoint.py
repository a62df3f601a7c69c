"""The server's end of the line, before anybody calls."""

from __future__ import annotations

from fedstill.deploy.server_endpoint import ServerEndpoint


def test_of_flowers_layers_only_those_about_other_interfaces_are_left_out() -> None:
    link = ServerEndpoint("127.0.0.1", 0, {0: b"key"}, None)
    link._socket.close()
    layers = [getattr(one.cls, "__name__", "") for one in link.app.user_middleware]
    assert "NodeAuthMiddleware" in layers  # who asks is verified
    assert "ProtobufTranslationMiddleware" in layers
    assert not [name for name in layers if name.startswith(("Control", "Runtime"))]
