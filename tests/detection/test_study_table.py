"""What a study keeps of detectors, and how its tables call it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.result import Run
from fedstill.runtime.run_folder import FORMAT
from fedstill.studies import Results, make_table
from fedstill.studies.results import Row
from fedstill.studies.run_figures import figures_of

METRICS = {"accuracy": 0.5, "class_accuracy": 0.5, "map_25": 0.5, "map_50": 0.2, "ar_25": 0.75, "ar_50": 0.4}


def results(**figures: float) -> Results:
    axes = {"method": {"fedavg": "fedavg", "fed3d": "fed3d"}, "seed": {"1": 1}}
    runs = {(method, "1"): Row(method, figures) for method in ("fedavg", "fed3d")}
    return Results("small", "", {}, axes, None, (), runs, {})


def test_metrics_of_detectors_have_their_names_and_units() -> None:
    table = make_table(results(**METRICS), "map_50")
    assert table.header == ("method", "mAP@0.5")
    assert table.rows == (("fedavg", "20.00"), ("fed3d", "20.00"))
    assert table.caption == ("small: mean average precision at an IoU above 0.5 after the last round, in % (seed 1)")
    assert make_table(results(**METRICS), "ar_25").header == ("method", "AR@0.25")
    assert make_table(results(bytes_round=3 * 2**19), "bytes_round").rows[0] == ("fedavg", "1.50")


def test_accuracy_of_detectors_is_called_what_it_is() -> None:
    table = make_table(results(**METRICS))
    assert table.header == ("method", "mAP@0.25")
    assert table.caption == "small: test mAP@0.25 after the last round, in % (seed 1)"
    plain = make_table(results(accuracy=0.5))
    assert plain.header == ("method", "accuracy")
    assert plain.caption == "small: test accuracy after the last round, in % (seed 1)"


def test_figures_of_a_run(tmp_path: Path) -> None:
    """Two rounds, 100 up and 200 down each, of which 50 are sent once: (2 * 300 - 50) / 2 = 275 a round."""
    figures = figures_of(written(tmp_path, METRICS))
    assert {name: figures[name] for name in METRICS} == METRICS
    assert (figures["bytes_up"], figures["bytes_down"], figures["bytes_round"]) == (200, 400, 275)
    assert figures["bytes_once"] == 50
    assert figures_of(written(tmp_path / "plain", {"accuracy": 0.5, "class_accuracy": 0.5}))["map_25"] is None


def written(folder: Path, metrics: dict[str, Any]) -> Run:
    """What `figures_of` reads of a run of two rounds."""
    folder.mkdir(exist_ok=True)
    experiment = make_experiment({"method": "fedavg", "model": "detr3d-lite", "rounds": 2})
    line = {"asked": [0], "accepted": [0], "lost": [], "loss": {"class": 1.0}, "finite": True, "metrics": metrics}
    lines = [
        {**line, "round": 1, "bytes": {"up": 100, "down": 200, "once": 50}},
        {**line, "round": 2, "bytes": {"up": 100, "down": 200}},
    ]
    (folder / "journal.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    (folder / "config.json").write_text(
        json.dumps({"format": FORMAT, "experiment": experiment.model_dump(mode="json")})
    )
    same = {"last": 0.5, "best": 0.5}
    result = {"accuracy": same, "class_accuracy": same, "personal": {}, "bytes": {"up": 200, "down": 400}}
    (folder / "result.json").write_text(json.dumps({**result, "round_of": {"last": 2, "best": 2}}))
    return Run(folder)
