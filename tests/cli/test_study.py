"""`fedstill study` as a user meets it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedstill.studies import jobs

RECIPE = """
about: Two methods, two seeds.
experiment:
  data: digits
  model: mlp
  clients: 2
  rounds: 1
  training: {epochs: 1, batch: 64}
grid:
  method: [fedavg, {label: FedAvg slow, method: fedavg, training: {rate: 0.001}}]
  seed: [7, 42]
presets:
  tiny: {grid: {seed: [7]}}
"""
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(call: Call) -> Call:
    """In a folder with a recipe."""
    Path("small.yaml").write_text(RECIPE)
    return call


def answer(call: Call, *words: str) -> Any:
    code, out, err = call(*words, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_from_plan_to_table_and_back_from_its_file(call: Call) -> None:
    plan = answer(call, "study", "small.yaml", "--dry-run")
    assert (plan["experiments"], plan["runs"], plan["done"], plan["seconds_left"]) == (4, 4, 0, None)
    assert not Path("runs").exists()

    code, out, err = call("study", "small.yaml", "--results", "r.json", "--table", "t.md")
    assert code == 0, err
    assert [line.split(":")[0] for line in err.splitlines()] == [
        "4 runs, 0 done",
        "1/4 fedavg, seed 7",
        "2/4 fedavg, seed 42",
        "3/4 FedAvg slow, seed 7",
        "4/4 FedAvg slow, seed 42",
    ]
    assert "mean ± sample standard deviation over two seeds" in " ".join(out.split())
    assert "| FedAvg slow |" in Path("t.md").read_text()

    assert call("study", "r.json", "--table", "again.md")[0] == 0
    assert Path("again.md").read_bytes() == Path("t.md").read_bytes()
    plan = answer(call, "study", "small.yaml", "--dry-run")
    assert (plan["done"], plan["failed"]) == (4, 0)


def test_a_second_time_nothing_is_left_to_do(call: Call) -> None:
    first = answer(call, "study", "small.yaml", "--preset", "tiny")
    assert len(first["runs"]) == 2
    code, _, err = call("study", "small.yaml", "--preset", "tiny")
    assert (code, err) == (0, "")
    assert answer(call, "study", "small.yaml", "--preset", "tiny") == first


def test_settings_and_results_that_grow(call: Call) -> None:
    grown = ["--set", "method=fedavg", "--results", "r.json", "--quiet"]
    assert call("study", "small.yaml", *grown, "--set", "seed=7")[0] == 0
    assert call("study", "small.yaml", *grown, "--set", "seed=[1]")[0] == 0
    code, out, err = call("study", "r.json", "--metric", "best", "--metric", "seconds")
    assert code == 0, err
    assert out.count("over two seeds") == 2
    code, _, err = call("study", "small.yaml", *grown, "--set", "rounds=2")
    assert code == 2
    assert "the results there are of another experiment" in err
    assert len(list(Path("runs").glob("*/config.json"))) == 2, "refused before anything ran"


def test_failures_are_listed_and_end_in_code_1(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = jobs.launch

    def broken(experiment: Any, **options: Any) -> Any:
        if experiment.training.rate == 0.001:
            raise ZeroDivisionError("out of luck")
        return inner(experiment, **options)

    monkeypatch.setattr(jobs, "launch", broken)
    code, out, err = call("study", "small.yaml", "--quiet")
    assert code == 1
    assert "failed" in out
    assert err.splitlines() == [
        "failed: FedAvg slow, seed 7: ZeroDivisionError: out of luck",
        "failed: FedAvg slow, seed 42: ZeroDivisionError: out of luck",
        "fedstill: 2 of 4 experiments failed: see to the reason, then add --retry-failed",
    ]
    monkeypatch.setattr(jobs, "launch", inner)
    assert call("study", "small.yaml", "--quiet")[0] == 1
    code, out, err = call("study", "small.yaml", "--json", "--retry-failed")
    assert (code, json.loads(out)["failures"]) == (0, [])


def test_missing_data_is_listed_in_a_dry_run(call: Call) -> None:
    code, out, _ = call("study", "small.yaml", "--set", "data=mnist", "--dry-run")
    assert code == 2
    assert "4 runs, 0 done" in out
    assert "cannot run here" in out
    code, _, err = call("study", "small.yaml", "--set", "data=mnist")
    assert code == 2
    assert "the study cannot run here" in err


def test_a_dry_run_writes_nothing(call: Call) -> None:
    assert call("study", "small.yaml", "--preset", "tiny", "--results", "r.json", "--quiet")[0] == 0
    before = {path: path.stat().st_mtime_ns for path in Path().rglob("*")}
    written = ["--results", "r.json", "--table", "t.md"]
    code, out, err = call("study", "small.yaml", *written, "--dry-run")
    assert code == 0, err
    assert "4 runs, 2 done" in out
    assert {path: path.stat().st_mtime_ns for path in Path().rglob("*")} == before


@pytest.mark.parametrize(
    "words",
    ["--set rounds=2", "--seed 7", "--results r.json", "--dry-run", "--out runs", "--workers 1", "--device cpu"],
)
def test_what_a_results_file_cannot_heed_is_refused(call: Call, words: str) -> None:
    option = words.split()[0]
    code, out, err = call("study", "r.json", *words.split(), "--metric", "best")
    assert (code, out) == (2, "")
    assert err == f"fedstill: a results file is only drawn again: leave {option} out, or name the recipe\n"


MISTAKES = [
    (["run", "small.yaml"], "run it with `fedstill study small.yaml`"),
    (["egress", "small.yaml"], "run it with `fedstill study small.yaml`"),
    (["study", "smal"], "no method or recipe is called 'smal'"),
    (["study", "small.yaml", "--preset", "huge"], "no preset 'huge'"),
    (["study", "small.yaml", "--set", "rat=1"], "did you mean 'rate'"),
    (["study", "small.yaml", "--set", "rate"], "key=value"),
    (["study", "small.yaml", "--set", "seed=[]"], "empty list"),
    (["study", "small.yaml", "--workers", "0"], "at least one is needed"),
    (["study", "small.yaml", "--metric", "acuracy"], "did you mean 'accuracy'"),
    (["study", "small.yaml", "--table", "."], "cannot write"),
    (["study", "small.yaml", "--results", "small.yaml/r.json"], "cannot write"),
    (["study", "small.yaml", "--results", "small.yaml"], "cannot be read as a study's results"),
    (["study", "small.yaml", "--out", "small.yaml"], "cannot write to the folder"),
    (["study", "small.yaml", "--device", "tpu"], "unknown device"),
    (["study", "nowhere.json"], "no results file"),
]


@pytest.mark.parametrize(("words", "says"), MISTAKES, ids=[" ".join(words) for words, _ in MISTAKES])
def test_a_mistake_gets_one_sentence_before_any_work(call: Call, words: list[str], says: str) -> None:
    before = sorted(Path().rglob("*"))
    code, _, err = call(*words)
    assert code == 2, err
    assert says in err
    assert len(err.strip().splitlines()) == 1, err
    assert sorted(Path().rglob("*")) == before
