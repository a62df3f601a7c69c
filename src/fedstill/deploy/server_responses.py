"""Limits on what a server answers a site: it sends the site nowhere else, and does not fill its memory.

Flower's client follows redirects, unpacks compressed answers and reads them to their end, however long they are. A
malicious server could so have a site send requests to other machines of its network, and without TLS, or take all of
its memory.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import httpx

from fedstill.deploy.flower_inner import FleetHttpClient, ObjectTree, ProtobufClientInterceptor

LARGEST = 64 * 2**20  # bytes of one answer: Flower cuts arrays into pieces of 20 MiB
_SECONDS = 30.0  # for the next piece of an answer
_WHOLE = 600.0  # seconds for a whole one
_LEVELS = 5  # a message, its records, each record, an array, a piece of it
_OBJECTS = 200_000  # of one message


class _OneServer(httpx.Client):
    """Takes answers as they are, from the server that was asked, up to a limit."""

    def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        request.headers["accept-encoding"] = "identity"
        response = super().send(request, **{**options, "stream": True, "follow_redirects": False})
        try:
            if response.headers.get("content-encoding", "identity") != "identity":
                raise httpx.RemoteProtocolError("the server compressed its answer, which was not asked for")
            content, until = bytearray(), monotonic() + _WHOLE
            for piece in response.iter_raw():
                content += piece
                if len(content) > LARGEST:
                    raise httpx.RemoteProtocolError(f"the server's answer has over {LARGEST} bytes")
                if monotonic() > until:
                    raise httpx.ReadTimeout(f"the server's answer took over {_WHOLE:.0f} seconds")
        finally:
            response.close()
        return httpx.Response(response.status_code, headers=response.headers, content=bytes(content), request=request)


def one_server(authority: Path | None) -> httpx.Client:
    """A client that trusts the authority in this file; None: without TLS."""
    if authority is None:
        return _OneServer(timeout=_SECONDS)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=authority.read_text(encoding="ascii"))
    return _OneServer(verify=context, timeout=_SECONDS)


def fleet_client(address: str, authority: Path | None, layers: Sequence[ProtobufClientInterceptor]) -> FleetHttpClient:
    """Flower's client, which talks to its server in this way."""
    made = FleetHttpClient(f"{'http' if authority is None else 'https'}://{address}", interceptors=layers)
    made._client.close()
    made._client = one_server(authority)
    return made


def check_tree(tree: ObjectTree) -> None:
    """Refuse, as a `ValueError`, a graph of objects that no message of ours has: it could be expanded without end."""
    level, found = [tree], 0
    for _ in range(_LEVELS):
        found += len(level)
        if found > _OBJECTS:
            raise ValueError(f"a message of over {_OBJECTS} objects")
        level = [child for one in level for child in one.children]
    if level:
        raise ValueError(f"a message of over {_LEVELS} levels")
