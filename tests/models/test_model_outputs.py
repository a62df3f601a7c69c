"""Whatever a model returns becomes log-probabilities and features, in one place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedstill
from fedstill.core.errors import InputError
from fedstill.models import build_model
from fedstill.models.model_outputs import check_outputs, check_trainable, declare, feature_width, read_outputs

from ..own_objects import X_TEST, Y_TEST, Net, X, Y, net, started

INPUTS = torch.linspace(-1, 1, 10).reshape(2, 5)


class Returning(Net):
    """Returns its logits and features in some form."""

    def __init__(self, form: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.form = form

    def forward(self, inputs: Tensor) -> Any:
        features = torch.relu(self.fc1(inputs))
        return self.form(self.fc(features), features)


class Logs(Net):
    outputs = "log-probabilities"

    def forward(self, inputs: Tensor) -> Any:
        return F.log_softmax(super().forward(inputs), dim=-1)


FORMS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "logits": lambda logits, features: logits,
    "pair": lambda logits, features: (logits, features),
    "list": lambda logits, features: [logits, features],
    "mapping": lambda logits, features: {"logits": logits, "features": features},
    "object": lambda logits, features: SimpleNamespace(logits=logits, features=features),
    "object without features": lambda logits, features: SimpleNamespace(logits=logits),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_log_probabilities_computed_by_hand(form: str) -> None:
    model = net(Returning, FORMS[form])
    features = (INPUTS @ model.fc1.weight.T + model.fc1.bias).clamp(min=0)
    logits = features @ model.fc.weight.T + model.fc.bias
    expected = logits - logits.exp().sum(dim=1, keepdim=True).log()
    output = read_outputs(model, INPUTS)
    torch.testing.assert_close(output.log_probabilities, expected)
    assert output.returned is not None
    torch.testing.assert_close(output.returned, logits)
    if form in ("logits", "object without features"):
        assert output.features.shape == (2, 0)
    else:
        torch.testing.assert_close(output.features, features)


def test_a_named_layer_gives_the_features_and_leaves_no_hook() -> None:
    model = declare(net(), features="fc1")
    output = read_outputs(model, INPUTS)
    assert torch.equal(output.features, model.get_submodule("fc1")(INPUTS))
    assert not any(part._forward_hooks for part in model.modules())
    assert feature_width(model, (5,)) == 4


def test_features_with_several_dimensions_are_flattened() -> None:
    model = declare(nn.Sequential(nn.Unflatten(1, (5, 1)), nn.Flatten(), nn.Linear(5, 3)), features="0")
    assert read_outputs(model, INPUTS).features.shape == (2, 5)


def test_a_layer_can_be_named_of_a_model_of_this_package_too() -> None:
    model = build_model("mlp", (5,), 3, width=7)
    usual = read_outputs(model, INPUTS)
    named = read_outputs(declare(model, features="head"), INPUTS)
    assert torch.equal(named.log_probabilities, usual.log_probabilities)
    assert named.features.shape == (2, 3) != usual.features.shape


def test_logits_train_to_the_bits_of_declared_log_probabilities(tmp_path: Path) -> None:
    runs = [
        started(tmp_path / str(at), model=fedstill.Model(net(kind), name="compared"), rounds=2)
        for at, kind in enumerate((Net, Logs))
    ]
    assert runs[0].sha256 == runs[1].sha256
    assert started(tmp_path / "0", model=fedstill.Model(net(Logs), name="compared"), rounds=2).reused is False


def test_one_step_of_training_is_the_one_computed_by_hand(tmp_path: Path) -> None:
    model = net()
    made = started(
        tmp_path, ((X, Y), (X_TEST, Y_TEST)), model, "centralised", clients=1, batch=48, rate=0.5, momentum=0.0
    )
    loss = F.cross_entropy(model(torch.tensor(X)), torch.tensor(Y))
    for parameter, gradient, trained in zip(
        model.parameters(), torch.autograd.grad(loss, list(model.parameters())), made.model().parameters(), strict=True
    ):
        torch.testing.assert_close(trained, parameter - 0.5 * gradient, atol=1e-6, rtol=1e-5)


class Unregistered(Net):
    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(5, 5)]

    def forward(self, inputs: Tensor) -> Any:
        return super().forward(self.layers[0](inputs))


class Closed(Net):
    def __init__(self) -> None:
        super().__init__()
        self.function = lambda inputs: self.fc(self.fc1(inputs))

    def forward(self, inputs: Tensor) -> Any:
        return self.function(inputs)


REFUSED = {
    "too many outputs": (lambda: nn.Linear(5, 4), "give its last layer 3 outputs"),
    "softmax": (lambda: nn.Sequential(Net(), nn.Softmax(1)), "leave its last softmax out"),
    "other inputs": (lambda: nn.Linear(6, 3), "cannot read a batch of inputs of shape 5"),
    "double": (lambda: Net().double(), "same dtype"),
    "no log-probabilities": (lambda: declare(Net(), "log-probabilities"), "end it with log_softmax"),
    "three values": (lambda: Returning(lambda a, b: (a, b, b)), "tuple of 3: return logits"),
    "nothing": (lambda: Returning(lambda a, b: None), "a NoneType: return logits"),
    "layers in a list": (Unregistered, "nn.ModuleList"),
    "layers in a closure": (Closed, "nn.ModuleList"),
}


@pytest.mark.parametrize("which", REFUSED)
def test_refuses_models_that_cannot_be_trained_rightly(which: str) -> None:
    made, why = REFUSED[which]
    with pytest.raises(InputError, match=why):
        check_outputs(made(), "mine", (5,), 3)


def test_refuses_a_layer_that_is_not_there_or_not_used() -> None:
    with pytest.raises(InputError, match="did you mean 'fc1'"):
        declare(Net(), features="fc1.")
    spare = Net()
    spare.spare = nn.Linear(2, 2)
    with pytest.raises(InputError, match="'spare' is not used"):
        check_outputs(declare(spare, features="spare"), "mine", (5,), 3)


def test_a_frozen_model_is_a_teacher_and_no_student() -> None:
    frozen = Net().requires_grad_(False)
    check_outputs(frozen, "mine", (5,), 3)
    with pytest.raises(InputError, match="set requires_grad"):
        check_trainable(frozen, "mine")
    check_trainable(Net(), "mine")


def test_looking_at_a_model_does_not_change_it() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    check_outputs(model, "mine", (5,), 3)
    assert model.training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
