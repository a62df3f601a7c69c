"""Connecting to Ray, with a fake: its arguments, and that everything is restored afterwards.

Studies (`tests/studies/test_ray_executor.py`) and the engine (`tests/engines/flower/test_simulation.py`) use Ray.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import current_thread, main_thread
from types import ModuleType
from typing import Any

import pytest

from fedstill.core.errors import InputError
from fedstill.engines.ray_connection import check_answer, connection, last_line, named_connection

from ..warm import Warm

TELEMETRY, ACCELERATORS = "RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"


class Ray(ModuleType):
    """As far as a connection sees it: it takes over a signal and the environment, and remembers what it was told."""

    def __init__(self) -> None:
        super().__init__("ray")
        self.told: dict[str, Any] = {}
        self.environment: dict[str, str | None] = {}
        self.running, self.shutdowns = False, 0
        self.error: Exception | None = None
        self.folder_at_shutdown = False
        self.worker, self.constants = ModuleType("ray._private.worker"), ModuleType("ray._private.ray_constants")
        self.prints: list[str] = []
        vars(self.worker)["print_to_stdstream"] = self.prints.append
        vars(self.constants)["ENABLE_RAY_CLUSTER"] = True

    def init(self, **told: Any) -> None:
        self.told = told
        self.environment = {name: os.environ.get(name) for name in (TELEMETRY, ACCELERATORS)}
        if current_thread() is main_thread():
            signal.signal(signal.SIGTERM, lambda *_: None)
        if self.error is not None:
            raise self.error
        self.running = True

    def shutdown(self) -> None:
        self.running = False
        self.shutdowns += 1
        self.folder_at_shutdown = Path(self.told.get("_temp_dir", "nowhere")).is_dir()


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ray]:
    made = Ray()
    monkeypatch.setitem(sys.modules, "ray", made)
    monkeypatch.setitem(sys.modules, "ray._private", ModuleType("ray._private"))
    monkeypatch.setitem(sys.modules, "ray._private.worker", made.worker)
    monkeypatch.setitem(sys.modules, "ray._private.ray_constants", made.constants)
    monkeypatch.delenv(TELEMETRY, raising=False)
    monkeypatch.delenv(ACCELERATORS, raising=False)
    before = signal.getsignal(signal.SIGTERM)
    yield made
    assert signal.getsignal(signal.SIGTERM) is before
    assert vars(made.constants)["ENABLE_RAY_CLUSTER"] is True
    vars(made.worker)["print_to_stdstream"]("heard")
    assert made.prints == ["heard"]
    assert (made.running, made.shutdowns) == (False, 1)


def test_a_ray_of_our_own_is_for_this_machine_and_leaves_nothing(ray: Ray) -> None:
    with connection(None, 3, store=2**27):
        assert ray.running
        folder = Path(ray.told.pop("_temp_dir"))
        assert ray.told == {
            "address": "local",
            "num_cpus": 3,
            "object_store_memory": 2**27,
            "include_dashboard": False,
            "log_to_driver": False,
            "logging_level": "ERROR",
        }
        assert folder.is_dir()
        assert vars(ray.constants)["ENABLE_RAY_CLUSTER"] is False, "it would listen on all interfaces"
        vars(ray.worker)["print_to_stdstream"]("pages about a lost process")
        assert ray.prints == []
        ray.told["_temp_dir"] = str(folder)
    assert ray.folder_at_shutdown, "its processes still write there"
    assert not folder.exists()


def test_a_cluster_is_only_told_where_it_is(ray: Ray) -> None:
    with connection("head:6379", 3, store=2**27):
        assert ray.told == {"address": "head:6379", "log_to_driver": False, "logging_level": "ERROR"}
        assert vars(ray.constants)["ENABLE_RAY_CLUSTER"] is True


@pytest.mark.parametrize(
    ("address", "sentence"),
    [("head:6379", "cannot use the Ray cluster at head:6379: why"), (None, "cannot start a Ray on this machine: why")],
    ids=["cluster", "own"],
)
def test_a_ray_that_does_not_start_is_one_sentence(ray: Ray, address: str | None, sentence: str) -> None:
    ray.error = RuntimeError("where\n  why \n\n")
    with pytest.raises(InputError) as raised, connection(address, 1):
        raise AssertionError("there is no Ray")
    assert str(raised.value) == sentence
    assert not Path(ray.told.get("_temp_dir", "nowhere")).exists()


def test_what_fails_meanwhile_is_not_taken_for_ray(ray: Ray) -> None:
    with pytest.raises(RuntimeError, match=r"^mine$"), connection(None, 1):
        raise RuntimeError("mine")
    assert not Path(ray.told["_temp_dir"]).exists()


@pytest.mark.parametrize("theirs", [None, "1"], ids=["unset", "set"])
def test_the_environment_is_as_before(ray: Ray, monkeypatch: pytest.MonkeyPatch, theirs: str | None) -> None:
    """Telemetry is never wanted; a choice about accelerators is the user's."""
    if theirs is not None:
        monkeypatch.setenv(TELEMETRY, theirs)
        monkeypatch.setenv(ACCELERATORS, theirs)
    before = dict(os.environ)
    with connection(None, 1):
        assert ray.environment == {TELEMETRY: "0", ACCELERATORS: theirs or "0"}
    assert dict(os.environ) == before


def test_a_ray_without_what_is_altered_is_used_as_it_is(ray: Ray) -> None:
    del vars(ray.constants)["ENABLE_RAY_CLUSTER"]
    with connection(None, 1):
        assert "ENABLE_RAY_CLUSTER" not in vars(ray.constants)
    assert "ENABLE_RAY_CLUSTER" not in vars(ray.constants)
    vars(ray.constants)["ENABLE_RAY_CLUSTER"] = True  # as the fixture wants it


def test_a_port_where_nobody_answers_is_refused_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        check_answer(f"127.0.0.1:{port}", "the head")
    with pytest.raises(InputError, match=r"^nobody answers at the head \(.*refused.*\): is the Ray cluster running\?$"):
        check_answer(f"127.0.0.1:{port}", "the head")
    with pytest.raises(InputError, match="nobody answers at the head"):
        check_answer("127.0.0.1:99999", "the head")


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1"])
def test_the_environment_may_name_a_ray_and_a_dead_one_is_refused_at_once(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(InputError, match=f"nobody answers at RAY_ADDRESS={address} "), named_connection(1):
        raise AssertionError("there is no Ray")
    check_answer("auto", "auto")


def test_errors_without_words_give_their_name() -> None:
    assert last_line(ConnectionError(" \n ")) == "ConnectionError"
    assert last_line(ValueError("where\n\n  why  \n")) == "why"


def test_ray_is_not_imported_before_somebody_connects(foreign: Warm, tmp_path: Path) -> None:
    code = "import sys, fedstill.engines.ray_connection; print('ray' in sys.modules)"
    done = foreign.python(code, tmp_path)
    assert done.stdout.strip() == "False", done.stderr
