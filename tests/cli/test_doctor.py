"""`fedstill doctor`: every topic with nothing wrong, with what is wrong most often, and as a user meets it."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedstill._version import __version__
from fedstill.cli import doctor
from fedstill.cli.doctor import (
    EXTRAS,
    NONE_LEFT,
    SCARCE,
    Check,
    check_up,
    free_bytes,
    look_at_data,
    look_at_disk,
    look_at_extras,
    look_at_kernels,
    look_at_plugins,
    look_at_threads,
    look_at_versions,
    needed,
    obstacle,
    standing,
)
from fedstill.core.errors import InputError
from fedstill.core.hardware import usable_cores
from fedstill.data.readers.cache import VARIABLE as CACHE
from fedstill.data.readers.cache import cache_folder
from fedstill.data.roots import RECORDS
from fedstill.data.roots import VARIABLE as DATA
from fedstill.models.kernels import plain

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
Patch = pytest.MonkeyPatch
Call = Callable[..., tuple[int, str, str]]


def states(findings: Iterable[Check]) -> list[str]:
    return [one.state for one in findings]


def only(findings: Iterable[Check]) -> Check:
    (one,) = findings
    return one


def nothing_is_installed(name: str) -> str:
    raise PackageNotFoundError(name)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A path below which nothing can be made, by any user: for an administrator no folder is closed."""
    path = tmp_path / "file"
    path.touch()
    return path


@pytest.fixture
def quick_kernels(monkeypatch: Patch) -> None:
    """So small that nobody waits; how fast they are then means nothing."""
    for name, small in (("CLOUDS", 1), ("POINTS", 64), ("SAMPLES", 8), ("TIMES", 1)):
        monkeypatch.setattr(doctor, name, small)


