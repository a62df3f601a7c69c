from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import ValidationError

from fedstill.core.errors import InputError
from fedstill.core.training import Training
from fedstill.deploy.site_registry import experiment_digest
from fedstill.participation.policies import Everyone
from fedstill.runtime import experiment
from fedstill.runtime.assemble import make_experiment, override
from fedstill.runtime.experiment import BEHAVIOUR, Experiment, experiment_class


def made(**given: Any) -> Experiment:
    return make_experiment({"method": "fedavg", **given})


def complaint(**given: Any) -> str:
    with pytest.raises(InputError) as caught:
        made(**given)
    text = str(caught.value)
    assert "\n" not in text
    assert caught.value.exit_code == 2
    return text


def test_defaults() -> None:
    given = made()
    assert (given.data, given.clients, given.rounds, given.seed, given.model) == ("digits", 10, 10, 0, None)
    assert (given.partition.name, given.participation.name) == ("iid", "everyone")
    assert given.training == Training()


@pytest.mark.parametrize(
    ("given", "starts"),
    [
        ({"rounds": 0}, "rounds: input should be greater than or equal to 1 (got 0)"),
        ({"rounds": "many"}, "rounds: input should be a valid integer"),
        ({"rounds": 1.5}, "rounds: input should be a valid integer"),
        ({"rounds": [1]}, "rounds: input should be a valid integer"),
        ({"clients": 0}, "clients: input should be greater than or equal to 1 (got 0)"),
        ({"clients": 10**8}, "clients: input should be less than or equal to 10000000"),
        ({"seed": -1}, "seed: input should be greater than or equal to 0 (got -1)"),
        ({"seed": 2**63}, "seed: input should be less than"),
        ({"data": ""}, "data: string should have at least 1 character"),
        ({"data": 5}, "data: input should be a valid string (got 5)"),
        ({"model": 5}, "model: input should be a valid string (got 5)"),
        ({"validation": 1}, "validation: input should be less than 1 (got 1)"),
        ({"validation": -0.1}, "validation: input should be greater than or equal to 0"),
        ({"evaluate_every": 0}, "evaluate_every: "),
        ({"min_replies": 0}, "min_replies: "),
        ({"norm_limit": 0}, "norm_limit: input should be greater than 0 (got 0)"),
        ({"norm_limit": float("nan")}, "norm_limit: input should be a finite number"),
        ({"training": 5}, "training: "),
        ({"training": None}, "training: "),
        ({"training": {"rate": 0}}, "training.rate: input should be greater than 0 (got 0)"),
        ({"training": {"rate": "fast"}}, "training.rate: input should be a valid number"),
        ({"training": {"optimiser": "lion"}}, "training.optimiser: unknown choice 'lion': known: adam, adamw, sgd"),
        ({"training": {"optimiser": "a\nb"}}, "training.optimiser: "),
        ({"training": {"clip": -1}}, "training.clip: input should be greater than 0"),
        ({"partition": {"name": "dirichlet", "alpha": -1}}, "partition.alpha: input should be greater than 0"),
        ({"participation": {"name": "random"}}, "participation: give either fraction or number"),
        ({"participation": {"name": "random", "fraction": 2}}, "participation.fraction: input should be less than"),
        ({"participation": {"name": "everyone", "availability": 2}}, "participation.availability"),
        ({"dropout": {"name": "independent", "when": "now"}}, "dropout.when: unknown choice 'now'"),
        (
            {"method": {"name": "fedavg", "weights": "big"}},
            "method.weights: unknown choice 'big': known: samples, uniform",
        ),
        ({"partition": 5}, "partition needs the name of a partition: "),
        ({"partition": {"name": "iid", "x\ny": 1}}, "unknown setting 'partition.x\\ny'"),
    ],
)
def test_what_is_wrong_is_one_sentence_that_begins_with_the_field(given: Mapping[str, Any], starts: str) -> None:
    assert complaint(**given).startswith(starts)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"round": 3}, "unknown setting 'round': did you mean 'rounds'?"),
        ({"trainin": {}}, "unknown setting 'trainin': did you mean 'training'?"),
        ({"training": {"rat": 1}}, "unknown setting 'training.rat': did you mean 'rate'?"),
        ({"fleet": {"wifi": {"upp": 3}}}, "unknown setting 'fleet.wifi.upp': did you mean 'up'?"),
        ({"fleet": {"tiers": {"low": {"wats": 3}}}}, "unknown setting 'fleet.tiers.low.wats': did you mean 'watts'?"),
        ({"training": {"optimizer": "sgd"}}, "unknown setting 'training.optimizer': did you mean 'optimiser'?"),
        ({"method": {"name": "fedavg", "weight": 1}}, "unknown setting 'method.weight': did you mean 'weights'?"),
        ({"method": "fedvag"}, "unknown method 'fedvag': did you mean 'fedavg'?"),
        ({"partition": "dirichlt"}, "unknown partition 'dirichlt': did you mean 'dirichlet'?"),
        ({"partition": {"name": "dirichlet", "alfa": 1}}, "unknown setting 'partition.alfa': did you mean 'alpha'?"),
        ({"participation": "randm"}, "unknown participation policy 'randm': did you mean 'random'?"),
        (
            {"participation": {"name": "random", "fractoin": 0.1}},
            "unknown setting 'participation.fractoin': did you mean 'fraction'?",
        ),
    ],
)
def test_the_nearest_name_is_suggested(given: Mapping[str, Any], says: str) -> None:
    assert complaint(**given).startswith(says)


