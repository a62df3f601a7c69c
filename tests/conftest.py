"""What tests of several rooms share."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
import typer.main

from fedstill.core import hardware, plugins
from fedstill.core.message import Message
from fedstill.core.protocols import Engine, Reply
from fedstill.data.bundle import Bundle
from fedstill.engines import InProcess, Processes, Wire
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.plan import Plan, make_plan

from .scheduling import WholeFiles, place
from .warm import FOREIGN, SELDOM, Warm

# What a machine has measured before changes what commands tell of the time that is left, and measuring takes time.
os.environ.setdefault("FEDSTILL_ESTIMATES", "off")

TINY = {"data": "digits", "clients": 5, "rounds": 3, "model": "cnn", "training": {"epochs": 1, "batch": 64}}


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Any:
    """Modules and tests live until the end: searching them for garbage takes half the time of their collection.

    Modules that tests import later would be searched again for every 70,000 objects made, all of them.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(*SELDOM)
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> WholeFiles:
    return WholeFiles(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests first: one that begins last leaves the other workers without anything to do."""
    items.sort(key=lambda item: place(item.nodeid))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """In CI a test that is skipped has failed: what it needs should have been installed."""
    report = yield
    if report.skipped and "CI" in os.environ and not hasattr(report, "wasxfail"):
        report.outcome, report.longrepr = "failed", f"skipped, which CI does not allow: {report.longrepr}"
    return report


@pytest.fixture(autouse=True)
def _no_outside_data(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tests must pass on a machine without any data sets."""
    monkeypatch.setenv("FEDSTILL_DATA", str(tmp_path_factory.getbasetemp() / "no-data"))


def _without_new_plugins() -> Iterator[None]:
    before = dict(plugins._loaded)
    yield
    for path in plugins._loaded.keys() - before.keys():
        for registration in plugins._loaded.pop(path).made:
            registration.withdraw()


@pytest.fixture(autouse=True, scope="module")
def _without_plugins_of_other_modules() -> Iterator[None]:
    """What fixtures of a module load is gone with the module: fixtures of its tests begin after them."""
    yield from _without_new_plugins()


@pytest.fixture(autouse=True)
def _without_plugins_of_others() -> Iterator[None]:
    """A plugin that a test loads is gone with it: others, and their deployments, would have to have it too."""
    yield from _without_new_plugins()


@pytest.fixture(autouse=True, scope="session")
def _without_waiting_for_the_disk() -> Iterator[None]:
    """A process that is killed loses nothing that it wrote; for what a power failure would lose, no test looks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def _commands_made_once() -> Iterator[None]:
    """Typer makes the whole command line anew for every command, which takes longer than most of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", cache(typer.main.get_command))
        yield


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Bits are promised for one thread, and two of them with a busy neighbour are many times slower than one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def tiny_plan() -> Any:
    """A plan of a tiny experiment, with whatever a test wants different."""

    def make(bundle: Bundle | None = None, **changes: Any) -> Plan:
        return make_plan(make_experiment({**TINY, "method": "fedavg", **changes}), bundle=bundle)

    return make


@pytest.fixture(scope="session")
def engines() -> Iterator[dict[str, Engine]]:
    """Every engine, with worker pools that all tests reuse."""
    pools = {f"processes-{size}": Processes(size) for size in (1, 2, 3)}
    yield {"in-process": InProcess(), "wire": Wire(), **pools}
    for pool in pools.values():
        pool.__exit__(None, None, None)


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    """Commands, each in a process of its own that has imported everything already."""
    with Warm() as process:
        yield process


@pytest.fixture(autouse=True, scope="session")
def _processes_are_warm(warm: Warm) -> Iterator[None]:
    """Workers and sites are copies of a process that has imported everything."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hardware, "python_command", warm.command)
        yield


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers and sites are new interpreters, as everywhere but in tests."""
    monkeypatch.setattr(hardware, "python_command", lambda: [sys.executable])


@pytest.fixture(scope="session")
def foreign() -> Iterator[Warm]:
    """Python that has imported PyTorch and the like, and nothing of this package."""
    with Warm(FOREIGN) as process:
        yield process


class Tampered:
    """An engine whose clients misbehave, as told by `tamper(reply, turn)`, and that poisons global generators."""

    at_sites = False

    def __init__(self, engine: Engine, tamper: Any) -> None:
        self.engine, self.tamper = engine, tamper
        self.open = engine.open

    def dispatch(self, exchange: Any, jobs: Any, turn: Any) -> Any:
        for outcome in self.engine.dispatch(exchange, jobs, turn):
            # The processor's generator alone: `torch.manual_seed` takes notes for every other kind of device.
            torch.default_generator.manual_seed(outcome.profile.id * 7919 + turn.round)  # must not matter to anybody
            if isinstance(outcome, Reply):
                message = self.tamper(outcome, turn)
                if message is not None:
                    outcome = Reply(outcome.profile, Message(message), outcome.state, outcome.work)
            yield outcome


@pytest.fixture
def tampered() -> Any:
    return Tampered


class StopAfter:
    """An observer that ends the attempt after some round, as a crash would."""

    def __init__(self, round: int) -> None:
        self.stop = round

    def start(self, experiment: Any, journal: Any) -> None: ...

    def round(self, record: dict[str, Any]) -> None:
        if record.round == self.stop:
            raise KeyboardInterrupt

    def note(self, text: str) -> None: ...

    def warn(self, text: str) -> None: ...

    def finish(self) -> None: ...


@pytest.fixture
def stop_after() -> Any:
    return StopAfter