@pytest.mark.usefixtures("quick_kernels")
def test_every_topic_has_something_to_say_and_every_fault_its_advice(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    monkeypatch.setattr(doctor, "EXPECTED", 0.0)
    found = check_up(tmp_path / "runs", tmp_path)
    topics = dict.fromkeys(one.topic for one in found)
    assert list(topics) == ["versions", "threads", "kernels", "data", "disk", "extras"]
    assert all(one.advice for one in found if one.state != "ok")
    assert not any(one.advice for one in found if one.state == "ok")
    assert list(tmp_path.iterdir()) == []  # a check-up leaves nothing behind


def test_versions_name_what_bits_depend_on() -> None:
    first = next(look_at_versions())
    assert first.state == "ok"
    assert f"fedstill {__version__}, behaviour" in first.says
    assert f"torch {torch.__version__}" in first.says


def test_a_version_out_of_range_and_a_package_that_is_missing(monkeypatch: Patch) -> None:
    listed = ["torch<2,>=1.0", "nowhere-to-be-found>=2", "numpy>=1.26", 'ray>=2.30; extra == "ray"']
    monkeypatch.setattr(doctor, "requires", lambda name: listed)
    assert [one.name for one in needed()] == ["torch", "nowhere-to-be-found", "numpy"]
    _, other, missing = look_at_versions()
    assert (other.state, other.advice) == ("problem", "pip install 'torch<2,>=1.0'")
    assert f"torch is {torch.__version__}, and fedstill needs <2,>=1.0" in other.says
    assert (missing.state, missing.says) == ("problem", "nowhere-to-be-found is missing")


@pytest.mark.parametrize("found", ["2.13.0", "2.13.0+cpu", "2.13.0+cu126", "2.14.0.dev20260101"])
def test_any_build_within_the_range_will_do(monkeypatch: Patch, found: str) -> None:
    monkeypatch.setattr(doctor, "requires", lambda name: ["torch>=2.6"])
    monkeypatch.setattr(doctor, "version", lambda name: found)
    assert states(look_at_versions()) == ["ok"]


def test_without_being_installed_nothing_is_known_to_be_needed(monkeypatch: Patch) -> None:
    monkeypatch.setattr(doctor, "requires", nothing_is_installed)
    assert list(needed()) == []


def test_a_plugin_that_does_not_load(monkeypatch: Patch) -> None:
    assert list(look_at_plugins()) == []

    def broken() -> None:
        raise InputError("the plugin `mine` cannot be loaded: no module")

    monkeypatch.setattr(doctor, "load_entry_points", broken)
    found = only(look_at_plugins())
    assert (found.state, found.says) == ("problem", "the plugin `mine` cannot be loaded: no module")
    assert "uninstall" in found.advice


@pytest.mark.parametrize(
    ("named", "state", "says"),
    [
        ("", "ok", "OMP_NUM_THREADS is not set"),
        ("1", "ok", "OMP_NUM_THREADS=1"),
        ("99999", "look", "OMP_NUM_THREADS is 99999 on"),
        ("many", "look", "'many', which is no number of threads"),
        ("0", "look", "'0', which is no number of threads"),
    ],
)
def test_threads(named: str, state: str, says: str, monkeypatch: Patch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", named)
    found = only(look_at_threads())
    assert found.state == state
    assert says in found.says
    assert ("OMP_NUM_THREADS=1" in found.advice) == (state == "look")


def test_more_threads_of_torch_than_cores(monkeypatch: Patch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: usable_cores() + 1)
    found = only(look_at_threads())
    assert found.state == "look"
    assert f"torch uses {usable_cores() + 1} threads" in found.says


@pytest.mark.usefixtures("quick_kernels")
def test_kernels_that_are_right_and_slow(monkeypatch: Patch) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setattr(doctor, "EXPECTED", 1e9)
    cache, speed = look_at_kernels()
    assert "numba cache in" in cache.says
    assert speed.state == "look"
    assert "NUMBA_DISABLE_JIT" in speed.advice


@pytest.mark.usefixtures("quick_kernels")
def test_kernels_that_choose_other_points_are_broken(monkeypatch: Patch) -> None:
    right = plain.farthest_points
    monkeypatch.setattr(plain, "farthest_points", lambda cloud, samples: right(cloud, samples) + 1)
    found = list(look_at_kernels())[-1]
    assert found.state == "problem"
    assert "different points" in found.says


@pytest.mark.usefixtures("quick_kernels")
def test_a_kernel_cache_that_cannot_be_written(file: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(file))
    named = next(look_at_kernels())
    assert named.state == "problem"
    assert f"NUMBA_CACHE_DIR is {file}, which cannot be written" in named.says
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    kernel: Any = SimpleNamespace(stats=SimpleNamespace(cache_path=str(file / "cache")))
    own = doctor._kernel_cache(kernel, Path(doctor.__file__))
    assert own.state == "problem"
    assert "every process compiles all kernels anew" in own.says


def test_kernels_that_cannot_be_loaded(monkeypatch: Patch) -> None:
    monkeypatch.setitem(sys.modules, "fedstill.models.kernels.compiled", None)
    monkeypatch.delattr("fedstill.models.kernels.compiled", raising=False)
    found = only(look_at_kernels())
    assert (found.state, found.advice) == ("problem", "reinstall numba")


def test_data_that_is_here_and_data_that_is_not(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.delenv(DATA)
    inside, there = look_at_data(tmp_path)
    assert (inside.state, there.state) == ("ok", "ok")
    assert "digits" in inside.says
    assert f"in {tmp_path}, by --data-root: none" in there.says
    wrong, _ = look_at_data(tmp_path / "nowhere")
    assert (wrong.state, wrong.says) == ("problem", f"--data-root names {tmp_path / 'nowhere'}, which is no folder")
    monkeypatch.setenv(DATA, str(tmp_path / "nowhere"))
    assert next(look_at_data()).says.startswith(f"{DATA} names")


def test_data_that_was_recorded_and_has_moved(tmp_path: Path) -> None:
    (tmp_path / RECORDS).write_text('{"mnist": "/nowhere/mnist"}')
    moved = list(look_at_data(tmp_path))[-1]
    assert (moved.state, moved.advice) == ("look", "`fedstill data add mnist PATH`")
    (tmp_path / RECORDS).write_text("[not a record")
    assert list(look_at_data(tmp_path))[-1].state == "problem"


def test_a_folder_that_cannot_be_written(file: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv(CACHE, str(file / "cache"))
    runs, cache = look_at_disk(file / "runs")
    assert (runs.state, cache.state) == ("problem", "problem")
    assert f"cannot be written ({file} is no folder)" in runs.says
    assert "--out" in runs.advice
    assert CACHE in cache.advice


@pytest.mark.parametrize(("left", "state"), [(SCARCE, "ok"), (SCARCE - 1, "look"), (NONE_LEFT - 1, "problem")])
def test_a_disk_that_fills_up(left: int, state: str, tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(doctor, "free_bytes", lambda folder: left)
    assert states(look_at_disk(tmp_path)) == [state, state]


def test_runs_and_caches_are_counted(tmp_path: Path, monkeypatch: Patch) -> None:
    for name in "ab":
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.json").touch()
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    cache_folder().mkdir(parents=True)
    (cache_folder() / "cloud").write_bytes(bytes(2048))
    runs, cache = look_at_disk(tmp_path / "runs")
    assert ": two runs, " in runs.says
    assert ": 2.0\u00a0KiB, " in cache.says


def test_places(tmp_path: Path, file: Path, monkeypatch: Patch) -> None:
    assert standing(tmp_path / "a" / "b") == tmp_path
    assert obstacle(tmp_path / "a" / "b") is None
    assert obstacle(file) == f"{file} is no folder"
    assert free_bytes(tmp_path / "a") > 0

    def full(dir: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", full)
    assert obstacle(tmp_path) == f"{tmp_path}: No space left on device"


def test_extras_are_those_of_the_project() -> None:
    said = {
        name: [re.split(r"[^\w.-]", one)[0] for one in own] for name, own in PROJECT["optional-dependencies"].items()
    }
    del said["dev"], said["docs"]  # for contributors
    assert {name: list(packages) for name, (packages, _) in EXTRAS.items()} == said


def test_extras_that_are_here_and_extras_that_are_not(monkeypatch: Patch) -> None:
    monkeypatch.setattr(doctor, "installed", lambda name: None if name == "uvicorn" else "1.0")
    missing, here = look_at_extras()
    assert (missing.state, missing.advice) == ("look", "if you want that: pip install 'fedstill[flower]'")
    assert "flower is not installed (uvicorn): it gives a federation across machines" in missing.says
    assert here.says.startswith("installed: export (onnx 1.0, ")
    monkeypatch.setattr(doctor, "installed", lambda name: None)
    assert states(look_at_extras()) == ["look"] * len(EXTRAS)


WELL = Check("versions", "ok", "all is [well]")
ODD = Check("threads", "look", "many threads", "set fewer")
BROKEN = Check("disk", "problem", "no room", "free some")


@pytest.fixture
def found(monkeypatch: Patch) -> Callable[..., None]:
    def tell(*findings: Check) -> None:
        monkeypatch.setattr(doctor, "check_up", lambda out, data_root: list(findings))

    return tell


def test_nothing_is_broken(call: Call, found: Callable[..., None]) -> None:
    found(WELL, ODD)
    code, out, _ = call("doctor")
    assert code == 0
    assert "ok      versions: all is [well]\n" in out  # brackets are no markup
    assert "look    threads: many threads\n        → set fewer\n" in out
    assert out.endswith("nothing is broken, 1 worth a look\n")


def test_something_is_broken(call: Call, found: Callable[..., None]) -> None:
    found(WELL, BROKEN)
    code, out, _ = call("doctor")
    assert code == 1
    assert out.endswith("one problem\n")
    code, out, _ = call("doctor", "--json")
    assert code == 1
    told = json.loads(out)
    assert told["ok"] is False
    assert told["findings"][1] == {"topic": "disk", "state": "problem", "says": "no room", "advice": "free some"}


def test_the_real_one_says_where_runs_and_data_are(call: Call, tmp_path: Path) -> None:
    code, out, _ = call("doctor", "--json", "--out", "here", "--data-root", str(tmp_path / "nowhere"))
    assert code == 1
    said = [one["says"] for one in json.loads(out)["findings"]]
    assert any(line.startswith("runs in here: ") for line in said)
    assert f"--data-root names {tmp_path / 'nowhere'}, which is no folder" in said
    assert not (tmp_path / "here").exists()
