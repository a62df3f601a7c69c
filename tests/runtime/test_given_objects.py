"""Runs of objects: the same bits in every form and on every engine, found again, and never stale."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.data import TensorDataset

import fedstill
from fedstill.core import passed_objects
from fedstill.core.errors import InputError
from fedstill.data.lookup import load

from ..own_objects import SMALL, X_TEST, Y_TEST, Net, Rows, X, Y, net, started
from ..warm import Warm

pd = pytest.importorskip("pandas")
hf = pytest.importorskip("datasets")

FORMS: dict[str, Any] = {
    "arrays": lambda x, y: (x, y),
    "TensorDataset": lambda x, y: TensorDataset(torch.tensor(x), torch.tensor(y)),
    "lazy": Rows,
    "hugging face": lambda x, y: hf.Dataset.from_dict({"inputs": x.tolist(), "label": y.tolist()}),
    "frame": lambda x, y: pd.DataFrame(x).assign(label=y),
}
CUTS = {
    "split": lambda form: (form(X, Y), form(X_TEST, Y_TEST)),
    "whole": lambda form: form(X, Y),
    "clients": lambda form: [form(X[:20], Y[:20]), form(X[20:], Y[20:])],
}


@pytest.mark.parametrize("cut", CUTS)
def test_every_form_gives_the_same_bits(tmp_path: Path, cut: str) -> None:
    digests = {form: started(tmp_path / form, CUTS[cut](make)).sha256 for form, make in FORMS.items()}
    assert len(set(digests.values())) == 1


@pytest.mark.parametrize("cut", ["split", "clients"])
def test_worker_processes_give_the_same_bits(tmp_path: Path, engines: Any, cut: str) -> None:
    here = started(tmp_path / "here", CUTS[cut](FORMS["arrays"])).sha256
    for form in ("arrays", "lazy", "hugging face"):
        there = started(tmp_path / form, CUTS[cut](FORMS[form]), engine=engines["processes-2"])
        assert there.sha256 == here


class Interrupts:
    """An observer that ends the process's work after the first round."""

    def round(self, record: Any) -> None:
        raise KeyboardInterrupt

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


@pytest.mark.parametrize("form", ["arrays", "lazy", "hugging face"])
def test_an_interrupted_run_goes_on_to_the_same_bits(tmp_path: Path, form: str) -> None:
    whole = started(tmp_path / "whole", (X, Y), rounds=3).sha256
    with pytest.raises(KeyboardInterrupt):
        started(tmp_path / "resumed", FORMS[form](X, Y), rounds=3, observers=[Interrupts()])
    (folder,) = (tmp_path / "resumed").iterdir()
    assert len(fedstill.load_run(folder).journal) == 1
    resumed = started(tmp_path / "resumed", FORMS[form](X, Y), rounds=3)
    assert resumed.path == folder
    assert resumed.sha256 == whole


@pytest.mark.parametrize("form", FORMS)
def test_found_again_unless_a_value_changed(tmp_path: Path, form: str) -> None:
    inputs, labels = X.copy(), Y.copy()
    make = FORMS[form]
    assert not started(tmp_path, make(inputs, labels)).reused
    assert started(tmp_path, make(inputs, labels)).reused
    inputs[7, 1] += 1e-3
    assert not started(tmp_path, make(inputs, labels)).reused
    labels[0] = 1
    assert not started(tmp_path, make(inputs, labels)).reused


def test_an_array_that_is_edited_in_place_is_another_run(tmp_path: Path) -> None:
    pair = X.copy(), Y.copy()
    first = started(tmp_path, pair)
    pair[0][0] += 1
    second = started(tmp_path, pair)
    assert not second.reused
    assert second.sha256 != first.sha256


SCRIPT = """
import numpy as np, torch
from torch import nn
import fedstill

class Mine(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 3)

    def forward(self, inputs):
        return self.fc(inputs)

x = np.random.default_rng(0).random((30, 5), dtype=np.float32)
torch.manual_seed(0)
for model in (Mine, Mine()):
    data = x, np.arange(30) % 3
    made = fedstill.run("fedavg", data=data, model=model, clients=2, rounds=1, epochs=1, out="runs")
    print(made.reused, made.sha256, made.model().fc.weight.sum().item())
"""


def test_another_process_finds_the_run(tmp_path: Path, warm: Warm) -> None:
    first, second = ([line.split() for line in warm.python(SCRIPT, tmp_path).stdout.splitlines()] for _ in range(2))
    assert [line[0] for line in first] == ["False", "False"]
    assert [line[0] for line in second] == ["True", "True"]
    assert [line[1:] for line in first] == [line[1:] for line in second]


