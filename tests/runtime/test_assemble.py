from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import pytest
from pydantic import Field

from fedstill.core.errors import InputError
from fedstill.core.registry import Registry
from fedstill.core.settings import Settings
from fedstill.methods.fedavg import FedAvg
from fedstill.runtime import experiment
from fedstill.runtime.assemble import (
    assignments,
    make_experiment,
    named_part,
    overlay,
    override,
    override_value,
    parse_value,
)

FEDAVG = {"method": "fedavg"}


def complaint(call: Any, *arguments: Any) -> str:
    with pytest.raises(InputError) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("rounds=3", {**FEDAVG, "rounds": 3}),
        ("rounds = 3", {**FEDAVG, "rounds": 3}),
        ("training.rate=0.01", {**FEDAVG, "training": {"rate": 0.01}}),
        ("rate=0.01", {**FEDAVG, "training": {"rate": 0.01}}),
        ("weights=uniform", {"method": {"name": "fedavg", "weights": "uniform"}}),
        ("method.weights=uniform", {"method": {"name": "fedavg", "weights": "uniform"}}),
        ("dropout=0.5", {**FEDAVG, "dropout": 0.5}),
        ("availability=0.5", {**FEDAVG, "participation": {"name": "everyone", "availability": 0.5}}),
        ("partition=label-skew", {**FEDAVG, "partition": "label-skew"}),
        ("data=npz:a=b.npz", {**FEDAVG, "data": "npz:a=b.npz"}),
        ("clip=null", {**FEDAVG, "training": {"clip": None}}),
        ("keep_optimiser=true", {**FEDAVG, "training": {"keep_optimiser": True}}),
        ("availability=[0.5, 1]", {**FEDAVG, "participation": {"name": "everyone", "availability": [0.5, 1]}}),
    ],
)
def test_a_setting_finds_its_place(assignment: str, expected: Mapping[str, Any]) -> None:
    assert override(FEDAVG, [assignment]) == expected


def test_settings_apply_in_order_and_see_the_parts_chosen_before() -> None:
    result = override(FEDAVG, ["partition=dirichlet", "alpha=0.1", "alpha=0.2", "rate=1", "training.batch=8"])
    assert result == {
        **FEDAVG,
        "partition": {"name": "dirichlet", "alpha": 0.2},
        "training": {"rate": 1, "batch": 8},
    }
    made = make_experiment(result)
    assert (made.partition.settings.alpha, made.training.rate, made.training.batch) == (0.2, 1.0, 8)


def test_what_was_given_is_not_changed() -> None:
    given = {"method": {"name": "fedavg"}, "training": {"rate": 1}}
    before = deepcopy(given)
    override(given, ["training.rate=2", "method.weights=uniform"])
    overlay(given, {"training": {"rate": 3}})
    assert given == before


@pytest.mark.parametrize("assignment", ["rounds", "=3", " =3", ""])
def test_what_is_no_assignment_shows_how_to_write_one(assignment: str) -> None:
    text = complaint(override, FEDAVG, [assignment])
    assert text == f"cannot read the setting {assignment!r}: write key=value, e.g. training.rate=0.01"


def test_whoever_reads_settings_gives_an_example_of_its_own() -> None:
    assert dict(assignments(["a=1", " b.c = x=y "])) == {"a": 1, "b.c": "x=y"}
    text = complaint(lambda: list(assignments(["a=1", "=2"], "query_weight=2")))
    assert text == "cannot read the setting '=2': write key=value, e.g. query_weight=2"


@pytest.mark.parametrize(
    ("assignment", "says"),
    [
        ("round=3", "unknown setting 'round': did you mean 'rounds'?"),
        ("alpha=1", "unknown setting 'alpha': "),
        ("method=fedvag", "unknown method 'fedvag': did you mean 'fedavg'?"),
        ("training.rat=1", "unknown setting 'training.rat': did you mean 'rate'?"),
        ("trainin.rate=1", "unknown setting 'trainin': did you mean 'training'?"),
        ("training.rate.x=1", "training.rate: "),
        ("rate=", "training.rate: input should be a valid number"),
        ("rounds=NaN", "rounds: input should be a finite number"),
        ("rounds=1e999", "rounds: input should be a finite number"),
        ("method.name=5", "an experiment needs a method"),
    ],
)
def test_a_wrong_setting_is_one_sentence_that_names_it(assignment: str, says: str) -> None:
    assert complaint(lambda: make_experiment(override(FEDAVG, [assignment]))).startswith(says)


def test_a_misspelt_setting_of_a_part_finds_its_neighbour() -> None:
    text = complaint(override, FEDAVG, ["weigths=uniform"])
    assert text.startswith("unknown setting 'weigths': did you mean ")
    assert "weights'?" in text


