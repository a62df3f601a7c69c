"""What a study keeps of detectors, and how its tables call it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedstill.core.records import RUN_FORMAT
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.result import Run
from fedstill.studies import Results, make_table
from fedstill.studies.results import ResultRow
from fedstill.studies.run_figures import figures_of

from ..records_by_hand import round_record, run_result

METRICS = {"accuracy": 0.5, "class_accuracy": 0.5, "map_25": 0.5, "map_50": 0.2, "ar_25": 0.75, "ar_50": 0.4}


def results(**figures: float) -> Results:
    axes = {"method": {"fedavg": "fedavg", "fed3d": "fed3d"}, "seed": {"1": 1}}
    runs = {(method, "1"): ResultRow(method, figures) for method in ("fedavg", "fed3d")}
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
    """Two rounds, 100 up and 200 down each, of which 50 at first contact: (2 * 300 - 50) / 2 = 275 a round."""
    figures = figures_of(written(tmp_path, METRICS))
    assert {name: figures[name] for name in METRICS} == METRICS
    assert (figures["bytes_up"], figures["bytes_down"], figures["bytes_round"]) == (200, 400, 275)
    assert figures["bytes_first_contact"] == 50
    assert figures_of(written(tmp_path / "plain", {"accuracy": 0.5, "class_accuracy": 0.5}))["map_25"] is None


def written(folder: Path, metrics: dict[str, Any]) -> Run:
    """What `figures_of` reads of a run of two rounds."""
    folder.mkdir(exist_ok=True)
    experiment = make_experiment({"method": "fedavg", "model": "detr3d-lite", "rounds": 2})
    traffic = {"up": 100, "down": 200}
    lines = [
        round_record(1, test=metrics, bytes={**traffic, "first_contact": 50}),
        round_record(2, test=metrics, bytes=traffic),
    ]
    (folder / "journal.jsonl").write_text("".join(one.to_json() + "\n" for one in lines))
    (folder / "config.json").write_text(
        json.dumps({"format": RUN_FORMAT, "experiment": experiment.model_dump(mode="json")})
    )
    result = run_result(bytes={"up": 200, "down": 400}, round_of={"last": 2, "best": 2})
    (folder / "result.json").write_text(result.to_json())
    return Run(folder)
