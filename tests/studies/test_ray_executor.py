"""Studies on Ray: the same files as without it, workers that are lost, and what is refused before anything runs.

Most tests share one Ray of two cores, which this process starts and keeps: starting one takes seconds.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import fedstill
from fedstill.core import plugins
from fedstill.core.errors import InputError
from fedstill.core.own_parts import OwnParts
from fedstill.studies import Study
from fedstill.studies import executor as executors
from fedstill.studies.jobs import JobOutcome, Place
from fedstill.studies.ray_cluster import connected, difference, look_around
from fedstill.studies.status import RunStatus
from fedstill.studies.study_plan import Job
from fedstill.studies.study_progress import StudyProgress

Make = Callable[..., dict[str, Any]]
Write = Callable[..., str]
FEDSTILL = [sys.executable, "-m", "fedstill"]
STUDENTS = {
    "experiment": {"model": "cnn", "rounds": 2, "training": {"batch": 64}},
    "grid": {"objective": ["labels-only", "vanilla", "dkd"], "labels": ["use", "no-ce"]},
}


@pytest.fixture(scope="module")
def own_ray() -> Iterator[int]:
    with connected(None, 2) as size:
        yield size


@pytest.fixture(autouse=True)
def _no_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test has loaded, the workers of the next need not know."""
    monkeypatch.setattr(plugins, "_loaded", {})


def files(folder: Path) -> dict[str, bytes]:
    """Everything but times and locks; a student's configuration names its teacher's folder."""
    left_out = {"timing.json", ".lock", "checkpoint-previous.safetensors"}
    return {
        str(path.relative_to(folder)): path.read_bytes().replace(str(folder).encode(), b"OUT")
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in left_out
    }


def until(happened: Callable[[], Any], seconds: float = 120) -> Any:
    """What it gives once it gives something."""
    deadline = time.monotonic() + seconds
    while not (given := happened()):
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.02)
    return given


def rounds(out: Path) -> int:
    """How many rounds there are in the folders of unfinished runs."""
    journals = [path for path in out.glob("*/journal.jsonl") if not (path.parent / "result.json").exists()]
    return sum(path.read_bytes().count(b"\n") for path in journals)


class Shares:
    """An observer that writes down how far single jobs were heard to be."""

    def __init__(self) -> None:
        self.heard_of: list[float] = []

    def start(self, tally: StudyProgress) -> None: ...

    def settled(self, tally: StudyProgress, job: Job, outcome: JobOutcome) -> None: ...

    def heard(self, tally: StudyProgress) -> None:
        self.heard_of += tally.halfway.values()

    def waiting(self, tally: StudyProgress, number: int) -> None: ...