@pytest.mark.parametrize("given", [{}, {"method": None}, {"method": 5}, {"method": {}}, {"method": {"name": 3}}])
def test_an_experiment_without_a_method_says_which_there_are(given: Mapping[str, Any]) -> None:
    with pytest.raises(InputError, match=r"^an experiment needs a method: ") as caught:
        make_experiment(given)
    assert re.search(r"known: (\S+, )+\S+ and \d+ more$", str(caught.value))
    assert "\n" not in str(caught.value)


BASE: dict[str, Any] = {
    "method": {"name": "fedavg", "weights": "samples"},
    "data": "digits",
    "model": "cnn",
    "partition": {"name": "dirichlet", "alpha": 0.5, "min_samples": 1, "tries": 100},
    "participation": {"name": "random", "fraction": 0.5, "number": None, "availability": 0.9},
    "dropout": {"name": "independent", "rate": 0.1},
    "clients": 10,
    "rounds": 10,
    "seed": 0,
    "training": {"epochs": 3, "batch": 16},
    "validation": 0.1,
    "evaluation": "central",
    "evaluate_every": 1,
    "min_replies": 1,
    "norm_limit": 100.0,
}
OTHERWISE: dict[str, Any] = {
    "method": "local-only",
    "method.weights": "uniform",
    "method.buffers": "recalibrate",
    "method.recalibration": "layer-by-layer",
    "data": "mnist",
    "model": "mlp",
    "models": {"cnn": 4, "mlp": 6},
    "points": 256,
    "queries": {"under": 5},
    "augmentation": "points",
    "partition": "iid",
    "partition.alpha": 0.6,
    "partition.min_samples": 2,
    "partition.tries": 99,
    "participation": "everyone",
    "participation.availability": [0.9] * 10,
    "dropout.replace": True,
    "dropout.replacements_can_drop": True,
    "dropout.of_cohort": True,
    "dropout.rate": 0.2,
    "dropout.when": "before",
    "fleet": {"background": 0.4},
    "clusters": {"number": 3},
    "mitigation": "friend-substitution",
    "participation.fraction": 0.6,
    "participation.number": 5,
    "attack": "sign-flip",
    "privacy": "client-level",
    "secure": True,
    "clients": 11,
    "objective": "vanilla",
    "teachers": [{"run": "somewhere"}],
    "rounds": 11,
    "seed": 1,
    "training.epochs": 4,
    "training.batch": 17,
    "training.optimiser": "adam",
    "training.rate": 0.06,
    "training.momentum": 0.8,
    "training.weight_decay": 0.1,
    "training.clip": 1.0,
    "training.schedule": "cosine",
    "training.step_every": 21,
    "training.step_factor": 0.6,
    "training.keep_optimiser": True,
    "training.warmup": 3,
    "training.encoder_rate": 0.5,
    "training.scheduler_step": "epoch",
    "training.loss": "focal-0a1b2c",
    "training.local_update": "mine-0a1b2c",
    "training.precision": "bf16",
    "training.class_weights": "balanced",
    "initial": {"file": "encoder.safetensors"},
    "detection": {"protocol": "strict"},
    "validation": 0.2,
    "evaluation": "on-site",
    "check_statistics": True,
    "select_by": "auc",
    "site_metrics": True,
    "evaluate_every": 2,
    "min_replies": 2,
    "norm_limit": 200.0,
}


