"""A deployment on loopback: the server in the test's own process, sites in processes of their own."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from fedstill.deploy.deployment_folder import make_deployment, open_server, open_site
from fedstill.deploy.rehearsal import LocalDeployment
from fedstill.deploy.server import serve
from fedstill.deploy.server_options import ServerOptions
from fedstill.deploy.shard_files import write_shards
from fedstill.engines import InProcess
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.plan import make_plan
from fedstill.runtime.run import execute
from fedstill.runtime.run_folder import RunFolder

TINY: dict[str, Any] = {
    "data": "digits",
    "model": "cnn-bn",
    "rounds": 2,
    "seed": 5,
    "partition": "dirichlet",
    "evaluation": "on-site",
    "training": {"epochs": 1, "batch": 64},
}


class Notes:
    """A watcher, and an observer, that remembers."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.manifests: list[Any] = []
        self.records: list[Any] = []
        self.folders: list[Path] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def warn(self, text: str) -> None:
        self.notes.append(text)

    def waiting(self, for_sites: Any) -> None: ...

    def manifest(self, manifest: Any, experiment: str) -> None:
        self.manifests.append(manifest)

    def answered(self, exchange: str, round: int, rounds: int, outcome: Any) -> None: ...

    def received(self, folder: Path) -> None:
        self.folders.append(folder)

    def start(self, experiment: Any, journal: Any) -> None: ...

    def round(self, record: Any) -> None:
        self.records.append(record)

    def finish(self) -> None: ...

    @property
    def text(self) -> str:
        return "\n".join(self.notes)


@dataclass
class Stage:
    """Everything that one test's deployment needs."""

    path: Path
    sites: int
    company: LocalDeployment
    port: int
    notes: Notes = field(default_factory=Notes)
    error: BaseException | None = None
    done: RunFolder | None = None

    @property
    def folder(self) -> Path:
        return self.path / "deployment"

    def shard(self, site: int) -> Path:
        return self.path / "data" / f"site-{site}" / "shard.npz"

    def plan(self, **changes: Any) -> Any:
        return make_plan(make_experiment({**TINY, "method": "fedavg", "clients": self.sites, **changes}))

    def alone(self, **changes: Any) -> RunFolder:
        """The same experiment in this process, where all the data is."""
        with InProcess() as engine:
            return execute(self.plan(**changes), engine, self.path / "alone")

    def start_site(self, site: int, *more: str) -> None:
        where = ["--site", str(site), "--server", f"127.0.0.1:{self.port}", "--data", f"npz:{self.shard(site)}"]
        self.company.start(f"site-{site}", ["site", str(self.folder), *where, *more])

    def log(self, site: int) -> str:
        return (self.company.logs / f"site-{site}.log").read_text()

    def serve(
        self, terms: dict[str, Any] | None = None, observers: Any = (), track: Any = None, **changes: Any
    ) -> RunFolder:
        """Be the server; what it may know is the experiment, not the data."""
        experiment = make_experiment({**TINY, "method": "fedavg", "data": "not-here", **changes})
        settings = ServerOptions(host="127.0.0.1", port=self.port, **(terms or {}))
        watching = [self.notes, *observers]
        return serve(open_server(self.folder), experiment, self.path / "runs", self.notes, settings, watching, track)

    def serve_in_background(self, terms: dict[str, Any] | None = None, **changes: Any) -> Thread:
        def work() -> None:
            try:
                self.done = self.serve(terms, **changes)
            except BaseException as error:
                self.error = error

        thread = Thread(target=work, daemon=True)
        thread.start()
        return thread

    def site_folder(self, site: int) -> Any:
        return open_site(self.folder, site)


def make_stage(path: Path, sites: int, company: LocalDeployment) -> Stage:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    stage = Stage(path, sites, company, port)
    make_deployment(stage.folder, sites, "127.0.0.1", port)
    for number, file in enumerate(write_shards(stage.plan(), path / "cut")):
        stage.shard(number).parent.mkdir(parents=True)
        file.rename(stage.shard(number))
    return stage


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Any]:
    """A stage with as many sites as a test asks for."""
    with LocalDeployment(tmp_path / "logs", {"FEDSTILL_DATA": str(tmp_path / "nothing")}) as company:
        yield lambda sites: make_stage(tmp_path, sites, company)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Three sites that wait for one server after another."""
    path = tmp_path_factory.mktemp("running")
    with LocalDeployment(path / "logs", {"FEDSTILL_DATA": str(path / "nothing")}) as company:
        made = make_stage(path, 3, company)
        for site in range(3):
            policy = made.folder / f"site-{site}" / "policy.yaml"
            kinds = ("parameters", "statistics", "metrics", "logits", "features", "labels")
            policy.write_text("allow:\n" + "".join(f"  {kind}: [server, peers]\n" for kind in kinds))
            made.start_site(site, "--proxy", "digits")
        yield made
