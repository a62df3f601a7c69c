"""What is said of a run while it is under way, and of what went wrong in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

Call = Callable[..., tuple[int, str, str]]
TINY = ["--rounds", "2", "--clients", "4", "--set", "epochs=1", "--set", "batch=64"]


def test_training_that_diverges_is_called_that(call: Call) -> None:
    """Rate 1e30: every client's weights overflow in every round. Attackers that send such numbers are no such thing."""
    code, out, err = call("run", "fedavg", *TINY, "--set", "training.rate=1e30", "--out", "wild")
    assert code == 0, err
    assert "8 failures (8 refused as not finite), 2 rounds skipped\ntraining diverged: lower training.rate\n" in out
    journal = json.loads(call("show", str(next(Path("wild").iterdir())), "--json")[1])["journal"]
    assert {record["skipped"] for record in journal} == {"0 of 4 replies (4 refused as not finite), and 1 are needed"}
    code, out, err = call("run", "fedavg", *TINY, "--set", "attack=nan")
    assert code == 0, err
    assert "2 failures (2 refused as not finite), 0 rounds skipped\n" in out
    assert "diverged" not in out


def test_an_unfinished_run_counts_the_rounds_that_are_played(call: Call) -> None:
    """Fine-tuning plays one round more than it is told."""
    run = Path(json.loads(call("run", "fine-tuned", *TINY, "--json")[1])["run"])
    (run / "result.json").unlink()
    code, out, err = call("show", str(run))
    assert code == 0, err
    assert "not finished: 3 of 3 rounds" in out