def changed(path: str, value: Any) -> dict[str, Any]:
    section, _, name = path.partition(".")
    if not name:
        return {**BASE, section: value}
    extra = {"fraction": None} if path == "participation.number" else {}
    return {**BASE, section: {**BASE[section], **extra, name: value}}


def test_every_field_is_covered_by_the_test_below() -> None:
    given = make_experiment(BASE)
    fields = set()
    for name in experiment_class().model_fields:
        value = getattr(given, name)
        inner = value.settings if hasattr(value, "settings") else value
        nested = {f"{name}.{field}" for field in getattr(type(inner), "model_fields", {})}
        fields |= (nested | {name}) if name in ("method", "partition", "participation") else (nested or {name})
    assert fields == set(OTHERWISE)


@pytest.mark.parametrize("path", OTHERWISE)
def test_every_field_is_part_of_a_runs_identity(path: str) -> None:
    assert make_experiment(BASE).digest("data") != make_experiment(changed(path, OTHERWISE[path])).digest("data")


def test_the_digest_is_of_configuration_data_and_behaviour(monkeypatch: pytest.MonkeyPatch) -> None:
    given = make_experiment(BASE)
    first = given.digest("data")
    assert len(first) == 16
    assert int(first, 16) >= 0
    assert first == make_experiment(BASE).digest("data")
    assert first != given.digest("other data")
    assert first != given.digest("data", rounds=False) == make_experiment({**BASE, "rounds": 99}).digest("data", False)
    monkeypatch.setattr(experiment, "BEHAVIOUR", BEHAVIOUR + 1)
    assert first != given.digest("data")


def test_identity_does_not_depend_on_the_order_or_the_spelling() -> None:
    def backwards(value: Any) -> Any:
        return {key: backwards(value[key]) for key in reversed(value)} if isinstance(value, dict) else value

    assert make_experiment(backwards(BASE)).digest("d") == make_experiment(BASE).digest("d")
    bare, spelt = made(), made(method={"name": "fedavg", "weights": "samples"}, partition={"name": "iid"}, rounds="10")
    assert bare.digest("d") == spelt.digest("d")
    assert made(norm_limit=1).digest("d") == made(norm_limit=1.0).digest("d")


@pytest.mark.parametrize(
    "given",
    [
        BASE,
        {"method": "centralised"},
        {"method": "local-only", "participation": {"name": "random", "number": 3}},
        {"method": "fedavg", "clients": 3, "participation": {"name": "everyone", "availability": [0.1, 0.2, 0.3]}},
        {"method": "fedavg", "partition": {"name": "pathological", "classes_per_client": 3}},
    ],
)
def test_what_is_written_down_is_read_back(given: Mapping[str, Any]) -> None:
    first = make_experiment(given)
    written = json.loads(json.dumps(first.model_dump(mode="json")))
    again = make_experiment(written)
    assert again == first
    assert again.digest("d") == first.digest("d")
    assert make_experiment(first.model_dump()) == first


def test_a_part_is_written_with_its_settings_beside_its_name() -> None:
    written = make_experiment(BASE).model_dump(mode="json")
    assert written["partition"] == {"name": "dirichlet", "alpha": 0.5, "min_samples": 1, "tries": 100}
    assert written["method"] == {
        "name": "fedavg",
        "buffers": "average",
        "recalibration": "one-pass",
        "weights": "samples",
    }


