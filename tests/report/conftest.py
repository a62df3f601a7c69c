"""Runs that were never run: directories with the files a run leaves, and whatever results a test wants."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.result import Run
from fedstill.runtime.run_folder import FORMAT

MakeRun = Callable[..., Run]


def journal_line(round: int, accuracy: float, clients: int, **more: Any) -> dict[str, Any]:
    everyone = list(range(clients))
    return {
        "round": round,
        "asked": everyone,
        "accepted": everyone,
        "lost": [],
        "skipped": None,
        "bytes": {"up": 1024 * clients, "down": 2048 * clients},
        "work": 100.0,
        "loss": {"cross-entropy": 2.0 / round},
        "finite": True,
        "metrics": {"accuracy": accuracy, "class_accuracy": accuracy - 0.01, "loss": 0.5},
        "validation": {},
        "personal": {},
        **more,
    }


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    def make(
        given: Mapping[str, Any] | str = "fedavg",
        accuracies: tuple[float, ...] = (0.5, 0.7, 0.9),
        lines: Mapping[int, Mapping[str, Any]] | None = None,
        personal: Mapping[str, float] | None = None,
        selected: int | None = None,
    ) -> Run:
        start = {"method": given} if isinstance(given, str) else dict(given)
        experiment = make_experiment({"model": "cnn", "rounds": len(accuracies), "clients": 4, **start})
        journal = [
            journal_line(round, accuracy, experiment.clients, **dict((lines or {}).get(round, {})))
            for round, accuracy in enumerate(accuracies, 1)
        ]
        best = max(range(1, len(accuracies) + 1), key=lambda round: accuracies[round - 1])
        rounds = {"last": len(accuracies), "best": best, **({} if selected is None else {"selected": selected})}
        folder = tmp_path / "runs" / str(len(list((tmp_path / "runs").glob("*"))))
        folder.mkdir(parents=True)
        _write(
            folder / "config.json",
            {
                "format": FORMAT,
                "identity": "0123456789abcdef",
                "experiment": experiment.model_dump(mode="json"),
                "fingerprint": "f" * 64,
                "classes": ["a", "b", "c"],
                "shape": [1, 8, 8],
                "behaviour": 1,
                "fedstill": "0.1.0",
                "torch": "2.13.0",
            },
        )
        _write(
            folder / "result.json",
            {
                "rounds": len(accuracies),
                "accuracy": {which: accuracies[round - 1] for which, round in rounds.items()},
                "class_accuracy": {which: accuracies[round - 1] - 0.01 for which, round in rounds.items()},
                "round_of": rounds,
                "personal": dict(personal or {}),
                "bytes": {way: sum(line["bytes"][way] for line in journal) for way in ("up", "down")},
                "lost": sum(len(line["lost"]) for line in journal),
                "skipped": sum(line["skipped"] is not None for line in journal),
                "finite": all(line["finite"] for line in journal),
                "sha256": "abcdef0123456789" * 4,
                "model_last": "",
            },
        )
        _write(folder / "timing.json", {"rounds": [1.0] * len(journal), "checkpoints": [0.1] * len(journal)})
        (folder / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in journal))
        return Run(folder)

    return make


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content))
