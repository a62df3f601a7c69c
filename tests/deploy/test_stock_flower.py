"""A stock Flower app: its files, and a run with Flower's own SuperLink and SuperNodes that gives the same bits."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any, cast

import pytest

from fedstill.core.errors import InputError, RunError
from fedstill.core.message import Message
from fedstill.deploy import stock_flower
from fedstill.deploy.create import make_deployment
from fedstill.deploy.flower_project import PACKAGE, write_flower_app
from fedstill.deploy.shard_files import write_shards
from fedstill.deploy.stock_flower import StockLines, federation_app, site_app
from fedstill.engines import InProcess
from fedstill.engines.flower.correspondence import Answer, Letter
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.plan import make_plan
from fedstill.runtime.result import Run
from fedstill.runtime.run import execute

SMALL: dict[str, Any] = {
    "method": "scaffold",
    "model": "mlp",
    "rounds": 2,
    "clients": 3,
    "evaluation": "on-site",
    "training": {"epochs": 1},
    "secure": True,
}


SECURE_STEPS = (": keys", ": shares", ": survivors", ": unmask")


def test_the_files_of_an_app(tmp_path: Path) -> None:
    folder = tmp_path / "app"
    written = write_flower_app(folder, make_experiment(SMALL), 3, 'clinics "north"')
    assert sorted(path.name for path in written) == sorted(path.name for path in folder.rglob("*.*"))
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    flwr = project["tool"]["flwr"]["app"]
    assert flwr["components"] == {"serverapp": f"{PACKAGE}.server:app", "clientapp": f"{PACKAGE}.client:app"}
    assert (flwr["config"]["sites"], flwr["config"]["name"]) == (3, 'clinics "north"')
    given = json.loads((folder / PACKAGE / "experiment.json").read_text())
    again = make_experiment(given)
    assert (again.method.name, again.rounds, again.clients, again.partition.name) == ("scaffold", 2, 3, "sites")
    assert again.secure is not None
    for name in ("client", "server"):
        compile((folder / PACKAGE / f"{name}.py").read_text(), name, "exec")
    with pytest.raises(InputError, match="is there already"):
        write_flower_app(folder, make_experiment(SMALL), 3, "clinics")


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"secure": "fixed-point"}, "is for simulations"),
        ({"method": "centralised", "secure": False}, "needs all data in one place"),
        ({"attack": "sign-flip", "secure": False}, "attacks are simulated"),
    ],
)
def test_what_only_simulations_can_is_refused(settings: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=why):
        write_flower_app(tmp_path / "app", make_experiment({**SMALL, **settings}), 3, "clinics")
    assert not (tmp_path / "app").exists()


def test_a_supernode_without_folder_and_data_is_told_how(tmp_path: Path) -> None:
    for config in ({}, {"folder": ""}, {"folder": 3}):
        with pytest.raises(InputError, match="--node-config"):
            stock_flower._configured(config, "folder")
    assert stock_flower._configured({"folder": "site-0"}, "folder") == "site-0"
    assert site_app() is not None
    assert federation_app(tmp_path / "experiment.json") is not None


class Nodes:
    """A grid of these nodes, and which site each says that it is."""

    def __init__(self, sites: dict[int, Any]) -> None:
        self.sites = sites

    def get_node_ids(self) -> list[int]:
        return list(self.sites)

    def asked(self, lines: Any, letters: list[Letter], *rest: Any) -> list[Answer]:
        return [Answer(one, Message({}), {"site": self.sites[one.node]}) for one in letters]


def test_nodes_are_asked_which_site_they_are(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def found(sites: dict[int, Any], count: int) -> dict[int, int]:
        nodes = Nodes(sites)
        monkeypatch.setattr(stock_flower, "corresponded", nodes.asked)
        lines = StockLines(cast(Any, nodes))
        lines.find(count, 0.0, stock_flower._Log())
        return lines.nodes

    assert found({70: 1, 80: 0, 90: 2}, 3) == {0: 80, 1: 70, 2: 90}
    assert found({70: 1, 80: 0, 90: 7, 91: "x"}, 2) == {0: 80, 1: 70}
    assert "node 90 is no site of this app: site 7" in capsys.readouterr().out
    with pytest.raises(RunError, match="two nodes are site 1"):
        found({70: 1, 80: 1}, 2)
    with pytest.raises(RunError, match="no node is site 0"):
        found({70: 1}, 2)


@pytest.mark.slow
def test_a_run_with_stock_flower_gives_the_bits_of_a_simulation(tmp_path: Path) -> None:
    """Each message meets a new process, which finds the client's state in its site's folder.

    Run again, the finished run is found.
    """
    experiment = make_experiment({**SMALL, "data": "digits[:20%]", "clients": 2, "secure": False})
    plan = make_plan(experiment)
    shards = write_shards(plan, tmp_path / "data")
    make_deployment(tmp_path / "clinics", 2)
    write_flower_app(tmp_path / "app", experiment, 2, "clinics")
    with federation(tmp_path, shards) as run_app:
        first = run_app()
        again = run_app()
    (made,) = (path for path in (tmp_path / "runs").iterdir() if path.name.startswith("scaffold"))
    alone = execute(plan, InProcess(), tmp_path / "alone")
    assert Run(made).sha256 == Run(alone.path).sha256
    assert Run(made).sha256 in first
    assert Run(made).sha256 in again
    for site in range(2):
        lines = (tmp_path / "clinics" / f"site-{site}" / "egress.jsonl").read_text().splitlines()
        sent = [json.loads(line) for line in lines if '"what": "sent"' in line]
        assert [one["round"] for one in sent if one["exchange"] == "train"] == [1, 2]


@pytest.mark.slow
def test_secure_aggregation_with_stock_flower_gives_the_bits_of_a_simulation(tmp_path: Path) -> None:
    """Ten steps, each of which meets new processes: secrets, notes and answers are in the sites' folders."""
    changes = {"method": "fedavg", "data": "digits[:20%]", "evaluate_every": 2}
    experiment = make_experiment({**SMALL, **changes})
    plan = make_plan(experiment)
    shards = write_shards(plan, tmp_path / "data")
    make_deployment(tmp_path / "clinics", 3)
    write_flower_app(tmp_path / "app", experiment, 3, "clinics")
    for site in range(3):
        policy = tmp_path / "clinics" / f"site-{site}" / "policy.yaml"
        policy.write_text(policy.read_text().replace("secure_aggregation: false", "secure_aggregation: true"))
    with federation(tmp_path, shards) as run_app:
        told = run_app()
    (made,) = (path for path in (tmp_path / "runs").iterdir() if path.name.startswith("fedavg"))
    alone = execute(plan, InProcess(), tmp_path / "alone")
    assert Run(made).sha256 == Run(alone.path).sha256
    assert Run(made).sha256 in told
    for site in range(3):
        folder = tmp_path / "clinics" / f"site-{site}"
        lines = [json.loads(line) for line in (folder / "egress.jsonl").read_text().splitlines()]
        sent = {one["exchange"]: one["tensors"] for one in lines if one["what"] == "sent" and "run" in one}
        steps = {f"{what}{step}" for what in ("train", "evaluate") for step in ("", *SECURE_STEPS)}
        assert sent.keys() >= steps
        for what in ("train", "evaluate"):
            assert all(one.get("masked") or one["kind"] == "metrics" for one in sent[what])
        assert not any((folder / "secrets").iterdir())


