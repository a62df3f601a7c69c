"""The protocol as a setting: refused for classifiers, in identities only where it is set, and used by runs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from fedstill.cli.app import app
from fedstill.core.errors import InputError
from fedstill.core.protocols import Engine
from fedstill.detection.detection_section import MAIN
from fedstill.detection.report_facts import judged
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.plan import make_plan
from fedstill.runtime.result import Run
from fedstill.runtime.run import execute

from .test_distillation_runs import bundle


@pytest.fixture(scope="module")
def runs(engines: dict[str, Engine], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    out = tmp_path_factory.mktemp("runs")

    def run(engine: str = "in-process", **more: Any) -> Run:
        given = {"method": "fedavg", "model": "small-detr3d-lite", "data": "few-rooms", "clients": 2, "rounds": 1}
        plan = make_plan(make_experiment({**given, "training": {"batch": 4, "epochs": 2}, **more}), bundle=bundle())
        return Run(execute(plan, engines[engine], out).path)

    return {
        "published": run(),
        "strict": run("wire", detection={"protocol": "strict"}),
        "on-site": run("wire", evaluation="on-site"),
    }


def test_the_other_protocol_is_recorded_beside_the_chosen_one(runs: dict[str, Run]) -> None:
    one, two = (runs[name].journal[-1].metrics for name in ("published", "strict"))
    assert runs["published"].sha256 == runs["strict"].sha256  # the same weights: only the evaluation differs
    assert runs["published"].path != runs["strict"].path
    for name in MAIN:
        assert one[name] == two[f"published_{name}"]
        assert two[name] == one[f"strict_{name}"]
    assert one["accuracy"] == one["map_25"]
    assert one["ar_25"] >= two["ar_25"]
    assert runs["strict"].task.protocol == "strict"


def test_sites_find_the_same_recall_and_nearly_the_same_precision(runs: dict[str, Run]) -> None:
    one, two = (runs[name].journal[-1].metrics for name in ("published", "on-site"))
    assert runs["published"].sha256 == runs["on-site"].sha256
    for metric in (*MAIN, *(f"strict_{name}" for name in MAIN)):
        assert two[metric] == pytest.approx(one[metric], abs=0 if "ar_" in metric else 2e-3)


@pytest.mark.parametrize("protocol", ["published", "strict"])
def test_figures_are_of_the_protocol_of_the_run(protocol: str, runs: dict[str, Run]) -> None:
    found = judged("one", 0, runs[protocol])
    metrics = runs[protocol].journal[-1].metrics
    assert found is not None
    assert found.mean(0) == pytest.approx(metrics["map_25"], abs=1e-4)  # boxes are stored to a tenth of a millimetre
    assert found.mean(1) == pytest.approx(metrics["map_50"], abs=1e-4)


def test_show_has_both(runs: dict[str, Run]) -> None:
    shown = CliRunner().invoke(app, ["show", str(runs["published"].path)])
    assert shown.exit_code == 0, shown.output
    assert "last, strict" in shown.output
    assert "last, published" not in shown.output
    printed = CliRunner().invoke(app, ["show", str(runs["strict"].path), "--json"])
    assert "published_map_25" in json.loads(printed.output)["journal"][-1]["evaluation"]["test"]


def test_a_classifier_has_no_protocol() -> None:
    given = {"method": "fedavg", "data": "digits", "detection": {"protocol": "strict"}}
    with pytest.raises(InputError, match="detection is for models of detection, and cnn is none: leave it out"):
        make_plan(make_experiment(given))
    with pytest.raises(InputError, match=r"detection\.protocol: unknown choice 'lenient': known: published, strict"):
        make_experiment({**given, "detection": {"protocol": "lenient"}})


def test_identities_are_those_of_releases_without_the_section() -> None:
    plain = make_experiment({"method": "fedavg"})
    assert "detection" not in plain.hashed()
    assert make_experiment({"method": "fedavg", "detection": {"protocol": "strict"}}).hashed()["detection"] == {
        "protocol": "strict"
    }
