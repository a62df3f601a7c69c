"""A run as an object to read."""

from __future__ import annotations

import math
from pathlib import Path

import fedstill


def test_a_run_in_which_nobody_was_heard_has_no_accuracy_and_can_still_be_looked_at(tmp_path: Path) -> None:
    run = fedstill.run("local-only", data="digits", model="mlp", clients=2, rounds=1, dropout=1.0, out=tmp_path)
    assert run.result["accuracy"] == {"last": None}
    assert math.isnan(run.accuracy)
    assert math.isnan(run.best_accuracy)
    assert "accuracy nan" in repr(run)
