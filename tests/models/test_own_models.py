"""Models that are passed as objects: trained rightly or refused, never confused, and given back as they came."""

from __future__ import annotations

import os
from copy import deepcopy
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import fedstill
from fedstill.core.errors import InputError
from fedstill.models import build_model, models
from fedstill.models.own_models import named_model
from fedstill.models.surgery import duplicate

from ..own_objects import Net, X, Y, net, started

CELL = """
class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 3)

    def forward(self, inputs):
        return self.fc(inputs) * SCALE
"""


def cell(scale: float) -> Any:
    """A class as a notebook's cell defines it, again whenever it is run."""
    namespace: dict[str, Any] = {"__name__": "__main__", "nn": nn}
    exec(CELL.replace("SCALE", str(scale)), namespace)
    return namespace["Cell"]


def moved(model: nn.Module, trained: nn.Module) -> dict[str, bool]:
    """Which of a model's tensors training has changed."""
    after = trained.state_dict()
    return {name: not torch.equal(tensor, after[name]) for name, tensor in model.state_dict().items()}


def test_training_starts_from_the_weights_and_leaves_the_users_module_alone(tmp_path: Path) -> None:
    model = net()
    before, attributes = deepcopy(model.state_dict()), set(vars(model))
    still = started(tmp_path, model=model, rate=1e-12).model()
    made = started(tmp_path, model=model)
    assert type(made.model()) is Net
    assert all(moved(model, made.model()).values())
    for name, tensor in still.state_dict().items():
        torch.testing.assert_close(tensor, before[name])
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert set(vars(model)) == attributes
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_module_that_a_function_returns_again_and_again_stays_as_it_is(tmp_path: Path) -> None:
    shared = net()
    before, attributes = deepcopy(shared.state_dict()), set(vars(shared))
    for notes in ({}, {"features": "fc1"}, {"head": "fc"}, {"head": "fc"}):
        started(tmp_path, model=lambda: shared, **notes)
    assert isinstance(shared.get_submodule("fc"), nn.Linear)
    assert set(vars(shared)) == attributes
    assert all(torch.equal(tensor, before[name]) for name, tensor in shared.state_dict().items())


