"""How tests are given to workers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from .scheduling import FIRST, WholeFiles, place

ROOT = Path(__file__).parents[1]


class Worker:
    """Notes what it is given."""

    shutting_down = False
    gateway = SimpleNamespace(id="worker")

    def __init__(self, collected: list[str]) -> None:
        self.collected, self.given = collected, list[str]()

    def send_runtest_some(self, indices: list[int]) -> None:
        self.given += [self.collected[at] for at in indices]

    def shutdown(self) -> None:
        self.shutting_down = True


def scheduled(tests: list[str]) -> list[list[str]]:
    """What two workers run, of which each reports a test as soon as the other has."""
    config: Any = SimpleNamespace(option=SimpleNamespace(loadscopereorder=True), getvalue=lambda name: ["2*popen"])
    scheduler, workers = WholeFiles(config), [Worker(tests), Worker(tests)]
    for worker in workers:
        scheduler.add_node(worker)  # type: ignore[arg-type]
        scheduler.add_node_collection(worker, tests)  # type: ignore[arg-type]
    scheduler.schedule()
    for turn in range(len(tests)):
        for worker in workers:
            if turn < len(worker.given):
                scheduler.mark_test_complete(worker, tests.index(worker.given[turn]))  # type: ignore[arg-type]
    return [worker.given for worker in workers]


def test_a_file_is_run_by_one_worker_in_its_order() -> None:
    files = ["a.py", "b.py", "c.py", "d.py"]
    tests = [f"tests/{file}::test_{number}[x::y]" for file in files for number in range(5)]
    given = scheduled(tests)
    assert sorted(given[0] + given[1]) == sorted(tests)
    for one in given:
        assert one == [test for test in tests if test in one]
        assert len(one) == 5 * len({test.partition("::")[0] for test in one}) == 10


def test_files_that_share_something_are_run_by_one_worker() -> None:
    together = next(names for names in FIRST if len(names) > 1)
    tests = [*(f"{name}::test" for name in together), "tests/other.py::test", "tests/another.py::test"]
    assert [*(f"{name}::test" for name in together)] in [one[: len(together)] for one in scheduled(tests)]


def test_long_files_are_begun_first_and_are_there(request: pytest.FixtureRequest) -> None:
    for names in FIRST:
        assert all([*ROOT.glob(f"{name}*")] for name in names), names
    places = [place(item.nodeid) for item in request.session.items]
    assert places == sorted(places)