def test_a_list_decides_the_clients_and_their_own_test_data_is_used_on_site(tmp_path: Path) -> None:
    clients = [((X[:20], Y[:20]), (X_TEST[:3], Y_TEST[:3])), ((X[20:], Y[20:]), (X_TEST[3:], Y_TEST[3:]))]
    made = fedstill.run("local-only", data=clients, model=net(), rounds=1, epochs=1, out=tmp_path, evaluation="on-site")
    assert (made.experiment.clients, made.experiment.partition.name) == (2, "sites")
    models = [made.model(client=at).eval() for at in (0, 1)]
    own = [
        float((model(torch.tensor(x)).argmax(1).numpy() == y).sum())
        for model, (_, (x, y)) in zip(models, clients, strict=True)
    ]
    personal = made.result.personal
    assert personal is not None
    assert made.accuracy == pytest.approx(np.mean([own[0] / 3, own[1] / 9]))


def test_the_number_of_clients_must_be_that_of_the_list(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the data has 2 sites, and clients is 3: leave clients out"):
        started(tmp_path / "runs", CUTS["clients"](FORMS["arrays"]), clients=3)
    with pytest.raises(InputError, match="choose another partition"):
        started(tmp_path / "runs", (X, Y), partition="sites")
    assert not os.listdir(tmp_path)
    assert started(tmp_path, CUTS["clients"](FORMS["arrays"]), clients=3, partition="iid").finished


def test_more_data_sets_than_are_held(tmp_path: Path) -> None:
    made = [started(tmp_path, (X + at, Y)) for at in range(10)]
    assert load(made[9].experiment.data).shape == (5,)
    assert fedstill.distill(made[9], net(), rounds=1, out=tmp_path, same_model=True).finished
    with pytest.raises(InputError, match="pass it again as data"):
        fedstill.distill(made[0], net(), rounds=1, out=tmp_path, same_model=True)
    assert fedstill.distill(made[0], net(), data=(X, Y), rounds=1, out=tmp_path, same_model=True).finished


@pytest.mark.parametrize("form", ["arrays", "lazy"])
def test_withheld_labels_do_not_matter(tmp_path: Path, form: str) -> None:
    """A student that gets no labels is the same whatever they are."""
    shuffled = np.random.default_rng(1).permutation(Y)

    def student(labels: Any, out: str) -> str:
        data = FORMS[form](X, labels), (X_TEST, Y_TEST)
        return fedstill.distill(net(), net(Net, 2), data=data, labels="withhold", rounds=1, out=tmp_path / out).sha256

    assert student(Y, "true") == student(shuffled, "shuffled")


class Locked(Rows):
    def __init__(self) -> None:
        super().__init__()
        self.lock = Lock()


def parametrised() -> nn.Module:
    model = net()
    parametrizations.weight_norm(model.get_submodule("fc1"))
    return model


@pytest.fixture
def _objects_forgotten() -> Iterator[None]:
    """Later tests that start workers would be warned of objects that cannot be sent to them."""
    before = [*passed_objects._used]
    yield
    for registry, name in [used for used in passed_objects._used if used not in before]:
        registry.forget(name)
        passed_objects._used.remove((registry, name))


@pytest.mark.usefixtures("_objects_forgotten")
@pytest.mark.parametrize("which", ["data", "model"])
def test_what_cannot_be_sent_to_worker_processes_is_refused(tmp_path: Path, engines: Any, which: str) -> None:
    given = {"data": Locked()} if which == "data" else {"model": parametrised()}
    with pytest.raises(InputError, match="use the engine in-process"):
        started(tmp_path / "runs", engine=engines["processes-2"], **given)
    assert not os.listdir(tmp_path)
    assert started(tmp_path / "runs", **given).finished


def test_the_egress_of_objects() -> None:
    lines = fedstill.egress("fedavg", data=(X, Y), model=net(), clients=2)["leaves"]
    (weights,) = (line for line in lines if line["kind"] == "parameters")
    assert weights["tensors"] == 4
    assert weights["bytes"] == 4 * (5 * 4 + 4 + 4 * 3 + 3)


def test_paths_are_data_too(tmp_path: Path) -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (30, 8, 8), dtype=np.uint8)
    path = tmp_path / "scans.npz"
    np.savez(path, x=pictures, y=np.arange(30) % 3)
    runs = [
        fedstill.run("fedavg", data=data, model="mlp", out=tmp_path, **SMALL)
        for data in (path, str(path), f"npz:{path}")
    ]
    assert [made.reused for made in runs] == [False, True, True]


def test_refused_data_leaves_nothing_behind(tmp_path: Path) -> None:
    for data in ((X, Y[:-1]), [(X, Y), (X[:, :2], Y)], None, tmp_path / "nothing.npz"):
        with pytest.raises(InputError):
            started(tmp_path / "runs", data)
    assert not os.listdir(tmp_path)
