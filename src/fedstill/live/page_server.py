"""`fedstill.watch`: serve the live page."""

from __future__ import annotations

import errno
import logging
import os
import socket
import webbrowser
from collections.abc import Sequence
from html import escape
from http.server import ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from threading import BoundedSemaphore, Event, Thread
from types import TracebackType
from typing import Any, Self

from fedstill.core.errors import InputError
from fedstill.live.bounded_files import stamp_of
from fedstill.live.deployment_status import deployments_in, has_deployment
from fedstill.live.page_access import PageAccess
from fedstill.live.page_requests import PageRequest
from fedstill.live.watched_folders import WatchedFolders
from fedstill.live.watched_run import CONFIG
from fedstill.studies.progress_file import FOLDER as STUDIES
from fedstill.studies.status import FAILURES

PORT = 8321
_log = logging.getLogger(__name__)
_AT_ONCE = 32  # requests that are answered at the same time
_ANY = ("", "0.0.0.0", "::")
_FEW = 1000  # entries of a folder that are looked at before it is served


def watch(
    folders: str | Path | Sequence[str | Path] = "runs",
    *,
    host: str = "127.0.0.1",
    port: int = PORT,
    open: bool = False,
) -> LivePage:
    """Serve a page about runs, studies and deployments in folders, which follows them while they go on.

    It is served by threads of this process until `close` is called, or the process ends. On an address that other
    machines can reach, the page asks for the token in `url`. With port 0 the system chooses one.

    >>> import fedstill
    >>> run = fedstill.run("fedavg", clients=2, rounds=1, model="mlp", out=getfixture("tmp_path"))
    >>> with fedstill.watch(getfixture("tmp_path"), port=0) as page:
    ...     page.url.rpartition(":")[0]
    'http://127.0.0.1'
    """
    several = [folders] if isinstance(folders, str | Path) else list(folders)
    places = [_checked(Path(folder)) for folder in several]
    if not places:
        raise InputError("there is nothing to watch: name a folder of runs")
    page = LivePage(places, host, port)
    if open:
        webbrowser.open(page.url)
    return page


class LivePage:
    """A page that is being served at `url`."""

    def __init__(self, folders: Sequence[Path], host: str, port: int) -> None:
        if not 0 <= port <= 65535:
            raise InputError(f"a port is a number from 0 to 65535, not {port}")
        self._server = _bound(host, port)
        self._server.page_access = PageAccess(host, self._server.server_address[1])
        self._server.watched = WatchedFolders(folders)
        self.folders = list(folders)
        _log.info("serving a page about %s, port %d", ", ".join(map(str, folders)), self._server.server_address[1])
        self._ended = Event()
        self._thread = Thread(target=self._server.serve_forever, args=(0.05,), daemon=True, name="live page")
        self._thread.start()

    @property
    def url(self) -> str:
        """What to open in a browser; with the token, where there is one."""
        access = self._server.page_access
        return access.entry(socket.gethostname() if access.host in _ANY else access.host)

    @property
    def token(self) -> str | None:
        """The secret that a browser must send; None where only this machine can reach the page."""
        return self._server.page_access.token

    def wait(self) -> None:
        """Return when the page was closed, from another thread or by an interrupt."""
        while not self._ended.wait(0.5):
            pass

    def close(self) -> None:
        """Serve it no longer."""
        if not self._ended.is_set():
            self._ended.set()
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"LivePage({', '.join(map(str, self.folders))} at {self.url.partition('?')[0]})"

    def _repr_html_(self) -> str:
        url = escape(self.url)
        return f'<a href="{url}" target="_blank" rel="noreferrer">{escape(self.url.partition("?")[0])}</a>'


class _PageServer(ThreadingHTTPServer):
    """Answers a bounded number of requests at once, each in a thread."""

    daemon_threads = True
    allow_reuse_address = os.name == "posix"  # elsewhere it would take a port that another program has
    block_on_close = False
    page_access: PageAccess
    watched: WatchedFolders

    def __init__(self, *given: Any) -> None:
        self._free = BoundedSemaphore(_AT_ONCE)
        super().__init__(*given)

    def server_bind(self) -> None:
        """Without asking a name server what this machine is called, which can take long."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)  # a browser asks again
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a connection that broke off instead of printing it; the page logs its own faults."""
        _log.debug("a connection broke off", exc_info=True)


class _PageServer6(_PageServer):
    address_family = socket.AF_INET6


def _bound(host: str, port: int) -> _PageServer:
    kind = _PageServer6 if ":" in host else _PageServer
    try:
        return kind((host, port), PageRequest)
    except OSError as error:
        where = f"{host}:{port}"
        if error.errno == errno.EADDRINUSE:
            why = f"another program uses {where}: choose another --port, or 0 for any that is free"
        elif error.errno == errno.EACCES:
            why = f"{where} is not for every user's programs: choose a --port from 1024 on"
        elif isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            why = f"{host} is no address of this machine: leave --host out, or use 0.0.0.0 for all of its addresses"
        else:
            why = f"cannot listen on {where}: {error.strerror or error}"
        raise InputError(why) from None
    except (UnicodeError, OverflowError):
        raise InputError(f"{host!r} is no address: leave --host out") from None


def _checked(folder: Path) -> Path:
    """Refuse, before anything is served, what is neither a folder of runs nor a run nor a deployment."""
    try:
        if not folder.exists():
            raise InputError(f"there is no folder {folder}: name the folder that holds the runs")
        if not folder.is_dir():
            raise InputError(f"{folder} is no folder: name a run, a folder of runs or a server's folder")
        entries = sorted(folder.iterdir())[:_FEW]
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"the folder {folder} cannot be read: {why}") from None
    if not entries or stamp_of(folder / CONFIG) is not None or has_deployment(folder):
        return folder
    own = {STUDIES, FAILURES} & {path.name for path in entries}
    if own or any(stamp_of(path / CONFIG) is not None for path in entries) or deployments_in(folder):
        return folder
    raise InputError(
        f"{folder} holds no runs, studies or deployment: name a run, a folder of runs or a server's folder"
    )
