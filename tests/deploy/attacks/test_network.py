"""A deployment on hosts of its own: network namespaces with real addresses, delay, loss and a partition that heals.

They need root and the commands `ip` and, for delay and loss, `tc` with netem. Elsewhere everything is on loopback, and
the site is stopped and continued instead of being cut off.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedstill.core import hardware
from fedstill.deploy.deployment_folder import make_deployment
from fedstill.deploy.shard_files import write_shards
from fedstill.engines import InProcess
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.plan import make_plan
from fedstill.runtime.run import execute
from fedstill.runtime.run_folder import RunFolder

from ..conftest import TINY

pytestmark = pytest.mark.slow

SITES = 2
RUN = {**TINY, "method": "scaffold", "model": "mlp", "rounds": 4, "clients": SITES}
_CODE = "import sys; from fedstill.cli import main; sys.argv[0] = 'fedstill'; main()"


class Network:
    """The server's host is 0, the sites' hosts follow; without namespaces all are this one."""

    def __init__(self, separate: bool) -> None:
        self.separate, self.name = separate, f"fd{os.getpid()}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def address(self, host: int) -> str:
        return f"10.99.0.{host + 1}" if self.separate else "127.0.0.1"

    def make(self) -> None:
        commands = [
            f"netns add {self.name}",
            f"-n {self.name} link add br0 type bridge",
            f"-n {self.name} link set br0 up",
        ]
        for host in range(1 + SITES):
            own = f"{self.name}-{host}"
            commands += [
                f"netns add {own}",
                f"link add eth0 netns {own} type veth peer name port{host} netns {self.name}",
                f"-n {self.name} link set port{host} master br0",
                f"-n {self.name} link set port{host} up",
                f"-n {own} addr add {self.address(host)}/24 dev eth0",
                f"-n {own} link set eth0 up",
                f"-n {own} link set lo up",
            ]
        for command in commands:
            _ip(*command.split())
        for host in range(1 + SITES):  # not every kernel can
            tc = ["tc", "-n", f"{self.name}-{host}", "qdisc", "add", "dev", "eth0", "root", "netem"]
            subprocess.run([*tc, "delay", "10ms", "5ms", "loss", "1%"], capture_output=True, check=False)

    def start(self, name: str, host: int, words: Sequence[str], log: Path) -> None:
        inside = ["ip", "netns", "exec", f"{self.name}-{host}"] if self.separate else []
        command = [*inside, sys.executable, "-c", _CODE, "deploy", *words]
        with open(log / f"{name}.log", "wb") as output:
            self.processes[name] = subprocess.Popen(
                command, stdout=output, stderr=output, env=hardware.child_environment(), start_new_session=True
            )

    def part(self, host: int) -> None:
        if self.separate:
            _ip("-n", self.name, "link", "set", f"port{host}", "down")
        else:
            os.kill(self.processes[f"site-{host - 1}"].pid, signal.SIGSTOP)

    def heal(self, host: int) -> None:
        if self.separate:
            _ip("-n", self.name, "link", "set", f"port{host}", "up")
        else:
            os.kill(self.processes[f"site-{host - 1}"].pid, signal.SIGCONT)

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
        if self.separate:
            for name in (self.name, *(f"{self.name}-{host}" for host in range(1 + SITES))):
                subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], capture_output=True, check=True)


def _may_separate() -> bool:
    if not hasattr(os, "geteuid") or os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"fd{os.getpid()}-try"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode == 0
    return made and subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False).returncode == 0


@contextmanager
def network() -> Iterator[Network]:
    made = Network(_may_separate())
    try:
        if made.separate:
            made.make()
        yield made
    finally:
        made.end()


def test_a_partition_that_heals_harms_nobody_else(tmp_path: Path) -> None:
    plan = make_plan(make_experiment(RUN))
    shards = write_shards(plan, tmp_path / "data")
    with network() as hosts:
        folder, port = tmp_path / "d", 19_000 + os.getpid() % 10_000
        make_deployment(folder, SITES, hosts.address(0), port)
        settings = ["training.epochs=1", "training.batch=64", "data=not-here"]
        words = ["server", str(folder), "scaffold", "--model", "mlp", "--rounds", "4", "--seed", "5", "--json"]
        words += [text for one in settings for text in ("--set", one)]
        hosts.start("server", 0, [*words, "--out", str(tmp_path / "runs"), "--host", hosts.address(0)], tmp_path)
        for site, shard in enumerate(shards):
            hosts.start(
                f"site-{site}", 1 + site, ["site", str(folder), "--site", str(site), "--data", f"npz:{shard}"], tmp_path
            )
        status, until = folder / "server" / "status.json", time.monotonic() + 240
        while not status.exists() or json.loads(status.read_text())["round"] < 1:
            assert time.monotonic() < until, (tmp_path / "server.log").read_text()
            assert hosts.processes["server"].poll() is None, (tmp_path / "server.log").read_text()
            time.sleep(0.05)
        hosts.part(2)
        time.sleep(3)
        hosts.heal(2)
        assert hosts.processes["server"].wait(timeout=240) == 0, (tmp_path / "server.log").read_text()
    (path,) = (tmp_path / "runs").iterdir()
    journal = RunFolder(path).journal()
    assert [record.round for record in journal] == [1, 2, 3, 4]
    assert {failure.client for record in journal for failure in record.failures} <= {1}, (
        "only the site that was cut off"
    )
    with InProcess() as engine:
        alone = execute(plan, engine, tmp_path / "alone")
    undisturbed = journal == alone.journal()
    assert undisturbed == (not any(record.failures for record in journal))
    result = RunFolder(path).result()
    assert result is not None
    assert (result.sha256 == alone.result().sha256) == undisturbed  # type: ignore[union-attr]
