from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from fedstill.cli.app import app
from fedstill.cli.flags import parse_queries
from fedstill.deploy.site_registry import for_sites
from fedstill.report.command import command, missing_reference, reference_sentence
from fedstill.runtime.assemble import make_experiment, named_part, overlay, override
from fedstill.runtime.experiment import Experiment
from fedstill.runtime.plan import make_plan
from fedstill.runtime.recipes import given_by
from fedstill.runtime.reference_runs import LOCAL_ONLY, Reference, reference_experiment

EXPERIMENTS: list[dict[str, Any]] = [
    {"method": "fedavg"},
    {"method": "centralised", "seed": 3, "rounds": 20},
    {"method": "centralised", "training": {"epochs": 3, "keep_optimiser": False}},
    {"method": {"name": "fedavg", "weights": "uniform"}, "data": "npz:my data.npz", "model": "mlp"},
    {"method": "local-only", "partition": {"name": "dirichlet", "alpha": 0.1, "min_samples": 2}, "clients": 20},
    {"method": "fedavg", "partition": "dirichlet"},
    {"method": "fedavg", "partition": {"name": "pathological", "classes_per_client": 3}},
    {"method": "fedavg", "participation": {"name": "random", "fraction": 0.5}, "dropout": 0.3},
    {"method": "fedavg", "dropout": {"name": "independent", "rate": 0.2, "when": "before", "replace": True}},
    {"method": "fedavg", "fleet": {}, "clusters": {}, "participation": {"name": "clustered", "number": 2}},
    {"method": "fedavg", "fleet": {"background": 0.3}, "clusters": {"number": 3}, "mitigation": "mimic"},
    {"method": "fedavg", "dropout": 0.25},
    {"method": "fedavg", "clients": 2, "participation": {"name": "everyone", "availability": [0.5, 1.0]}},
    {"method": "fedavg", "clients": 2, "participation": {"name": "random", "number": 1, "availability": [0.5, 1.0]}},
    {"method": "fedavg", "data": "7", "model": "null"},
    {"method": "qkt", "queries": {}},
    {"method": {"name": "qkt", "query_weight": 2.0}, "queries": {"classes": "multi", "under": 10}},
    {"method": "fedavg", "queries": {"by_hand": {3: [7, 8], 0: [1]}}},
    {
        "method": "fedavg",
        "training": {"optimiser": "adamw", "rate": 1e-05, "clip": 1.5, "schedule": "cosine", "batch": 7},
        "validation": 0.1,
        "evaluate_every": 2,
        "min_replies": 3,
        "norm_limit": 12.5,
    },
]


def parsed(text: str) -> Experiment:
    """The experiment a command means, by the rules the command line follows."""
    _, _, name, *words = shlex.split(text)
    given: Mapping[str, Any] = given_by(name)
    settings = []
    for option, value in zip(words[::2], words[1::2], strict=True):
        key = option.removeprefix("--")
        if key == "set":
            settings.append(value)
        elif key == "query":
            before = given.get("queries", {"by_hand": {}})["by_hand"]
            given = overlay(given, {"queries": {"by_hand": {**before, **parse_queries([value])}}})
        elif key in ("partition", "participation"):
            given = overlay(given, {key: named_part(value)})
        else:
            given = overlay(given, {key: value if key in ("data", "model") else int(value)})
    return make_experiment(override(given, settings))


@pytest.mark.parametrize("given", EXPERIMENTS, ids=json.dumps)
def test_the_command_means_the_same_experiment(given: dict[str, Any]) -> None:
    experiment = make_experiment(given)
    assert parsed(command(experiment)) == experiment


@pytest.mark.parametrize("given", [EXPERIMENTS[7], EXPERIMENTS[11], EXPERIMENTS[13]], ids=json.dumps)
def test_the_real_command_line_reads_it_too(given: dict[str, Any]) -> None:
    experiment = make_plan(make_experiment(given)).experiment
    answer = CliRunner().invoke(app, [*shlex.split(command(experiment))[1:], "--dry-run", "--json"])
    assert answer.exit_code == 0, answer.output
    assert json.loads(answer.stdout)["experiment"] == experiment.model_dump(mode="json")


def test_of_an_experiment_that_was_run_only_choices_are_said() -> None:
    plain = make_plan(make_experiment({"method": "fedavg"})).experiment
    assert command(plain) == "fedstill run fedavg"
    other = make_plan(make_experiment({"method": "fedavg", "model": "resnet8"})).experiment
    assert command(other) == "fedstill run fedavg --model resnet8"
    cloud = make_plan(make_experiment({"method": "fedavg", "data": "heads", "points": 64})).experiment
    assert command(cloud) == "fedstill run fedavg --data heads --set points=64"


def test_nothing_is_said_that_goes_without_saying() -> None:
    assert command(make_experiment({"method": "fedavg"})) == "fedstill run fedavg"
    assert command(make_experiment({"method": "centralised", "rounds": 12})) == "fedstill run centralised --rounds 12"
    assert (
        command(make_experiment({"method": "fedavg", "training": {"rate": 0.01}, "partition": "label-skew"}))
        == "fedstill run fedavg --partition label-skew --set training.rate=0.01"
    )


def test_a_shell_gets_odd_names_in_one_piece() -> None:
    assert "--data 'npz:my data.npz'" in command(make_experiment({"method": "fedavg", "data": "npz:my data.npz"}))


@pytest.mark.parametrize(("data", "deployed"), [("trial", True), ("digits", False), ("npz:trial.npz", False)])
def test_no_command_finds_the_data_of_a_deployment(data: str, deployed: bool) -> None:
    """It goes by the deployment's name, and is at its sites."""
    given = {"method": "fedavg", "data": data, "partition": "sites", "evaluation": "on-site", "clients": 2}
    wanted = reference_experiment(make_experiment(given))
    assert wanted is not None
    run: Any = SimpleNamespace(reference=Reference(LOCAL_ONLY, wanted), path=Path("runs/a"))
    again = missing_reference(run)
    assert (again is None) == deployed
    what = "what clients reach alone is not known"
    assert reference_sentence(run) == (what if again is None else f"{what}; to find out: {again}")


def test_a_deployment_is_repeated_at_its_server() -> None:
    """Not with `fedstill run`, which does not find its data; what `deploy server` fixes is left out."""
    wanted = for_sites(make_experiment({"method": {"name": "fedprox", "mu": 0.1}, "rounds": 4, "seed": 3}), 2, "trial")
    said = command(wanted)
    assert said == "fedstill deploy server SERVER fedprox --rounds 4 --seed 3 --set method.mu=0.1"
    again = said.replace("deploy server SERVER", "run")
    assert for_sites(parsed(again), 2, "trial") == wanted