class InAList(Net):
    """Its layers are attributes, and it calls them by a list."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [self.fc1, self.fc]

    def forward(self, inputs: Tensor) -> Any:
        for layer in self.layers:
            inputs = layer(inputs)
        return inputs


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.fc = nn.LSTM(1, 3, batch_first=True), nn.Linear(3, 3)

    def forward(self, inputs: Tensor) -> Any:
        return self.fc(self.cells(inputs[..., None])[0][:, -1])


def patched() -> nn.Module:
    model = net()
    model.forward = MethodType(lambda self, inputs: self.fc(self.fc1(inputs)), model)  # type: ignore[method-assign]
    return model


@pytest.mark.parametrize("make", [lambda: net(InAList), lambda: net(Recurrent), patched], ids=["list", "lstm", "patch"])
def test_modules_that_reference_their_own_layers_are_trained(tmp_path: Path, make: Any) -> None:
    model = make()
    assert all(moved(model, started(tmp_path, model=model).model()).values())
    copy = duplicate(model)
    with torch.no_grad():
        for parameter in copy.parameters():
            parameter.zero_()
    assert not copy(torch.ones(2, 5)).any()
    assert model(torch.ones(2, 5)).any()


def test_frozen_layers_do_not_move(tmp_path: Path) -> None:
    model = net()
    model.get_submodule("fc1").requires_grad_(False)
    found = moved(model, started(tmp_path, model=model, weight_decay=0.1).model())
    assert found == {"fc1.weight": False, "fc1.bias": False, "fc.weight": True, "fc.bias": True}


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.fc = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 3)
        self.second.weight = self.first.weight

    def forward(self, inputs: Tensor) -> Any:
        return self.fc(self.second(torch.relu(self.first(inputs))))


@pytest.mark.parametrize("head", [None, "fc"])
def test_tied_weights_stay_tied(tmp_path: Path, head: str | None) -> None:
    trained = started(tmp_path, model=net(Tied), head=head).model()
    assert isinstance(trained, Tied)
    assert trained.first.weight is trained.second.weight
    assert moved(net(Tied), trained)["first.weight"]


def test_batchnorm_statistics_are_measured_and_come_back(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3))
    found = moved(model, started(tmp_path, model=model).model())
    assert found["1.running_mean"]
    assert found["1.running_var"]
    assert found["1.num_batches_tracked"]


def test_parametrised_layers_are_trained(tmp_path: Path) -> None:
    model = net()
    parametrizations.weight_norm(model.get_submodule("fc1"))
    assert all(moved(model, started(tmp_path, model=model).model()).values())


class Scaled(Net):
    def __init__(self, scale: float, persistent: bool) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(scale), persistent=persistent)

    def forward(self, inputs: Tensor) -> Any:
        return super().forward(inputs) * self.scale


@pytest.mark.parametrize("persistent", [True, False])
def test_another_buffer_is_another_run(tmp_path: Path, persistent: bool) -> None:
    first = started(tmp_path, model=net(Scaled, 2.0, persistent))
    assert started(tmp_path, model=net(Scaled, 2.0, persistent)).reused
    other = started(tmp_path, model=net(Scaled, 3.0, persistent))
    assert not other.reused
    assert first.sha256 != other.sha256
    assert float(other.model().scale) == 3.0  # type: ignore[arg-type]


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.LazyLinear(3))


def test_lazy_layers_get_their_shapes_without_touching_statistics(tmp_path: Path) -> None:
    built = build_model(named_model(lazy), (5,), 3)
    assert built[0].weight.shape == (4, 5)  # type: ignore[index]
    assert int(built[1].num_batches_tracked) == 0  # type: ignore[index]
    assert built.training
    trained = started(tmp_path, model=nn.Sequential(nn.LazyLinear(4), nn.LazyLinear(3))).model()
    assert trained(torch.zeros(2, 5)).shape == (2, 3)
    with pytest.raises(InputError, match="pass a function that makes it"):
        named_model(lazy())


def test_two_lazy_models_are_not_confused() -> None:
    wide, narrow = (nn.Sequential(nn.LazyLinear(width), nn.LazyLinear(3)) for width in (7, 2))
    names = [named_model(wide), named_model(narrow)]
    assert [build_model(name, (5,), 3)[0].out_features for name in names] == [7, 2]  # type: ignore[index]


def test_never_stale(tmp_path: Path) -> None:
    model = net()
    assert not started(tmp_path, model=model).reused
    assert started(tmp_path, model=model).reused
    model.eval()  # as after a prediction
    assert started(tmp_path, model=model).reused
    with torch.no_grad():
        bias = model.get_submodule("fc").bias
        bias[0] = torch.nextafter(bias[0], torch.tensor(9.0))  # type: ignore[index,operator]
    assert not started(tmp_path, model=model).reused
    assert not started(tmp_path, model=model, features="fc1").reused
    assert started(tmp_path, model=model, features="fc1").reused
    assert not started(tmp_path, model=model, features="fc").reused


@pytest.mark.parametrize("name", [None, "cell"])
def test_an_edited_notebook_cell_is_another_run(tmp_path: Path, name: str | None) -> None:
    def run(scale: float) -> fedstill.Run:
        return started(tmp_path, model=fedstill.Model(cell(scale), name=name))

    first = run(1)
    assert run(1).reused
    second = run(2)
    assert not second.reused
    assert first.sha256 != second.sha256
    assert run(1).reused


def test_functions_are_recognised_by_what_they_hold(tmp_path: Path) -> None:
    def making(width: int) -> Any:
        return lambda shape, classes: nn.Sequential(nn.Linear(shape[0], width), nn.Linear(width, classes))

    assert [started(tmp_path, model=making(width)).reused for width in (4, 4, 6)] == [False, True, False]


def test_two_sizes_of_one_class_in_one_experiment(tmp_path: Path) -> None:
    made = fedstill.distill(net(Net, 9), net(Net, 2), data=(X, Y), out=tmp_path, rounds=1)
    assert made.result.teachers[0].model != made.result.model
    assert made.model().get_submodule("fc1").out_features == 2
    again = fedstill.distill(net(Net, 9), net(Net, 2), data=(X, Y), out=tmp_path, rounds=1)
    assert again.reused
    assert not fedstill.distill(net(Net, 8), net(Net, 2), data=(X, Y), out=tmp_path, rounds=1).reused


def test_one_name_for_two_models_of_an_experiment_is_refused(tmp_path: Path) -> None:
    big, small = fedstill.Model(net(Net, 9), name="both"), fedstill.Model(net(Net, 2), name="both")
    out = tmp_path / "runs"
    with pytest.raises(InputError, match="two different models are called 'both'"):
        fedstill.distill(big, small, data=(X, Y), out=out)
    with pytest.raises(InputError, match="two different models are called 'both'"):
        fedstill.distill([big, small], net(), data=(X, Y), out=out)
    with pytest.raises(InputError, match="two different models are called 'both'"):
        fedstill.run("local-only", models={big: 1, small: 1}, data=(X, Y), clients=2, out=out)
    assert not out.exists()


def test_more_models_than_are_kept(tmp_path: Path) -> None:
    made = [started(tmp_path, model=nn.Sequential(nn.Linear(5, 3), nn.Dropout(at / 20))) for at in range(18)]
    assert made[0].result.model not in models
    assert [made[at].model()[1].p for at in (0, 17)] == [0.0, 17 / 20]  # type: ignore[index]
    several = {nn.Sequential(nn.Linear(5, 3), nn.Dropout((at + 1) / 30)): 1 for at in range(17)}
    alone = fedstill.run("local-only", models=several, clients=17, data=(X, Y), rounds=1, epochs=1, out=tmp_path)
    assert alone.finished
    assert fedstill.distill(made[1], net(), data=(X, Y), rounds=1, out=tmp_path).finished


def test_a_head_is_split_off_for_queries_and_put_back(tmp_path: Path) -> None:
    sites = [(X[:24], Y[:24]), (X[24:], Y[24:])]
    alone = fedstill.run("local-only", data=sites, model=net(), head="fc", rounds=1, epochs=1, out=tmp_path)
    asked = fedstill.query(alone, 0, 2, transfer_epochs=1, head_epochs=1, threshold=0)
    assert torch.equal(asked.before.head.weight, alone.model(client=0).get_submodule("fc").weight)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="head='fc'"):
        fedstill.query(started(tmp_path, model=net(), method="local-only"), 0, 2)


def test_the_weights_go_into_a_module_of_another_process(tmp_path: Path) -> None:
    for head in (None, "fc"):
        made = started(tmp_path, model=net(), head=head)
        elsewhere = fedstill.load_run(made.path).model(into=Net())
        assert type(elsewhere) is Net
        assert not any(moved(made.model(), elsewhere).values())
        with pytest.raises(InputError, match="do not fit this module"):
            made.model(into=nn.Linear(5, 3))


def test_a_split_model_says_what_the_whole_one_says() -> None:
    model = net()
    name = named_model(model, head="fc")
    inputs = torch.linspace(0, 1, 15).reshape(3, 5)
    log_probabilities, features = build_model(name, (5,), 3)(inputs)
    torch.testing.assert_close(log_probabilities, model(inputs).log_softmax(1))
    torch.testing.assert_close(features, torch.relu(model.get_submodule("fc1")(inputs)))


class Raises(Net):
    def __init__(self) -> None:
        raise ZeroDivisionError


def with_gradient() -> nn.Module:
    model = net()
    model.kept = model(torch.ones(2, 5))
    return model


REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "number": (5, {}, "a model is a name"),
    "list": ([net()], {}, "a model is a name"),
    "function of nothing": (lambda: None, {}, "must return a torch module"),
    "arguments": (nn.Linear, {}, "needs in_features, out_features: pass an instance"),
    "raising": (Raises, {}, "Raises cannot make a model"),
    "tensor with a gradient": (with_gradient, {}, "cannot be copied"),
    "lazy with other inputs": (lambda: nn.Sequential(nn.LazyLinear(4), nn.Linear(5, 3)), {}, "cannot read a batch"),
    "head of other inputs": (lambda: nn.Sequential(nn.Linear(6, 3), nn.Linear(3, 3)), {"head": "1"}, "cannot read"),
    "no such head": (net(), {"head": "fcc"}, "did you mean 'fc'"),
    "not the last layer": (net(), {"head": "fc1"}, "name its last layer"),
    "head and features": (net(), {"head": "fc", "features": "fc1"}, "omit them"),
    "no such layer": (net(), {"features": "fcc"}, "did you mean 'fc'"),
    "layer by number": (net(), {"features": 3}, "no layer 3"),
    "outputs": (net(), {"outputs": "logit"}, "did you mean 'logits'"),
    "notes of a name": ("mlp", {"features": "fc"}, "mlp is a name: omit it"),
    "taken name": (fedstill.Model(Net, name="cnn"), {}, "choose another name"),
    "path as a name": (fedstill.Model(Net, name="a/b"), {}, "use letters, digits"),
}


@pytest.mark.parametrize("which", REFUSED)
def test_refused_in_one_sentence_before_anything_is_written(tmp_path: Path, which: str) -> None:
    model, notes, why = REFUSED[which]
    with pytest.raises(InputError, match=why) as refused:
        started(tmp_path / "runs", model=model, **notes)
    assert "\n" not in str(refused.value)
    assert not os.listdir(tmp_path)


TEACHERS = {
    "outputs": (lambda: nn.Linear(5, 4), "give its last layer 3 outputs"),
    "softmax": (lambda: nn.Sequential(net(), nn.Softmax(1)), "leave its last softmax out"),
    "inputs": (lambda: nn.Linear(6, 3), "cannot read a batch"),
}


@pytest.mark.parametrize("which", TEACHERS)
def test_teachers_are_refused_likewise(tmp_path: Path, which: str) -> None:
    make, why = TEACHERS[which]
    with pytest.raises(InputError, match=why):
        fedstill.distill(make(), net(), data=(X, Y), out=tmp_path / "runs")
    assert not os.listdir(tmp_path)


def test_a_teacher_may_be_frozen(tmp_path: Path) -> None:
    teacher = net(Net, 9).requires_grad_(False)
    assert fedstill.distill(teacher, net(), data=(X, Y), rounds=1, out=tmp_path).finished


def test_what_compares_features_is_refused_without_them(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="features='fc1'"):
        fedstill.distill(net(Net, 9), net(), "rkd", data=(X, Y), rounds=1, out=tmp_path / "runs")
    assert not os.listdir(tmp_path)