@pytest.mark.slow
def test_the_same_files_as_without_ray(
    own_ray: int, recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Teachers and students, in a folder whose name means something only where the study was started."""
    made = {**recipe({"method": ["fedavg", "scaffold"], "seed": [7]}), "students": STUDENTS}
    for name, executor in {"alone": "local", "shared": "ray"}.items():
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        results = fedstill.study(made, out="runs", executor=executor)
        assert len(results.runs) == 2
        assert results.students is not None
        assert results.students.failures == {}
    found, expected = files(tmp_path / "shared"), files(tmp_path / "alone")
    assert len(expected) > 20
    assert found.keys() == expected.keys()
    assert [name for name in found if found[name] != expected[name]] == []


@pytest.mark.slow
def test_a_killed_worker_is_replaced(
    own_ray: int, recipe: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its data set tells who loads it; that process is killed between two rounds, and another one goes on."""
    plugin, pids, out = tmp_path / "telling.py", tmp_path / "pids", tmp_path / "runs"
    plugin.write_text(
        "import os\n"
        "from fedstill.data.bundle import datasets\n"
        "@datasets.register('telling')\n"
        "def telling(source):\n"
        "    '''The digits.'''\n"
        f"    with open({str(pids)!r}, 'a') as file:\n"
        "        file.write(f'{os.getpid()}\\n')\n"
        "    return datasets['digits'](source)\n"
    )
    study = Study(recipe({"method": ["fedavg"]}, data="telling", rounds=60), plugins=[plugin])
    study.study_plan.check_data()  # loads it, here
    reached: list[int] = []

    def kill() -> None:
        reached.append(until(lambda: count if (count := rounds(out)) > 1 else 0))
        os.kill(int(pids.read_text().split()[-1]), signal.SIGKILL)

    killer = Thread(target=kill)
    killer.start()
    shares = Shares()
    results = study.run(out, workers=1, executor="ray", observers=[shares])
    killer.join()
    assert len(results.runs) == 1
    assert reached[0] < 60
    assert len({os.getpid(), *map(int, pids.read_text().split())}) == 3, "this process and two workers"
    study.run(tmp_path / "alone")
    assert files(out) == files(tmp_path / "alone")
    assert all(0 <= share <= 1 for share in shares.heard_of)
    assert any(0 < share < 1 for share in shares.heard_of), "heard of while it was at work"
    assert capsys.readouterr().out == "", "Ray has nothing to say where results are printed"


@pytest.mark.slow
def test_failures_are_recorded_and_the_rest_goes_on(
    own_ray: int, recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that raises is tried once; one that ends every process that loads its data, `ATTEMPTS` times."""
    monkeypatch.setattr(executors, "ATTEMPTS", 2)
    plugin = tmp_path / "fatal.py"
    plugin.write_text(
        "import os\n"
        "from fedstill.data.bundle import datasets\n"
        f"HOME = {os.getpid()}\n"
        "@datasets.register('fatal')\n"
        "def fatal(source):\n"
        "    '''Not for long.'''\n"
        "    if os.getpid() != HOME:\n"
        f"        open({str(tmp_path / 'deaths')!r}, 'a').write('x')\n"
        "        os._exit(9)\n"
        "    return datasets['digits'](source)\n"
    )
    cases = [
        {"label": "fatal", "data": "fatal", "clients": 2},
        {"label": "crowd", "data": "digits", "clients": 5000},
        {"label": "fine", "data": "digits", "clients": 2},
    ]
    results = Study(recipe({"case": cases}, method="fedavg"), plugins=[plugin]).run(tmp_path / "runs", executor="ray")
    assert results.failures == {
        ("fatal",): "its worker on Ray was lost (WorkerCrashedError), in each of 2 attempts",
        ("crowd",): "5,000 clients cannot share 1,438 samples: ask for at most 1,438",
    }
    assert list(results.runs) == [("fine",)]
    assert (tmp_path / "deaths").read_text() == "xx"
    assert len(list((tmp_path / "runs" / "failures").iterdir())) == 2


def test_a_plugin_that_a_worker_cannot_load_is_a_failure(own_ray: int, recipe: Make, tmp_path: Path) -> None:
    plugin = tmp_path / "homesick.py"
    plugin.write_text(f"import os\nassert os.getpid() == {os.getpid()}, 'not here'\n")
    results = Study(recipe({"method": ["fedavg"]}), plugins=[plugin]).run(tmp_path / "runs", executor="ray")
    ((_, error),) = results.failures.items()
    assert "homesick.py cannot be loaded: AssertionError: not here" in error


def test_a_ray_of_our_own_cannot_be_reached_from_outside(own_ray: int) -> None:
    """Ray runs whatever it is sent: only this machine may send it anything."""
    import ray

    assert own_ray == 2
    assert [node["NodeManagerAddress"] for node in ray.nodes()] == ["127.0.0.1"]


def test_another_address_beside_a_ray_in_use_is_refused(own_ray: int, recipe: Make, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as there, pytest.raises(InputError, match="uses a Ray already"):
        Study(recipe()).run(tmp_path, executor="ray", address=f"127.0.0.1:{there.getsockname()[1]}")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"executor": "rya"}, "unknown executor 'rya': did you mean 'ray'"),
        ({"address": "auto"}, "an address is that of a Ray cluster: add --executor ray"),
        ({"executor": "ray", "address": "nonsense"}, "'nonsense' is no address of a Ray cluster"),
        ({"executor": "ray", "address": "ray://head:10001"}, "start the study on one of its machines"),
        ({"executor": "ray", "address": "127.0.0.1:1"}, r"nobody answers at 127.0.0.1:1 \(.*refused"),
        ({"executor": "ray", "address": "127.0.0.1:99999"}, "nobody answers"),
        ({"executor": "ray", "workers": 0}, "at least one is needed"),
    ],
    ids=["unknown", "local", "nonsense", "client", "dead", "port", "nobody"],
)
def test_what_cannot_work_is_refused_before_anything_runs(
    recipe: Make, tmp_path: Path, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        Study(recipe()).run(tmp_path / "runs", **options)
    assert not (tmp_path / "runs").exists()


def test_only_the_cpu(recipe: Make) -> None:
    with pytest.raises(InputError, match="studies on Ray run on the cpu"):
        Study(recipe(), device="cuda").run(executor="ray")


def test_without_ray_the_extra_is_named(recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"needs the extra fedstill\[ray\]: pip install 'fedstill\[ray\]'"):
        Study(recipe()).run(tmp_path / "runs", executor="ray")
    assert not (tmp_path / "runs").exists()


def test_machines_that_differ_are_refused(tmp_path: Path) -> None:
    """This machine as it is, and as it would be with one thing different."""
    plugin, root = tmp_path / "mine.py", tmp_path / "data"
    plugin.write_text("")
    (root / "mnist").mkdir(parents=True)
    place = Place(str(tmp_path), str(root), own=OwnParts({str(plugin): "digest"}))
    (tmp_path / "token").touch()
    here = look_around(str(Path.cwd()), place, "token")
    assert here["data"] == ["mnist"]
    assert difference(here, dict(here), place) is None
    assert difference(here, {**here, "data": None}, place, named_root=False) is None
    told = {
        "versions": difference(here, {**here, "versions": "fedstill 0.0"}, place),
        "token": difference(here, look_around(str(Path.cwd()), place, "another token"), place),
        "data": difference(here, {**here, "data": []}, place),
        "plugins": difference(here, {**here, "plugins": {str(plugin): None}}, place),
    }
    assert told["versions"] == f"has fedstill 0.0, and this one {here['versions']}: install the same on all of them"
    assert told["token"] == f"does not see the folder {tmp_path}: choose an --out that all machines share"
    assert str(told["data"]).startswith(f"does not see the same in the data root {root}: ")
    assert str(told["plugins"]).startswith(f"does not have the same plugin {plugin}: ")


def descendants(process: int) -> set[int]:
    """Its children, theirs, and so on, as far as /proc tells."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found, new = set[int](), {process}
    while new:
        new = {child for child, parent in parents.items() if parent in new} - found
        found |= new
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads /proc")
def test_an_interrupted_study_leaves_nothing_running(recipe: Make, written: Write, tmp_path: Path) -> None:
    """Ctrl-C while two lessons are at work, in a process of its own with a Ray of its own."""
    file = written(recipe({"method": ["fedavg"], "seed": [1, 2]}, rounds=2000))
    out = tmp_path / "runs"
    command = [*FEDSTILL, "study", file, "--out", str(out), "--executor", "ray", "--workers", "2", "--quiet"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(lambda: rounds(out) > 1 or process.poll() is not None)
    started = descendants(process.pid)
    assert len(started) > 3, process.communicate()
    folders = {word for child in started for word in _words(child) if "/fedstill-" in word}
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said == "fedstill: interrupted: run the same command again to go on\n"
    until(lambda: not any(Path(f"/proc/{child}").exists() for child in started), seconds=10)
    assert folders
    assert not any(Path(folder.split("=")[-1]).exists() for folder in folders)
    assert not any(RunStatus(out).busy(job) for job in Study(file).study_plan.jobs)


def _words(process: int) -> list[str]:
    try:
        return Path(f"/proc/{process}/cmdline").read_text().split("\0")
    except OSError:
        return []


def _says(log: Path, words: bytes) -> bool:
    return words in log.read_bytes()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Two nodes with a core each, started as on two machines: the address, and the second one's process."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folder = tempfile.mkdtemp(prefix="fedstill-ray-", dir="/tmp")  # sockets lie in it: a longer path would be too long
    head = ["--head", f"--port={port}", f"--temp-dir={folder}", "--include-dashboard=false"]
    ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--num-cpus=1", "--object-store-memory=80000000"]
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    nodes: list[subprocess.Popen[bytes]] = []
    try:
        for name, options in {"first": head, "second": [f"--address=127.0.0.1:{port}"]}.items():
            said = tmp_path / f"{name}.log"
            with said.open("wb") as log:
                nodes.append(subprocess.Popen([*ray, *options, "--block"], env=environment, stdout=log, stderr=log))
            until(partial(_says, said, b"block forever"))
        yield f"127.0.0.1:{port}", nodes[1]
    finally:
        for node in reversed(nodes):
            node.terminate()
            node.wait(timeout=60)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="a node's processes end with it on Linux only")
def test_a_lost_machine_costs_nothing_but_time(
    cluster: tuple[str, subprocess.Popen[bytes]], recipe: Make, written: Write, tmp_path: Path
) -> None:
    """One of two nodes is killed while both are at work."""
    address, second = cluster
    file, out = written(recipe({"method": ["fedavg"], "seed": [1, 2, 3]}, rounds=80)), tmp_path / "runs"
    command = [*FEDSTILL, "study", file, "--out", str(out), "--executor", "ray", "--address", address, "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(lambda: len(list(out.glob("*/journal.jsonl"))) == 2 or process.poll() is not None)
    assert rounds(out) < 160
    second.kill()
    printed, said = process.communicate(timeout=240)
    assert process.returncode == 0, said
    assert len(json.loads(printed)["runs"]) == 3
    Study(file).run(tmp_path / "alone")
    assert files(out) == files(tmp_path / "alone")