def test_pooled_methods_have_one_client_and_nothing_to_choose() -> None:
    given = make_experiment(
        {
            "method": "centralised",
            "clients": 20,
            "partition": {"name": "dirichlet", "alpha": 0.1},
            "participation": {"name": "random", "fraction": 0.1},
        }
    )
    assert (given.clients, given.partition.name, given.participation.name) == (1, "pooled", "everyone")
    assert given.digest("d") == make_experiment({"method": "centralised"}).digest("d")


def test_a_methods_defaults_lie_below_what_is_given() -> None:
    given = make_experiment({"method": "centralised", "training": {"rate": 0.01, "epochs": 2}})
    assert (given.training.rate, given.training.epochs, given.training.keep_optimiser) == (0.01, 2, True)


def test_parts_that_are_their_own_settings_arrive_as_such() -> None:
    given = made(participation={"name": "everyone", "availability": 0.5})
    assert given.participation.settings == Everyone(availability=0.5)


def test_an_experiment_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        made().rounds = 3


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"training": {"batch": 1}}, "training.batch: input should be greater than or equal to 2 (got 1)"),
        ({"participation": {"name": "everyone", "availability": 2}}, "participation.availability: "),
        ({"participation": {"name": "everyone", "availability": [0.5, 2]}}, "participation.availability.1: "),
        ({"partition": {"name": "iid", "alpha": 1}}, "'partition.alpha': this part has no settings"),
    ],
)
def test_sentences_name_the_field_and_nothing_else(given: dict[str, object], says: str) -> None:
    with pytest.raises(InputError) as told:
        make_experiment({"method": "fedavg", **given})
    assert says in str(told.value)
    assert "constrained" not in str(told.value)


# Identities of runs and digests of deployments, as releases computed them that knew these names only.
RECORDED: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    "mitigation": (
        {"method": "fedavg", "cure": "mimic", "dropout": 0.2},
        {"method": "fedavg", "mitigation": "mimic", "dropout": 0.2},
        "c3e268585e9c7888",
        "f784f9ee1c805de8",
    ),
    "friend substitution": (
        {"method": "scaffold", "cure": {"name": "friends"}},
        {"method": "scaffold", "mitigation": "friend-substitution"},
        "bf0bfb5a7e94a2d7",
        "7ec6bd1d8295e921",
    ),
    "polled losses": (
        {"method": "fedavg", "participation": {"name": "power-of-choice", "number": 3, "losses": "ask"}},
        {"method": "fedavg", "participation": {"name": "power-of-choice", "number": 3, "losses": "poll"}},
        "4ba7384a2bf2085d",
        "8cb2d800f1b7397e",
    ),
    "nothing renamed": ({"method": "fedavg"}, {"method": "fedavg"}, "006de4d233a7e0fd", "2cbba18d2018c98a"),
}


@pytest.mark.parametrize("name", RECORDED)
def test_former_names_are_read_and_identities_stay(name: str) -> None:
    """A run under the new names is the run of the old ones; its configuration has the new ones."""
    former, now, identity, digest = RECORDED[name]
    experiments = [make_experiment(former), make_experiment(now)]
    assert experiments[0] == experiments[1]
    assert "cure" not in experiments[0].model_dump(mode="json")
    assert {one.digest("data") for one in experiments} == {identity}
    assert {experiment_digest(one) for one in experiments} == {digest}


def test_a_written_configuration_with_former_names_is_read() -> None:
    """As in `config.json` of an earlier release, where every section is spelt out."""
    now = make_experiment({"method": "fedavg", "mitigation": "friend-substitution"})
    written = now.model_dump(mode="json")
    written["cure"] = {**written.pop("mitigation"), "name": "friends"}
    assert experiment_class().model_validate(written) == now


def test_a_setting_under_both_names_is_refused() -> None:
    with pytest.raises(InputError, match="cure is another name of mitigation, which is set too: leave one of them out"):
        make_experiment({"method": "fedavg", "cure": "mimic", "mitigation": "none"})


@pytest.mark.parametrize("text", ["cure=friends", "cure.name=friends", "mitigation=friends"])
def test_former_names_on_the_command_line(text: str) -> None:
    given = override({"method": "fedavg", "mitigation": "mimic"}, [text])
    assert make_experiment(given).mitigation.name == "friend-substitution"