@contextmanager
def federation(folder: Path, shards: list[Path]) -> Iterator[Any]:
    """Flower's own programs on loopback; what is given runs the app and gives what it printed."""
    ports = free_ports(len(shards) + 1)
    bin = Path(sys.executable).parent
    home = folder / "flwr"
    home.mkdir()
    (home / "config.toml").write_text(f'[superlink.here]\naddress = "127.0.0.1:{ports[0]}"\ninsecure = true\n')
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "OMP_NUM_THREADS": "1"}
    quiet |= {"FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05"}
    path = f"{bin}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, **quiet, "FLWR_HOME": str(home), "PATH": path}
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: str) -> None:
        with (folder / f"{name}.log").open("wb") as log:
            program = [str(bin / arguments[0]), *arguments[1:]]
            started.append(subprocess.Popen(program, stdout=log, stderr=log, env=env, start_new_session=True))

    try:
        start("superlink", "flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(ports[0]))
        wait_for(ports[0])
        for site, shard in enumerate(shards):
            config = f'folder="{folder / "clinics" / f"site-{site}"}" data="npz:{shard}"'
            own = ["--host", "127.0.0.1", "--port", str(ports[site + 1]), "--node-config", config]
            start(f"site-{site}", "flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{ports[0]}", *own)

        def run_app() -> str:
            out = f'out="{folder / "runs"}" patience=300.0'
            program = [str(bin / "flwr"), "run", str(folder / "app"), "here", "--stream", "--run-config", out]
            done = subprocess.run(program, env=env, capture_output=True, text=True, timeout=1800, check=False)
            told = done.stdout + done.stderr
            assert done.returncode == 0, told
            print(told)
            return told

        yield run_app
    finally:
        for process in reversed(started):
            os.killpg(process.pid, 15)
        for process in started:
            process.wait(30)


def free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def wait_for(port: int, seconds: float = 120) -> None:
    until = monotonic() + seconds
    while monotonic() < until:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        sleep(0.2)
    raise TimeoutError(f"nothing listens on port {port}")
