"""The benchmarks run, print their table and detect results that differ. Speed is not tested."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from .warm import Warm

ROOT = Path(__file__).parent.parent
FASTER_LOOP = """
from benchmarks.plain_loop import PlainLoop
begin = PlainLoop.__post_init__
def begin_faster(self):
    begin(self)
    self.rate *= 1.01
PlainLoop.__post_init__ = begin_faster
"""
WITHOUT_FLOWER = """
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "flwr" else find(name, *more)
"""


Python = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def python(warm: Warm) -> Python:
    """`python -m MODULE WORDS` in a process of its own, in which some code has run before."""

    def run(module: str, *words: str, before: str = "") -> subprocess.CompletedProcess[str]:
        begin = f"import runpy, sys, torch; torch.set_num_threads(1); sys.argv = {[module, *words]!r}\n{before}\n"
        code = f"{begin}runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
        return warm.python(code, ROOT, environment={**os.environ, "OMP_NUM_THREADS": "1"})

    return run


def test_the_table_is_printed(python: Python, tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    chosen = [word for name in ("rounds", "breakdown", "methods") for word in ("--only", name)]
    done = python("benchmarks", *chosen, "--size", "tiny", "--json", str(file))
    assert done.returncode == 0, done.stderr
    for text in ("measured", "round of 4 clients, in-process / loop", "2 workers / loop", "<= 1.03", "backward"):
        assert text in done.stdout
    figures = json.loads(file.read_text())
    assert all(row["measured"]["middle"] > 0 for row in figures["rounds"]["rows"])
    assert {"fedprox", "scaffold", "feddf", "fedgkt"} <= {row["what"].split()[2] for row in figures["methods"]["rows"]}
    (parts,) = figures["breakdown"]["tables"].values()
    assert {"forward", "backward", "optimiser", "evaluation", "other", "all"} <= {line[0] for line in parts}


@pytest.mark.slow
def test_sums_are_measured_beside_those_of_flower_and_privacy_on_two_kinds_of_data(
    python: Python, tmp_path: Path
) -> None:
    file = tmp_path / "figures.json"
    done = python("benchmarks", "--only", "secure", "--only", "privacy", "--size", "tiny", "--json", str(file))
    assert done.returncode == 0, done.stderr
    figures = json.loads(file.read_text())
    ours, theirs = figures["secure"]["tables"].values()
    assert [line[:2] for line in ours] == [line[:2] for line in theirs]
    for table in figures["privacy"]["tables"].values():
        assert [line[0] for line in table[1:]] == ["none", "client-level", "distributed", "record-level"]


def test_a_loop_with_different_results_is_detected(python: Python) -> None:
    done = python("benchmarks", "--only", "rounds", "--size", "tiny", before=FASTER_LOOP)
    assert done.returncode == 1
    assert "failed: rounds: 4 clients" in done.stderr


def test_the_doctests_of_the_helpers(python: Python) -> None:
    files = [f"benchmarks/{name}.py" for name in ("timing", "report", "proxy", "deployment", "reliability/crashes")]
    done = python("doctest", *files)
    assert done.returncode == 0, done.stdout


def test_without_flower_the_deployment_is_reported_as_not_measured(python: Python) -> None:
    done = python("benchmarks", "--only", "deployment", before=WITHOUT_FLOWER)
    assert done.returncode == 0, done.stderr
    assert "not measured" in done.stdout
    assert "flwr not installed: pip install 'fedstill[flower,ray]'" in done.stdout


@pytest.mark.slow
def test_a_deployment_is_measured(python: Python, tmp_path: Path) -> None:
    if not all(importlib.util.find_spec(module) for module in ("flwr", "ray")):
        pytest.skip("Flower or Ray is missing")
    file = tmp_path / "figures.json"
    done = python("benchmarks", "--only", "deployment", "--size", "tiny", "--json", str(file))
    assert done.returncode == 0, done.stderr
    figures = json.loads(file.read_text())["deployment"]
    assert [row["what"].split(", ")[1] for row in figures["rows"]] == [
        f"{engine} / in-process" for engine in ("processes", "flower-ray", "deployment")
    ]
    costs, parts = figures["tables"].values()
    messages, up, down = (int(cell.replace(",", "")) for cell in costs[-1][5:8])
    # In a round the model is sent down twice, for training and for evaluation, and up once.
    assert up > messages / 3
    assert down > 2 * messages / 3
    assert 50 < int(parts[1][2]) < 300  # requests: about 98; with one array per tensor there were hundreds


@pytest.mark.slow
def test_estimates_are_compared_with_what_a_study_takes(python: Python, tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    done = python("benchmarks", "--only", "estimates", "--size", "tiny", "--json", str(file))
    assert done.returncode == 0, done.stderr
    figures = json.loads(file.read_text())["estimates"]
    seconds, memory = (float(row["measured"]) for row in figures["rows"])
    assert 0.2 < seconds < 5, "one round is short; the unit is right"
    assert 0.5 < memory < 1.5
    ((_, study),) = figures["tables"].values()
    assert study[1] == "11"


def test_crafted_weights_imprint_images_and_noise_hides_them() -> None:
    from benchmarks.imprinting import SCALES, read_from_sum, read_once

    plain, private = read_once(None, SCALES[0]), read_once(1.0, SCALES[0])
    assert plain.read > 20
    assert (plain.others, private.read) == (0, 0)
    assert private.epsilon is not None
    in_sum, hidden = read_from_sum(SCALES[1]), read_from_sum(SCALES[1], noise=1.0)
    assert in_sum.read > 5
    assert (in_sum.others, hidden.read, hidden.deviation) == (0, 0, 1.0)
