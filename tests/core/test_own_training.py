"""Optimisers, losses and local updates of the user's own: by name, and as objects that get a name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from fedstill.core.errors import InputError
from fedstill.core.own_training import OWN, check_choice, loss_on, losses, optimisers, with_names
from fedstill.core.passed_objects import is_passed
from fedstill.core.training import Training
from fedstill.runtime.assemble import make_experiment


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    before = {setting: set(registry.names()) for setting, registry in OWN.items()}
    yield
    for setting, registry in OWN.items():
        for name in set(registry.names()) - before[setting]:
            registry.forget(name)


def test_objects_get_names_by_their_content() -> None:
    def named(weight: float) -> str:
        return str(with_names({"loss": nn.CrossEntropyLoss(weight=torch.tensor([1.0, weight]))})["loss"])

    assert named(2.0) == named(2.0) != named(3.0)
    assert named(2.0).startswith("CrossEntropyLoss-")
    assert is_passed(named(2.0))
    assert with_names({"training": {"optimizer": lambda given: None}})["training"].keys() == {"optimiser"}


def test_a_module_that_is_changed_later_is_another_loss() -> None:
    module = nn.CrossEntropyLoss(weight=torch.ones(2))
    name = with_names({"loss": module})["loss"]
    module.weight.fill_(5)
    assert with_names({"loss": module})["loss"] != name
    logits, labels = torch.tensor([[0.0, 1.0], [2.0, 0.0]]), torch.tensor([0, 1])
    assert loss_on(name, "cpu")(logits, labels) == nn.CrossEntropyLoss()(logits, labels)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"loss": 7}, "loss is a name, or a function of (logits, labels) that returns a scalar, not an object of type"),
        ({"optimizer": "sgd", "optimiser": "sgd"}, "optimizer is another name of optimiser"),
    ],
)
def test_what_is_no_function_is_refused(given: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError) as refused:
        with_names(given)
    assert sentence in str(refused.value)


def test_names_are_checked_and_those_of_objects_only_where_they_are_used() -> None:
    losses.register("focal")(nn.CrossEntropyLoss())
    assert Training(loss="focal").own() == {"loss": "focal"}
    with pytest.raises(InputError, match=r"training.loss: unknown choice 'focl': did you mean 'focal'\? Known: focal"):
        make_experiment({"method": "fedavg", "training": {"loss": "focl"}})
    finished = make_experiment({"method": "fedavg", "training": {"loss": "Focal-0a1b2c"}})
    assert finished.training.loss == "Focal-0a1b2c"
    with pytest.raises(InputError, match="was passed as an object in another Python process"):
        check_choice("loss", "Focal-0a1b2c")
    with pytest.raises(InputError, match="'sgd' is the name of a built-in optimiser: choose another name"):
        optimisers.register("sgd")


def test_training_that_uses_nothing_new_has_the_identity_it_always_had() -> None:
    assert Training().hashed().keys() == Training.model_fields.keys() - Training.added_later
    assert Training(precision="bf16").hashed()["precision"] == "bf16"
    plain = make_experiment({"method": "fedavg"})
    assert plain.hashed()["training"] == Training().hashed()
    assert plain.digest("data") == "006de4d233a7e0fd"  # as before these settings were added
