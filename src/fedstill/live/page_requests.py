"""Answers to requests: the page, its script and style, and what it shows as JSON. Nothing else is served."""

from __future__ import annotations

import gzip
import json
import logging
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fedstill._version import __version__
from fedstill.live.page_access import PageAccess
from fedstill.live.watched_folders import WatchedFolders

_log = logging.getLogger(__name__)

_ASSETS = {
    "/": ("watch.html", "text/html; charset=utf-8"),
    "/watch.js": ("watch.js", "text/javascript; charset=utf-8"),
    "/list.js": ("list.js", "text/javascript; charset=utf-8"),
    "/curves.js": ("curves.js", "text/javascript; charset=utf-8"),
    "/numbers.js": ("numbers.js", "text/javascript; charset=utf-8"),
    "/compare.js": ("compare.js", "text/javascript; charset=utf-8"),
    "/watch.css": ("watch.css", "text/css; charset=utf-8"),
    "/report.css": ("report.css", "text/css; charset=utf-8"),
}
_JSON, _TEXT, _HTML = "application/json", "text/plain; charset=utf-8", "text/html; charset=utf-8"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none';"
    " form-action 'self'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_MOST_RUNS = 30  # that are compared at once
_SMALL = 1400  # bytes that are not worth packing


class PageRequest(BaseHTTPRequestHandler):
    """One request; only GET (and HEAD) is answered, and no part of a request names a file."""

    server_version = f"fedstill/{__version__}"
    sys_version = ""
    timeout = 10.0  # seconds for a client to send its request

    @property
    def page_access(self) -> PageAccess:
        access: PageAccess = self.server.page_access  # type: ignore[attr-defined]
        return access

    @property
    def watched(self) -> WatchedFolders:
        watched: WatchedFolders = self.server.watched  # type: ignore[attr-defined]
        return watched

    def do_GET(self) -> None:
        """Answer, or refuse with a sentence."""
        try:
            self._answer()
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            self.close_connection = True  # the client has gone
        except Exception:
            _log.exception("the page could not answer")  # and the next request is another one
            self._send(b"the page could not be made: see the log\n", _TEXT, HTTPStatus.INTERNAL_SERVER_ERROR)

    do_HEAD = do_GET  # noqa: N815 (the name that the standard library looks for)

    def _answer(self) -> None:
        if not self.page_access.knows_host(self.headers.get("Host")):
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST, "this page is not served under that name")
            return
        try:
            target = urlsplit(self.path)
            query = parse_qs(target.query, max_num_fields=2 * _MOST_RUNS)
        except ValueError:
            self._refuse(HTTPStatus.BAD_REQUEST, "this address cannot be read")
            return
        if not self.page_access.allows(dict(self.headers.items()), query):
            self._send(_asset("token.html"), _HTML, HTTPStatus.UNAUTHORIZED)
        elif target.path == "/" and self.page_access.token is not None and "token" in query:
            self._enter()
        elif target.path in _ASSETS:
            name, kind = _ASSETS[target.path]
            self._send(_asset(name), kind)
        elif target.path == "/state.json":
            self._send_json(self.watched.state(_number(query.get("since", [""])[0])))
        elif target.path == "/runs.json":
            self._send_json({"runs": self.watched.details(query.get("id", [])[:_MOST_RUNS])})
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such page")

    def _enter(self) -> None:
        """Give the browser the token as a cookie, and take it out of the address."""
        self.send_response(HTTPStatus.SEE_OTHER)
        self.send_header("Location", "/")
        self.send_header("Set-Cookie", self.page_access.cookie_header())
        self._end(0)

    def _send_json(self, content: Any) -> None:
        self._send(json.dumps(content, allow_nan=False, separators=(",", ":")).encode(), _JSON)

    def _refuse(self, status: HTTPStatus, sentence: str) -> None:
        self._send(f"{sentence}\n".encode(), _TEXT, status)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the standard library refuses: other methods, and what is no request."""
        other = code == HTTPStatus.NOT_IMPLEMENTED
        self.close_connection = True
        self._refuse(HTTPStatus.METHOD_NOT_ALLOWED if other else HTTPStatus(code), "only GET is answered here")

    def _send(self, body: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        headers = getattr(self, "headers", None) or {}  # none of a request that could not be read
        packed = len(body) > _SMALL and "gzip" in (headers.get("Accept-Encoding") or "")
        body = gzip.compress(body, 1) if packed else body
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if packed:
            self.send_header("Content-Encoding", "gzip")
        self._end(len(body))
        if self.command != "HEAD":
            self.wfile.write(body)

    def _end(self, length: int) -> None:
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: an address may have the token in it."""


@cache
def _asset(name: str) -> bytes:
    package = "fedstill.report" if name == "report.css" else "fedstill.live"
    return files(package).joinpath("assets", name).read_bytes()


def _number(typed: str) -> int:
    """
    >>> _number("12"), _number("-1"), _number("x"), _number("9" * 40), _number("²")
    (12, 0, 0, 0, 0)
    """
    return int(typed) if typed.isascii() and typed.isdigit() and len(typed) < 18 else 0
