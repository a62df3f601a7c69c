"""What a run is held against: found beside it by its identity, named with its figure, or with the command for it."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import fedstill
from fedstill.cli.app import app
from fedstill.report.command import missing_reference, reference_sentence
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.reference_runs import Reference, reference_experiment

SMALL = {"data": "digits", "model": "mlp", "clients": 2, "rounds": 1}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, fedstill.Run]:
    """A federated run, and local-only runs that differ from it in nothing else, and in their seed."""
    folder = tmp_path_factory.mktemp("runs")
    return {
        "federated": fedstill.run("fedavg", **SMALL, out=folder),
        "alone": fedstill.run("local-only", **SMALL, out=folder),
        "another": fedstill.run("fedavg", **SMALL, seed=1, out=folder),
    }


def held(**changes: Any) -> Reference:
    return Reference("local-only", make_experiment({"method": "local-only"}), **changes)


def test_a_federated_run_is_held_against_its_clients_alone(runs: dict[str, fedstill.Run]) -> None:
    found = runs["federated"].reference
    assert found is not None
    assert (found.kind, found.folder) == ("local-only", runs["alone"].path)
    assert found.accuracy == runs["alone"].accuracy
    assert "what clients reach alone (local-only): " in str(reference_sentence(runs["federated"]))
    assert runs["alone"].reference is None
    assert runs["federated"].to_dict()["reference"]["run"] == str(runs["alone"].path)


def test_a_run_with_another_seed_is_no_reference(runs: dict[str, fedstill.Run]) -> None:
    found = runs["another"].reference
    assert found is not None
    assert found.folder is None


def test_the_command_that_is_named_makes_the_reference(runs: dict[str, fedstill.Run], tmp_path: Path) -> None:
    run = runs["another"]
    named = missing_reference(run)
    assert named == f"fedstill run local-only --model mlp --clients 2 --rounds 1 --seed 1 --out {run.path.parent}"
    assert f"what clients reach alone is not known; to find out: {named}" == reference_sentence(run)
    words = shlex.split(named)[1:]
    planned = CliRunner().invoke(app, [*words, "--dry-run", "--json"])
    assert planned.exit_code == 0, planned.output
    reference = run.reference
    assert reference is not None
    assert json.loads(planned.stdout)["experiment"] == reference.experiment.model_dump(mode="json")


def test_a_student_is_held_against_one_without_a_teacher(runs: dict[str, fedstill.Run]) -> None:
    out = runs["federated"].path.parent
    given = {"method": {"name": "distill", "same_model": True}, "teachers": [{"run": str(runs["federated"].path)}]}
    student = fedstill.run({**given, "model": "mlp", "rounds": 1}, out=out)
    named = missing_reference(student)
    assert named is not None
    assert "objective.name=labels-only" in named
    made = CliRunner().invoke(app, [*shlex.split(named)[1:], "--quiet"])
    assert made.exit_code == 0, made.output
    found = student.reference
    assert found is not None
    assert found.accuracy is not None
    assert found.kind == "labels-only"
    assert missing_reference(student) is None


@pytest.mark.parametrize(
    "given",
    [
        {"method": "local-only"},
        {"method": "centralised"},
        {"method": "fedavg", "clients": 1},
        {"method": "distill", "objective": "labels-only"},
        {"method": {"name": "distill", "labels": "withhold"}, "teachers": [{"run": "somewhere"}]},
    ],
)
def test_some_runs_have_no_reference(given: dict[str, Any]) -> None:
    assert reference_experiment(make_experiment(given)) is None


def test_a_reference_has_neither_attack_nor_privacy() -> None:
    given = {"method": "krum", "clients": 5, "attack": {"name": "sign-flip"}, "norm_limit": 3.0, "seed": 7}
    wanted = reference_experiment(make_experiment(given))
    assert wanted is not None
    assert (wanted.method.name, wanted.attack.name, wanted.norm_limit) == ("local-only", "none", None)
    assert (wanted.seed, wanted.clients) == (7, 5)


def test_a_caution_needs_a_lead_within_the_noise() -> None:
    reference = held(folder=Path("runs/alone"), accuracy=0.80)
    # Two standard errors on 1,000 samples: 2 * sqrt((0.82 * 0.18 + 0.8 * 0.2) / 1000) = 3.5 points.
    said = str(reference.caution(0.82, 1000)).replace("\u00a0", " ")
    assert "not ahead of what clients reach alone, 80.00 % (local-only), by more than the noise" in said
    assert "(3.5 points)" in said
    assert reference.caution(0.84, 1000) is None
    assert reference.caution(0.82, 100_000) is None
    assert reference.caution(0.70, 1000) is not None
    assert reference.caution(0.82, 0) is None  # the number of test samples is not known
    assert held().caution(0.82, 1000) is None


def test_a_stale_run_is_held_against_nothing(runs: dict[str, fedstill.Run], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedstill.runtime.reference_runs.stale_parts", lambda config: ("it is stale",))
    assert runs["federated"].reference is None


def test_an_unfinished_reference_counts_as_missing(runs: dict[str, fedstill.Run], tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    shutil.copytree(runs["federated"].path.parent, folder)
    (folder / runs["alone"].path.name / "result.json").unlink()
    found = fedstill.Run(folder / runs["federated"].path.name).reference
    assert found is not None
    assert found.accuracy is None
