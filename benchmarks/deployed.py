"""A deployment on loopback to be measured: the server in this process, each site in a process of its own."""

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

_POLL = "pull-messages"  # repeated while a site has nothing to do


@dataclass
class Deployment:
    """Certificates, keys and shards, made before any clock runs; `run` starts the sites and acts as the server."""

    folder: Path
    plan: Simulation
    proxy: Proxy | None = None  # between sites and server, during a run
    sites: LocalDeployment | None = None  # during a run
    spent: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.port = _free_port()
        self.shards = write_shards(self.plan, self.folder / "shards")
        make_deployment(self.folder / "keys", len(self.shards), "127.0.0.1", self.port)

    def run(self, experiment: Experiment, observers: Sequence[Observer], counted: bool) -> Run:
        """Only the server has the experiment, and only the sites have the location of the data."""
        server = open_server(self.folder / "keys")
        with (
            LocalDeployment(self.folder / "logs", {"FEDSTILL_DATA": str(self.folder / "none")}) as self.sites,
            Proxy(self.port) as proxy,
            self._watched(),
        ):
            self.proxy = proxy if counted else None
            port = proxy.port if counted else self.port
            for site, shard in enumerate(self.shards):
                where = ["--site", str(site), "--server", f"127.0.0.1:{port}", "--data", f"npz:{shard}"]
                self.sites.start(f"site-{site}", ["site", str(self.folder / "keys"), *where])
            options = ServerOptions(host="127.0.0.1", port=self.port)
            return Run(serve(server, experiment, self.folder / "runs", self, options, observers).path)

    def note(self, text: str) -> None:
        """Stop if a site was refused: the server would wait for it without end."""
        if "cannot take part" in text:
            raise JobError(text)

    def waiting(self, for_sites: Sequence[int]) -> None:
        assert self.sites is not None
        for name, process in self.sites.processes.items():
            if process.poll() is not None:
                raise JobError(f"{name} ended early: {self.sites.last_words(name)}")

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Count requests by kind, and time the verification of signatures."""
        guard, verify = RequestGuard.__call__, node_auth.authenticate_node

        async def counting(self_: RequestGuard, scope: Any, receive: Any, send: Any) -> None:
            self.spent["polls" if scope["path"].endswith(_POLL) else "requests"] += 1
            await guard(self_, scope, receive, send)

        def timed(request: Any) -> None:
            began = thread_time()
            verify(request)
            self.spent["verifying"] += thread_time() - began  # type: ignore[assignment]

        with patch.object(RequestGuard, "__call__", counting), patch.object(node_auth, "authenticate_node", timed):
            yield

    def read(self) -> Mapping[str, float]:
        """Counters that grow during rounds."""
        wire = {} if self.proxy is None else {"up": self.proxy.up, "down": self.proxy.down}
        return {**self.spent, **wire, "server": process_time(), "sites": sum(map(_cpu, self._site_processes()))}

    @contextmanager
    def halted(self) -> Iterator[None]:
        """Suspend the sites, so that their polling does not slow down the comparison round."""
        for site in self._site_processes():
            os.kill(site, signal.SIGSTOP)
        try:
            yield
        finally:
            for site in self._site_processes():
                os.kill(site, signal.SIGCONT)

    def _site_processes(self) -> list[int]:
        return [] if self.sites is None else [process.pid for process in self.sites.processes.values()]

    def signature(self, times: int = 50) -> float:
        """Seconds for one signature on this machine."""
        key, _ = open_site(self.folder / "keys", 0).keys()
        began = perf_counter()
        for number in range(times):
            sign_message(key, b"2030-01-01T00:00:00.%06d" % number)
        return (perf_counter() - began) / times


def _cpu(process: int) -> float:
    """CPU seconds of a process; 0 where the system does not report them."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
