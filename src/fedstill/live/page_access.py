"""Who may read the page: those who reach this machine's own address, elsewhere those who have the token."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from hmac import compare_digest
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from secrets import token_urlsafe

_PORT = re.compile(r":\d{1,5}$")
_BEARER = "bearer "
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine alone.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("::1"), is_loopback("0.0.0.0"), is_loopback("")
    (True, True, True, False, False)
    """
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def name_in(header: str) -> str:
    """The host of a Host header, without its port.

    >>> name_in("localhost:8321"), name_in("[::1]:8321"), name_in("Example.org")
    ('localhost', '::1', 'example.org')
    """
    return _PORT.sub("", header.strip()).strip("[]").lower()


class PageAccess:
    """The rules for one address that is served."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.token = None if is_loopback(host) else token_urlsafe(24)
        self.cookie = f"fedstill-watch-{port}"

    def knows_host(self, header: str | None) -> bool:
        """Whether a request names this machine: one that was sent to a name of somebody else's, which only leads here,
        comes from a page that wants to read this one."""
        name = name_in(header or "")
        if name in LOCAL_NAMES or name == self.host.lower():
            return True
        if self.token is None:
            return is_loopback(name)
        own = socket.gethostname().lower().partition(".")[0]  # its domain would have to be asked of a name server
        return _is_address(name) or name.partition(".")[0] == own

    def allows(self, headers: Mapping[str, str], query: Mapping[str, list[str]]) -> bool:
        """Whether there is no token, or the request has it: in a header, its cookie, or once in the address."""
        if self.token is None:
            return True
        given = [headers.get("Authorization") or "", self._in_cookie(headers.get("Cookie") or "")]
        given[0] = given[0][len(_BEARER) :] if given[0].lower().startswith(_BEARER) else ""
        given += query.get("token", [])[:1]
        return any(self._is_token(one) for one in given)

    def entry(self, name: str) -> str:
        """The address to open."""
        shown = f"[{name}]" if ":" in name else name
        secret = f"?token={self.token}" if self.token else ""
        return f"http://{shown}:{self.port}/{secret}"

    def cookie_header(self) -> str:
        return f"{self.cookie}={self.token}; HttpOnly; SameSite=Strict; Path=/"

    def _in_cookie(self, header: str) -> str:
        try:
            found = SimpleCookie(header).get(self.cookie)
        except CookieError:
            return ""
        return found.value if found is not None else ""

    def _is_token(self, given: str) -> bool:
        return compare_digest(given.encode("utf-8", "replace"), str(self.token).encode())


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
