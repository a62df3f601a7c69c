"""A deployment on loopback to be measured: the server in this process, every site in one of its own."""

from __future__ import annotations

import os
import signal
import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter, process_time, thread_time
from typing import Any
from unittest.mock import patch

from flwr.supercore.primitives.asymmetric import sign_message
from flwr.superlink.routers.fleet import node_auth

from benchmarks.processes import JobError
from benchmarks.proxy import Proxy
from fedstill.deploy.deployment_folder import make_deployment, open_server, open_site
from fedstill.deploy.rehearsal import LocalDeployment
from fedstill.deploy.request_guard import RequestGuard
from fedstill.deploy.server import serve
from fedstill.deploy.server_options import ServerOptions
from fedstill.deploy.shard_files import write_shards
from fedstill.runtime.experiment import Experiment
from fedstill.runtime.observers import Observer
from fedstill.runtime.plan import Simulation
from fedstill.runtime.result import Run

_LOOKS = "pull-messages"  # asked again and again while there is nothing to do


@dataclass
class Deployment:
    """Certificates, keys and shards are made here, before any clock runs; `play` starts the sites and is the server."""

    folder: Path
    plan: Simulation
    proxy: Proxy | None = None  # between sites and server, while it plays
    company: LocalDeployment | None = None  # the sites, while it plays
    spent: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.port = _free_port()
        self.shards = write_shards(self.plan, self.folder / "shards")
        make_deployment(self.folder / "keys", len(self.shards), "127.0.0.1", self.port)

    def play(self, experiment: Experiment, observers: Sequence[Observer], counted: bool) -> Run:
        """The server knows the experiment; where the data is, only the sites know."""
        server = open_server(self.folder / "keys")
        with (
            LocalDeployment(self.folder / "logs", {"FEDSTILL_DATA": str(self.folder / "none")}) as self.company,
            Proxy(self.port) as proxy,
            self._watched(),
        ):
            self.proxy = proxy if counted else None
            called = proxy.port if counted else self.port
            for site, shard in enumerate(self.shards):
                where = ["--site", str(site), "--server", f"127.0.0.1:{called}", "--data", f"npz:{shard}"]
                self.company.start(f"site-{site}", ["site", str(self.folder / "keys"), *where])
            terms = ServerOptions(host="127.0.0.1", port=self.port)
            return Run(serve(server, experiment, self.folder / "runs", self, terms, observers).path)

    def note(self, text: str) -> None:
        """A site that was refused would be waited for without end, as would one that has ended."""
        if "cannot take part" in text:
            raise JobError(text)

    def waiting(self, for_sites: Sequence[int]) -> None:
        assert self.company is not None
        for name, process in self.company.processes.items():
            if process.poll() is not None:
                raise JobError(f"{name} ended early: {self.company.last_words(name)}")

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Requests are counted by what they ask for, and verifying who asked is timed."""
        door, verify = RequestGuard.__call__, node_auth.authenticate_node

        async def counting(self_: RequestGuard, scope: Any, receive: Any, send: Any) -> None:
            self.spent["looks" if scope["path"].endswith(_LOOKS) else "requests"] += 1
            await door(self_, scope, receive, send)

        def timed(request: Any) -> None:
            began = thread_time()
            verify(request)
            self.spent["verifying"] += thread_time() - began  # type: ignore[assignment]

        with patch.object(RequestGuard, "__call__", counting), patch.object(node_auth, "authenticate_node", timed):
            yield

    def read(self) -> Mapping[str, float]:
        """All that grows while rounds are played."""
        wire = {} if self.proxy is None else {"up": self.proxy.up, "down": self.proxy.down}
        return {**self.spent, **wire, "server": process_time(), "sites": sum(map(_cpu, self._sites()))}

    @contextmanager
    def halted(self) -> Iterator[None]:
        """Sites stand still, so that their looking for messages does not slow what is measured beside them."""
        for site in self._sites():
            os.kill(site, signal.SIGSTOP)
        try:
            yield
        finally:
            for site in self._sites():
                os.kill(site, signal.SIGCONT)

    def _sites(self) -> list[int]:
        return [] if self.company is None else [process.pid for process in self.company.processes.values()]

    def signature(self, times: int = 50) -> float:
        """Seconds that one signature takes here."""
        key, _ = open_site(self.folder / "keys", 0).keys()
        began = perf_counter()
        for number in range(times):
            sign_message(key, b"2030-01-01T00:00:00.%06d" % number)
        return (perf_counter() - began) / times


def _cpu(process: int) -> float:
    """Seconds that a process has worked; where the system does not tell, none."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
