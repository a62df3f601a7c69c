"""Today's results against the record, bit by bit; and the checker itself, which must be able to fail."""

from __future__ import annotations

import json
import math
from copy import deepcopy
from typing import Any

import pytest

from fedstill.methods.wrappers.choices import mitigations

from . import access
from .digest import numbers, shortened
from .experiments import EXPERIMENTS, REPRESENTATIVE
from .record import RECORDED, differences, recorded, recorded_elsewhere
from .runner import Runner

# Checked in every test run even where nothing is recorded.
QUICK_TWINS = ("scaffold on the wire", "ditto on the wire", "fedgkt with batteries on the wire", "fedavg, interrupted")
# Other settings and yet the same models, by right: FedAvg means statistics as it means weights.
EQUAL_MODELS = {"fedavg, buffers as parameters": "fedavg"}


def cases(names: Any, quick: Any) -> list[Any]:
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow, id=name) for name in names]


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    return Runner(tmp_path_factory.mktemp("bits"))


@pytest.mark.parametrize("name", cases(EXPERIMENTS, REPRESENTATIVE))
def test_results_are_those_that_were_recorded(runner: Runner, name: str) -> None:
    before = recorded()
    if (
        name not in before
    ):  # on another kind of processor or torch there may be nothing to compare with, but it must run
        assert recorded_elsewhere(name), "not recorded yet: python -m tests.bits.record, with the code to compare with"
        assert runner.digests(name)
        return
    now = runner.digests(name)
    assert now == before[name], f"{', '.join(differences(before[name], now))} changed"


TWINS = [name for name, experiment in EXPERIMENTS.items() if "same_as" in experiment]


@pytest.mark.parametrize("name", cases(TWINS, QUICK_TWINS))
def test_neither_engines_nor_interruptions_show_in_results(runner: Runner, name: str) -> None:
    experiment = EXPERIMENTS[name]
    other, now = runner.digests(experiment["same_as"]), runner.digests(name)
    changed = set(differences(other, now)) & set(experiment.get("same_in", {**other, **now}))
    assert sorted(changed) == []


def test_a_rate_that_is_off_by_a_hundred_millionth_is_noticed(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code is changed and no setting is, so that everything but the run's identity must differ."""
    before = runner.digests("fedavg")
    again = shortened(runner.carry_out("fedavg once more", EXPERIMENTS["fedavg"]))
    access.change_rates(monkeypatch, by=1e-8)
    changed = shortened(runner.carry_out("fedavg, changed", EXPERIMENTS["fedavg"]))
    assert differences(before, again) == []
    assert {"sha256", "models", "state", "journal"} <= set(differences(before, changed))
    assert changed["identity"] == before["identity"]


def test_a_setting_that_is_off_by_a_hundred_millionth_is_another_run(runner: Runner) -> None:
    experiment = deepcopy(EXPERIMENTS["fedavg"])
    experiment["settings"]["training"]["rate"] = 0.05  # as it is by default
    as_usual = shortened(runner.carry_out("fedavg, as usual", experiment))
    experiment["settings"]["training"]["rate"] += 1e-8
    changed = shortened(runner.carry_out("fedavg, another rate", experiment))
    assert differences(runner.digests("fedavg"), as_usual) == []
    assert {"sha256", "identity", "models", "journal"} <= set(differences(as_usual, changed))


RECORD = {
    "round": 2,
    "asked": [3, 0, 1],
    "lost": [{"client": 3, "reason": "dropped"}],
    "loss": {"ce": 0.1 + 0.2},
    "metrics": {"accuracy": 0.5, "confusion": [[1, 2], [3, 4]]},
    "finite": True,
    "skipped": None,
}


def test_names_and_sentences_do_not_count() -> None:
    renamed = {
        "number": 2,
        "chosen": [3, 0, 1],
        "missing": [{"who": 3, "why": "it did not answer"}],
        "terms": {"cross_entropy": 0.1 + 0.2},
        "scores": {"share": 0.5},
        "table": [[1, 2], [3, 4]],
        "sound": True,
        "left_out": None,
        "seconds": 1.5,
        "wall_time": {"evaluation": 0.1},
    }
    assert numbers(renamed) == numbers(RECORD)


@pytest.mark.parametrize(
    "change",
    [
        {"round": 3},
        {"asked": [0, 3, 1]},
        {"lost": [{"client": 2, "reason": "dropped"}]},
        {"lost": []},
        {"loss": {"ce": math.nextafter(0.1 + 0.2, 1)}},
        {"metrics": {"accuracy": 0.5, "confusion": [[1, 3], [2, 4]]}},
        {"finite": False},
        {"more": 0},
    ],
    ids=str,
)
def test_every_number_counts(change: dict[str, Any]) -> None:
    assert numbers({**RECORD, **change}) != numbers(RECORD)


def test_what_belongs_to_which_client_counts() -> None:
    assert numbers({"0": {"recall": 0.5}, "1": {"recall": 0.75}}) != numbers(
        {"0": {"recall": 0.75}, "1": {"recall": 0.5}}
    )


def named_in(value: Any) -> set[str]:
    """Every text in an experiment."""
    if isinstance(value, dict):
        return set().union(*map(named_in, value.values()))
    return set().union(*map(named_in, value)) if isinstance(value, list | tuple) else {str(value)}


@pytest.mark.parametrize(
    "shelf", ["methods", "objectives", "attacks", "privacy", "participation", "dropouts", "mitigations", "engines"]
)
def test_everything_that_can_be_chosen_is_in_an_experiment(shelf: str) -> None:
    """Experiments use the first names of parts, so that the tree that was recorded can run them too."""
    usual = {"none", "in-process"}
    chosen = {mitigations.current(name) for name in named_in(EXPERIMENTS)}
    assert sorted(registered_at_the_start[shelf] - chosen - usual) == []


registered_at_the_start = access.registered()  # before other tests add parts of their own


@pytest.mark.parametrize("where", list(json.loads(RECORDED.read_text())) if RECORDED.exists() else [])
def test_the_record_is_complete_and_every_experiment_has_models_of_its_own(where: str) -> None:
    """Complete over all machines: what changes on purpose can be recorded on the machine at hand only."""
    records = json.loads(RECORDED.read_text())
    known = records[where]
    assert sorted({name for record in records.values() for name in record}) == sorted(EXPERIMENTS)
    twins = {name: EXPERIMENTS[name]["same_as"] for name in TWINS} | EQUAL_MODELS
    models = [each["sha256"] for name, each in known.items() if name not in twins and "sha256" in each]
    assert len(set(models)) == len(models)
    both = {name: other for name, other in twins.items() if name in known and other in known}
    assert len(both) > len(twins) / 2
    assert all(known[name]["sha256"] == known[other]["sha256"] for name, other in both.items())
