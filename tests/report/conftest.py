"""Runs that were never run: directories with the files a run leaves, and whatever results a test wants."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from fedstill.core.records import RUN_FORMAT
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.result import Run

from ..records_by_hand import personal_metrics, round_record, run_result

MakeRun = Callable[..., Run]


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
        tests = [{"accuracy": one, "class_accuracy": one - 0.01, "loss": 0.5} for one in accuracies]
        journal = [
            round_record(round, experiment.clients, **{"test": test, **dict((lines or {}).get(round, {}))})
            for round, test in enumerate(tests, 1)
        ]
        best = max(range(1, len(accuracies) + 1), key=lambda round: accuracies[round - 1])
        rounds = {"last": len(accuracies), "best": best, **({} if selected is None else {"selected": selected})}
        folder = tmp_path / "runs" / str(len(list((tmp_path / "runs").glob("*"))))
        folder.mkdir(parents=True)
        _write(
            folder / "config.json",
            {
                "format": RUN_FORMAT,
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
        result = run_result(
            rounds=len(accuracies),
            accuracy={which: accuracies[round - 1] for which, round in rounds.items()},
            class_accuracy={which: accuracies[round - 1] - 0.01 for which, round in rounds.items()},
            round_of=rounds,
            personal=None if personal is None else personal_metrics(**personal),
            bytes={"up": sum(one.bytes.up for one in journal), "down": sum(one.bytes.down for one in journal)},
            failures=sum(len(one.failures) for one in journal),
            skipped=sum(one.skipped is not None for one in journal),
            finite=all(one.evaluation is None or one.evaluation.finite for one in journal),
        )
        _write(folder / "result.json", result.to_dict())
        _write(folder / "timing.json", {"rounds": [1.0] * len(journal), "checkpoints": [0.1] * len(journal)})
        (folder / "journal.jsonl").write_text("".join(one.to_json() + "\n" for one in journal))
        return Run(folder)

    return make


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content))
