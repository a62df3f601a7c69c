"""The part of a report that is about queries."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fedstill
from fedstill.core.streams import Streams
from fedstill.queries.probe import probed
from fedstill.queries.report_section import query_section
from fedstill.report import write_report
from fedstill.runtime.result import Run

MakeRun = Callable[..., Run]
ALONE, AFTER = [0.8, 0.6, 0.0], [0.9, 0.4, 0.5]


def asked(run: Run, recalls: list[float], before: list[float] | None = None) -> Run:
    one = {"counts": [30, 10, 0], "query": [2], "recalls": recalls, "before": before}
    nobody = {"counts": [5, 5, 5], "query": [], "recalls": recalls, "before": before}
    (run.path / "answers.json").write_text(json.dumps({"0": one, "1": nobody}))
    return run


def given(method: str) -> dict[str, Any]:
    return {"method": method, "queries": {"by_hand": {0: [2]}}}


def test_runs_are_set_against_learning_alone(make_run: MakeRun) -> None:
    runs = {
        "together": asked(make_run(given("fedavg")), AFTER),
        "alone": asked(make_run(given("local-only")), ALONE),
        "another": make_run("fedprox"),
    }
    section = query_section(runs)
    assert section.about == (
        "One client asked for classes that are scarce in their own data: with “together” they gained 50.0\u00a0points"
        " in those, and lost 10.0\u00a0points in their own."
    )
    table, clients = section.tables
    heads = [column.key for column in table.columns]
    rows = [dict(zip(heads, (cell.value for cell in row), strict=True)) for row in table.cells]
    assert [row["way"] for row in rows] == ["together", "alone"]
    told = [[row[f"query_{name}"] for name in ("accuracy", "before", "gain")] for row in rows]
    assert told[0] == pytest.approx([0.6375, 0.375, 0.5])
    assert told[1][:2] == pytest.approx([0.375, 0.375])
    assert told[1][2] is None
    assert rows[0]["mib"] == round(3 * 3072 * 4 / 4 / 2**20, 4)  # three rounds, four clients of 3 KiB each
    assert [row[2] for row in clients.rows] == ["c", "c"]
    assert [figure.id for figure in section.figures] == ["balance"], "their clients' states are not there"


def test_what_is_not_known_is_said(make_run: MakeRun) -> None:
    section = query_section({"together": asked(make_run(given("fedavg")), AFTER)})
    assert section.figures == []
    assert "no run of local-only on this page" in section.tables[0].note
    assert section.about == "One client asked for classes that are scarce in their own data."
    assert query_section({"quiet": make_run("fedavg")}).empty


def test_the_page_has_it(make_run: MakeRun, tmp_path: Path) -> None:
    runs = {"together": asked(make_run(given("fedavg")), AFTER, ALONE)}
    page = write_report(runs, tmp_path / "report.html", tables={}, figures=tmp_path / "figures")
    assert "Answers to queries" in page.read_text()
    assert (tmp_path / "figures" / "balance.svg").exists()
    quiet = write_report({"quiet": make_run("fedavg")}, tmp_path / "quiet.html", tables={})
    assert "Answers to queries" not in quiet.read_text()


def test_models_are_probed_as_peers_would(tmp_path: Path) -> None:
    """In a run of local-only and in one of qkt the same models meet the same noise."""
    experiment: dict[str, Any] = {
        "data": "digits",
        "model": "cnn",
        "clients": 3,
        "rounds": 1,
        "seed": 7,
        "partition": {"name": "pathological", "classes_per_client": 4},
        "training": {"epochs": 2, "batch": 64},
        "queries": {"under": 10},
    }
    alone = fedstill.run({**experiment, "method": "local-only"}, out=tmp_path)
    peers = fedstill.run({**experiment, "method": {"name": "qkt", "transfer_epochs": 1}}, out=tmp_path)
    first, second = probed(alone), probed(peers)
    assert first is not None
    assert second is not None
    assert (first.guessed == second.guessed).all()
    assert first.true.sum(axis=1).tolist() == [1.0] * 3
    assert ((first.true > 0).sum(axis=1) == 4).all()
    noise = Streams(7).at("peer", 2).draw("probe").standard_normal((20, *alone.task.shape)).astype("float32")
    with torch.inference_mode():
        said = alone.model(client=2).eval()(torch.from_numpy(noise))[0].double().exp().mean(dim=0)
    assert first.guessed[2].tolist() == said.tolist()
    shared = fedstill.run({**experiment, "method": "fedavg"}, out=tmp_path)
    assert probed(shared) is None
