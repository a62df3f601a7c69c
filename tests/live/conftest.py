"""Folders of runs by hand, in any state."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

MakeFolder = Callable[..., Path]


def line(round: int, accuracy: float | None = 0.5, **more: Any) -> str:
    test = {} if accuracy is None else {"evaluation": {"finite": True, "test": {"accuracy": accuracy}}}
    return json.dumps(
        {"round": round, "failures": [], "bytes": {"up": 1, "down": 2}, "loss": {"ce": 1.0}, **test, **more}
    )


@pytest.fixture
def make_folder(tmp_path: Path) -> MakeFolder:
    def make(
        name: str,
        accuracies: Sequence[float | None] = (0.5, 0.7),
        settings: Mapping[str, Any] | None = None,
        finished: bool = True,
        rounds: int = 10,
    ) -> Path:
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        experiment = {"method": {"name": "fedavg"}, "data": "digits", "seed": 0, "rounds": rounds, **(settings or {})}
        (folder / "config.json").write_text(json.dumps({"format": 4, "experiment": experiment, "rounds": rounds}))
        lines = [line(round, accuracy) for round, accuracy in enumerate(accuracies, 1)]
        (folder / "journal.jsonl").write_text("".join(f"{one}\n" for one in lines))
        (folder / "timing.json").write_text(
            json.dumps({"rounds": [2.0] * len(lines), "checkpoints": [0.5] * len(lines)})
        )
        if finished:
            (folder / "result.json").write_text(json.dumps({"accuracy": {"last": accuracies[-1]}}))
        return folder

    return make
