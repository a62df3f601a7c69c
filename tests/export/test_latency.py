"""Measurements: who is measured when, and what is made of the times."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedstill.cli import export as command
from fedstill.core.errors import InputError
from fedstill.core.hardware import threads_of
from fedstill.export import latency
from fedstill.export.latency import Latency, Measured, Protocol, SeedLatency, measure, ratios
from fedstill.export.subject import Subject
from fedstill.runtime.result import Run

TINY = Protocol(passes=3, warm_ups=1)


def made(median: float, parameters: int = 10) -> Measured:
    times = (Latency("pytorch", 1, 1, 3, median, 2 * median), Latency("pytorch", 32, 1, 3, 10 * median, 20 * median))
    return Measured("run", "cnn", parameters, 4 * parameters, None, "random", times, SeedLatency(24, 3, 1, median))


def test_a_run_is_measured(two_runs: list[Run]) -> None:
    threads = torch.get_num_threads()
    one, other = measure([Subject(run) for run in two_runs], TINY)
    assert torch.get_num_threads() == threads
    settings = [(each.runtime, each.batch, each.threads) for each in one.latency]
    assert settings == [
        (runtime, batch, count) for count in (1, 2) for batch in (1, 32) for runtime in ("pytorch", "onnxruntime")
    ]
    assert all(each.passes == 3 and 0 < each.median <= each.p95 for each in (*one.latency, *other.latency))
    # Two hidden layers: 64 x 200 + 200, 200 x 200 + 200, 200 x 10 + 10.
    assert other.parameters == 55_210
    assert other.bytes == 4 * 55_210
    assert other.onnx_bytes is not None
    assert other.bytes < other.onnx_bytes < other.bytes + 5_000
    assert one.seed.batch == 24
    assert one.seed.mean > 0
    assert one.inputs == "test data"


def test_without_onnxruntime_pytorch_is_measured(digits_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency, "missing", lambda: ["onnxruntime"])
    (one,) = measure([Subject(digits_run)], replace(TINY, threads=(1,)))
    assert one.onnx_bytes is None
    assert {each.runtime for each in one.latency} == {"pytorch"}


def test_everyone_takes_turns() -> None:
    order: list[str] = []
    passes = [lambda: order.append("a"), lambda: order.append("b")]
    times = latency._in_turns(passes, Protocol(passes=2, warm_ups=1))
    assert order == list("ababab")
    assert [len(taken) for taken in times] == [2, 2]


def test_time_runs_out_but_not_before_the_fewest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that moves a second at each look. Five passes whatever the time; the seed's figure takes them all."""
    clock = iter(range(10_000))
    monkeypatch.setattr(latency, "perf_counter", lambda: float(next(clock)))
    protocol = Protocol(passes=50, warm_ups=0, seconds=3, fewest=5)
    (taken,) = latency._in_turns([lambda: None], protocol)
    assert taken == [1000.0] * 5
    (taken,) = latency._in_turns([lambda: None], protocol, whole=True)
    assert len(taken) == 50


def test_ratios_by_hand() -> None:
    found = ratios(made(6.0, parameters=40), made(2.0, parameters=10))
    assert found["parameters"] == 4.0
    assert found["bytes"] == 4.0
    assert [line["median"] for line in found["latency"]] == [3.0, 3.0]
    assert found["seed"] == 3.0


def test_threads_are_put_back_after_trouble() -> None:
    before = torch.get_num_threads()
    seen: list[int] = []

    def trouble() -> None:
        with threads_of(2):
            seen.append(torch.get_num_threads())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        trouble()
    assert seen == [2]
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("count", [1, 2])
def test_the_table_fits_a_terminal(
    count: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], digits_run: Run
) -> None:
    every = [replace(made(1234.5), run="runs/a"), replace(made(0.1234), run="runs/b")][:count]
    monkeypatch.setattr(latency, "measure", lambda subjects, protocol: every)
    command.latency([digits_run.path] * count, passes=3, seconds=1.0)
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines if "fedstill[export]" not in line) <= 80
    assert any("pytorch" in line and "1234" in line for line in lines)
    assert any("10004" in line for line in lines) == (count == 2)  # 1234.5 / 0.1234


def test_the_command_answers_in_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], digits_run: Run
) -> None:
    monkeypatch.setattr(latency, "measure", lambda subjects, protocol: [made(3.0), made(1.5)])
    command.latency([digits_run.path] * 2, passes=3, seconds=1.0, json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["ratios"]["latency"][0] == {"runtime": "pytorch", "batch": 1, "threads": 1, "median": 2.0}
    assert told["runs"][0]["latency"][0]["median"] == 3.0


def test_nonsense_is_refused(digits_run: Run, tmp_path: Path) -> None:
    for runs, passes, seconds in (([], 3, 1.0), ([digits_run.path], 0, 1.0), ([digits_run.path], 3, 0.0)):
        with pytest.raises(InputError):
            command.latency(runs, passes=passes, seconds=seconds)
    with pytest.raises(InputError, match="is not a run"):
        command.latency([tmp_path], passes=3, seconds=1.0)
