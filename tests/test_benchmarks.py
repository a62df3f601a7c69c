"""The benchmarks run, print their table, and notice results that differ. How fast anything is, is not tested."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
FASTER_LOOP = """
from benchmarks.plain_loop import PlainLoop
begin = PlainLoop.__post_init__
def begin_faster(self):
    begin(self)
    self.rate *= 1.01
PlainLoop.__post_init__ = begin_faster
"""


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)


def test_the_table_comes_out(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    chosen = [word for name in ("rounds", "where") for word in ("--only", name)]
    done = python("-m", "benchmarks", *chosen, "--size", "tiny", "--json", str(file))
    assert done.returncode == 0, done.stderr
    for text in ("measured", "round of 4 clients, in-process / loop", "2 workers / loop", "<= 1.03", "backward"):
        assert text in done.stdout
    figures = json.loads(file.read_text())
    assert all(row["measured"]["middle"] > 0 for row in figures["rounds"]["rows"])
    (parts,) = figures["where"]["tables"].values()
    assert {"forward", "backward", "optimiser", "evaluation", "other", "all"} <= {line[0] for line in parts}


def test_a_loop_that_learns_something_else_is_noticed() -> None:
    code = f"{FASTER_LOOP}\nfrom benchmarks.__main__ import main\nraise SystemExit(main())"
    done = python("-c", code, "--only", "rounds", "--size", "tiny")
    assert done.returncode == 1
    assert "results differ: rounds: 4 clients" in done.stderr


def test_the_doctests_of_the_helpers() -> None:
    done = python("-m", "doctest", "benchmarks/timing.py", "benchmarks/report.py")
    assert done.returncode == 0, done.stdout