@pytest.fixture
def greedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A method with a setting that training has too."""

    class Options(Settings):
        rate: float = Field(1.0, gt=0)
        spin: int = 1

    class Greedy(FedAvg):
        pass

    Greedy.Options = Options
    registry: Registry = Registry("method")
    registry.register("greedy")(Greedy)
    monkeypatch.setitem(experiment.PARTS, "method", registry)


@pytest.mark.usefixtures("greedy")
def test_a_name_in_two_sections_must_be_spelt_out() -> None:
    given = {"method": "greedy"}
    text = complaint(override, given, ["rate=2"])
    assert text == "the setting 'rate' is ambiguous: write training.rate or method.rate"
    assert override(given, ["spin=2"]) == {"method": {"name": "greedy", "spin": 2}}
    assert override(given, ["method.rate=2"]) == {"method": {"name": "greedy", "rate": 2}}
    assert override(given, ["training.rate=2"]) == {**given, "training": {"rate": 2}}


def test_values_from_python_need_no_spelling() -> None:
    assert override_value(FEDAVG, "rate", 0.5) == {**FEDAVG, "training": {"rate": 0.5}}
    assert override_value(FEDAVG, "data", "12") == {**FEDAVG, "data": "12"}


@pytest.mark.parametrize(
    ("base", "layer", "expected"),
    [
        ({"a": 1}, {"a": 2, "b": 3}, {"a": 2, "b": 3}),
        ({"training": {"rate": 1, "batch": 2}}, {"training": {"rate": 3}}, {"training": {"rate": 3, "batch": 2}}),
        (
            {"partition": {"name": "dirichlet", "alpha": 1}},
            {"partition": {"alpha": 2}},
            {"partition": {"name": "dirichlet", "alpha": 2}},
        ),
        (
            {"partition": {"name": "dirichlet", "alpha": 1}},
            {"partition": {"name": "dirichlet", "min_samples": 2}},
            {"partition": {"name": "dirichlet", "alpha": 1, "min_samples": 2}},
        ),
        (
            {"partition": {"name": "dirichlet", "alpha": 1}},
            {"partition": {"name": "iid"}},
            {"partition": {"name": "iid"}},
        ),
        ({"partition": {"name": "dirichlet", "alpha": 1}}, {"partition": "iid"}, {"partition": {"name": "iid"}}),
        ({"partition": "dirichlet"}, {"partition": {"alpha": 2}}, {"partition": {"name": "dirichlet", "alpha": 2}}),
        ({}, {"participation": {"availability": 0.1}}, {"participation": {"name": "everyone", "availability": 0.1}}),
        (
            {"dropout": 0.1},
            {"dropout": {"when": "before"}},
            {"dropout": {"name": "independent", "rate": 0.1, "when": "before"}},
        ),
    ],
)
def test_layers(base: Mapping[str, Any], layer: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    assert overlay(base, layer) == expected


def test_later_layers_win() -> None:
    assert overlay({"rounds": 1}, {"rounds": 2, "clients": 5}, {"rounds": 3}) == {"rounds": 3, "clients": 5}
    assert overlay({"rounds": 1}) == {"rounds": 1}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("iid", "iid"),
        ("dirichlet:alpha=0.1", {"name": "dirichlet", "alpha": 0.1}),
        ("random:fraction=0.1,availability=0.5", {"name": "random", "fraction": 0.1, "availability": 0.5}),
        ("independent:when=before", {"name": "independent", "when": "before"}),
    ],
)
def test_a_part_on_the_command_line(text: str, expected: object) -> None:
    assert named_part(text) == expected


@pytest.mark.parametrize("text", ["dirichlet:", "dirichlet:alpha", "dirichlet:=1", "dirichlet:alpha=1,"])
def test_a_part_that_cannot_be_read_shows_how_to_write_one(text: str) -> None:
    assert complaint(named_part, text) == f"cannot read {text!r}: write name:key=value, e.g. dirichlet:alpha=0.1"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("3", 3), ("0.5", 0.5), ("1e-3", 0.001), ("true", True), ("null", None), ("[1]", [1]), ("adam", "adam"), ("", "")],
)
def test_values(text: str, expected: object) -> None:
    value = parse_value(text)
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize("alias", ["lr", "learning_rate"])
def test_names_of_the_field_are_accepted_everywhere(alias: str) -> None:
    usual = make_experiment({"method": "fedavg", "training": {"rate": 0.3, "batch": 7}})
    assert make_experiment({"method": "fedavg", "training": {alias: 0.3, "batch_size": 7}}) == usual
    for texts in ([f"{alias}=0.3", "batch_size=7"], [f"training.{alias}=0.3", "training.batch_size=7"]):
        given = override({"method": "fedavg", "training": {"rate": 0.1}}, texts)
        assert make_experiment(given) == usual
    assert overlay({"training": {"rate": 1}}, {"training": {alias: 0.3}}) == {"training": {"rate": 0.3}}


def test_a_setting_under_two_names_is_refused() -> None:
    with pytest.raises(InputError, match=r"lr is another name of training\.rate: leave one of them out"):
        make_experiment({"method": "fedavg", "training": {"rate": 0.3, "lr": 0.1}})
