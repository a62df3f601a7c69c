"""Teachers: where they may come from, what is refused of them, and what a run's identity takes from them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from fedstill.core.errors import InputError
from fedstill.core.kinds import state_of
from fedstill.core.message import Message, digest
from fedstill.core.protocols import Engine
from fedstill.core.streams import Streams
from fedstill.core.task import Output
from fedstill.distillation.distill import Distillation
from fedstill.models import build_model
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.launch import distill, distillation, run
from fedstill.runtime.plan import Plan, make_plan
from fedstill.runtime.result import Run
from fedstill.runtime.run import execute
from fedstill.runtime.run_folder import pack_models
from fedstill.tasks.classification import Classification

QUICK = {"rounds": 1, "training": {"batch": 64}}
DIGITS = (1, 8, 8)

OWN = '''
import torch
from torch import nn


class Plain(nn.Module):
    """Logits and nothing else."""

    def __init__(self, outputs):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, outputs))

    def forward(self, inputs):
        return self.layers(inputs)


class Rich(Plain):
    def forward(self, inputs):
        return self.layers(inputs), inputs.flatten(1)[:, :5]


class Broken(Plain):
    def forward(self, inputs):
        return self.layers(inputs) / 0 * 0


class Stubborn(Plain):
    def forward(self, inputs):
        return self.layers(inputs) * 0 + torch.arange(10)


class Talkative(Plain):
    def forward(self, inputs):
        return {"scores": self.layers(inputs)}


def plain(shape, classes): return Plain(classes)
def rich(shape, classes): return Rich(classes)
def eleven(shape, classes): return Plain(classes + 1)
def broken(shape, classes): return Broken(classes)
def stubborn(shape, classes): return Stubborn(classes)
def talkative(shape, classes): return Talkative(classes)
def no_module(shape, classes): return 7
def tired(shape, classes): raise ValueError("not today")
'''


@pytest.fixture(scope="session")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run to learn from: two rounds, so that `last`, `best` and `selected` exist."""
    out = tmp_path_factory.mktemp("teachers")
    return run("centralised", out=out, model="cnn", rounds=2, validation=0.1, training={"batch": 64, "rate": 0.1})


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of the user's own, in the folder where the command is given."""
    (tmp_path / "own_teachers.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "own_teachers", raising=False)
    return "own_teachers"


def planned(teacher: Any, student: str = "mlp", objective: Any = "vanilla", labels: str = "use", **more: Any) -> Plan:
    which = more.pop("which", "last")
    given = {**QUICK, **distillation(teacher, student, objective, labels, which), **more}
    given["method"]["share"] = 0.1
    return make_plan(make_experiment(given))


def teachers_of(plan: Plan) -> list[nn.Module]:
    assert isinstance(plan.method, Distillation)
    return [teacher.model for teacher in plan.method.teachers]


def fresh(model: str = "cnn", classes: int = 10, seed: int = 0) -> nn.Module:
    with Streams(seed).ambient("weights"):
        return build_model(model, DIGITS, classes)


def saved(path: Path, tensors: dict[str, Tensor]) -> dict[str, Any]:
    path.write_bytes(Message(tensors).encode())
    return {"file": str(path), "model": "cnn"}


# Where they come from


@pytest.mark.parametrize("which", ["last", "best", "selected"])
def test_a_run_teaches_with_any_of_its_models(taught: Run, which: str) -> None:
    plan = planned(taught.path, which=which)
    assert digest(state_of(teachers_of(plan)[0])) == digest(state_of(taught.model(which)))
    (report,) = plan.teachers
    assert report.name == taught.path.name
    assert report.model == "cnn"
    assert report.metrics["accuracy"] == pytest.approx(taught.result.accuracy[which])
    (source,) = plan.experiment.teachers
    assert (source.which, source.model) == (which, "cnn")


def test_several_runs_teach_as_one(taught: Run, tmp_path: Path) -> None:
    done = distill(
        [taught.path, {"run": str(taught.path), "which": "best"}], "mlp", "multi-teacher", out=tmp_path, **QUICK
    )
    assert [teacher.name for teacher in done.result.teachers] == [taught.path.name] * 2
    assert done.result.method == "distill"
    assert set(done.journal[0].loss) == {"cross-entropy", "soft-targets"}


@pytest.mark.parametrize("naming", ["ours", "torch's", "a run's", "with metadata"])
def test_weights_come_from_a_file(naming: str, tmp_path: Path) -> None:
    model = build_model("cnn-bn", DIGITS, 10)
    path = tmp_path / "weights.safetensors"
    if naming == "ours":
        saved(path, state_of(model))
    elif naming == "a run's":
        path.write_bytes(pack_models({"cnn-bn": state_of(model)}))
    else:
        metadata = {"format": "pt"} if naming == "with metadata" else None
        safetensors.torch.save_file(model.state_dict(), path, metadata)
    plan = planned({"file": str(path), "model": "cnn-bn"})
    assert digest(state_of(teachers_of(plan)[0])) == digest(state_of(model))
    assert plan.teachers[0].name == "weights.safetensors"


def test_a_function_makes_a_teacher_and_a_file_fills_it(own: str, tmp_path: Path) -> None:
    """Logits become log-probabilities; drawn weights are the same each time; a file's weights count where given."""
    outside = torch.get_rng_state()
    one, two = (planned({"call": f"{own}:plain"}) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), outside)
    assert one.identity == two.identity
    assert one.teachers[0].name == f"{own}:plain"
    said, features = teachers_of(one)[0](torch.zeros(3, *DIGITS))
    assert torch.allclose(said.exp().sum(dim=1), torch.ones(3))
    assert features.shape == (3, 0)
    weights = {"layers.1.weight": torch.zeros(10, 64), "layers.1.bias": torch.arange(10.0)}
    safetensors.torch.save_file(weights, tmp_path / "own.safetensors")
    filled = planned({"call": f"{own}:plain", "file": str(tmp_path / "own.safetensors")})
    assert teachers_of(filled)[0](torch.zeros(3, *DIGITS))[0].argmax(dim=1).tolist() == [9, 9, 9]
    assert filled.identity != one.identity


def test_a_function_may_give_features(own: str) -> None:
    plan = planned({"call": f"{own}:rich"}, objective="feature")
    assert plan.method.start(plan.streams)["adapters/parameters/student.weight"].shape[0] == 5


# What is refused, or said


@pytest.mark.parametrize(
    ("call", "objective", "sentence"),
    [
        ("plain", "feature", "the objective feature compares features, and the teacher own_teachers:plain gives none"),
        ("plain", "rkd", "compares features"),
        ("eleven", "vanilla", r"own_teachers:eleven says \(11,\) numbers of an input, and there are 10 classes"),
        ("broken", "vanilla", "outputs that are not finite for 100% of the test samples"),
        (
            "talkative",
            "vanilla",
            r"cannot read an input .*return logits, \(logits, features\), or an object with .logits",
        ),
        ("no_module", "vanilla", "must return a torch module, not int"),
        ("tired", "vanilla", "cannot be made: not today"),
        ("absent", "vanilla", "cannot be made: module 'own_teachers' has no attribute 'absent'"),
    ],
    ids=["features", "relations", "classes", "non-finite", "dictionary", "int", "raises", "absent"],
)
def test_a_function_that_will_not_do_is_refused(own: str, call: str, objective: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        planned({"call": f"{own}:{call}"}, objective=objective)


@pytest.mark.parametrize("call", ["nowhere_at_all:make", "just_a_name", ":make", "module:"])
def test_a_function_that_is_not_there_is_refused(call: str) -> None:
    with pytest.raises(InputError, match=r"cannot be made: No module named|is written module:function"):
        planned({"call": call})


def test_a_teacher_that_says_the_same_of_everything_is_noted(
    own: str, engines: dict[str, Engine], tmp_path: Path
) -> None:
    notes: list[str] = []

    class Listener:
        def start(self, experiment: Any, journal: Any) -> None: ...

        def round(self, record: Any) -> None: ...

        def note(self, text: str) -> None:
            notes.append(text)

        def warn(self, text: str) -> None: ...

        def finish(self) -> None: ...

    plan = planned({"call": f"{own}:stubborn"})
    execute(plan, engines["in-process"], tmp_path, [Listener()])
    assert plan.teachers[0].metrics["constant"] == 1
    assert notes == ["the teacher own_teachers:stubborn predicts the same class for every test sample"]


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    good = state_of(fresh())
    name = next(iter(good))
    path = tmp_path / "w.safetensors"
    cases: list[tuple[dict[str, Tensor], str]] = [
        ({key: value for key, value in good.items() if key != name}, f"the file lacks '{name}'"),
        ({**good, "parameters/more": torch.ones(1)}, "it has no tensor 'parameters/more'"),
        (state_of(fresh("mlp")), "do not fit the teacher's model: it has no tensor"),
        (state_of(fresh(classes=11)), "do not fit the teacher's model: .*size mismatch"),
        ({}, "the file lacks"),
    ]
    for tensors, sentence in cases:
        with pytest.raises(InputError, match=sentence):
            planned(saved(path, tensors))


def test_a_file_that_is_no_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.safetensors").write_text("weights")
    for file in ("absent.safetensors", "text.safetensors", "."):
        with pytest.raises(InputError, match=r"the teacher's weights in .* cannot be read"):
            planned({"file": str(tmp_path / file), "model": "cnn"})
    with pytest.raises(InputError, match="did you mean 'cnn-bn'"):
        planned({"file": str(tmp_path / "x"), "model": "cnn_bn"})


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    state = state_of(fresh())
    with pytest.raises(InputError, match=r"w\.safetensors gives outputs that are not finite for 100%"):
        planned(saved(tmp_path / "w.safetensors", {name: tensor * float("nan") for name, tensor in state.items()}))


def test_a_run_that_cannot_teach_this_is_refused(taught: Run, engines: dict[str, Engine], tmp_path: Path) -> None:
    letters = tmp_path / "letters.npz"
    np.savez(letters, x=np.arange(40 * 64, dtype=np.uint16).reshape(40, 8, 8) % 256, y=np.arange(40) % 4)
    with pytest.raises(InputError, match="knows 10 classes of digits, and the student is to learn 4 of npz:"):
        planned(taught.path, data=f"npz:{letters}")
    larger = tmp_path / "larger.npz"
    np.savez(larger, x=np.arange(40 * 256, dtype=np.uint16).reshape(40, 16, 16) % 256, y=np.arange(40) % 10)
    with pytest.raises(InputError, match=r"cannot read an input of shape \(1, 16, 16\)"):
        planned(taught.path, data=f"npz:{larger}")
    with pytest.raises(InputError, match="is not a run"):
        planned(tmp_path)
    with pytest.raises(InputError, match="the student is the teacher: both are cnn"):
        planned(taught.path, "cnn")
    unfinished = tmp_path / "unfinished"
    shutil.copytree(taught.path, unfinished)
    for name in ("result.json", "model-last.safetensors"):
        (unfinished / name).unlink()
    with pytest.raises(InputError, match="has no last model: it is not finished"):
        planned(unfinished)


def test_unknown_words_are_answered_with_the_known_ones(taught: Run) -> None:
    for changes, sentence in (
        ({"objective": "vanila"}, "unknown objective 'vanila': did you mean 'vanilla'"),
        ({"objective": {"name": "dkd", "temprature": 3}}, "did you mean 'temperature'"),
        ({"labels": "withold"}, "did you mean 'withhold'"),
        ({"which": "bset"}, "did you mean 'best'"),
        ({"student": "cnnn"}, "did you mean 'cnn"),
    ):
        with pytest.raises(InputError, match=sentence):
            planned(taught.path, **changes)


def test_a_teacher_must_be_named_completely() -> None:
    for source, sentence in (
        ({}, "name one of them"),
        ({"run": "a", "file": "b", "model": "cnn"}, "name one of them"),
        ({"file": "b"}, "needs the name of its model"),
    ):
        with pytest.raises(InputError, match=sentence):
            make_experiment({"method": "distill", "teachers": [source]})
    with pytest.raises(InputError, match="distillation needs a teacher"):
        make_plan(make_experiment({"method": "distill", "model": "mlp"}))
    with pytest.raises(InputError, match="has no use for teachers"):
        make_plan(make_experiment({"method": "fedavg", "objective": "vanilla"}))


def test_points_cannot_be_taught(own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a model of points gives has one more dimension; made up here, since a real one takes seconds to start."""
    forward = Classification.forward

    def of_points(task: Classification, model: nn.Module, batch: Any) -> Output:
        said = forward(task, model, batch)
        return Output(said.log_probabilities.unsqueeze(1), said.features)

    monkeypatch.setattr(Classification, "forward", of_points)
    with pytest.raises(InputError, match="models that say one thing of a sample, and mlp labels every point"):
        planned({"call": f"{own}:plain"})


# Identity


def test_a_run_is_named_by_its_teachers_weights_wherever_they_lie(
    taught: Run, tmp_path: Path, engines: dict[str, Engine]
) -> None:
    first = planned(taught.path)
    done = Run(execute(first, engines["in-process"], tmp_path / "out").path)
    shutil.copytree(taught.path, tmp_path / "moved")
    moved = planned(tmp_path / "moved")
    assert moved.identity == first.identity
    again = Run(execute(moved, engines["in-process"], tmp_path / "out").path)
    assert (again.path, again.sha256) == (done.path, done.sha256)
    assert len(list((tmp_path / "out").iterdir())) == 1

    one, two = saved(tmp_path / "one", state_of(fresh())), saved(tmp_path / "two", state_of(fresh()))
    assert planned(one).identity == planned(two).identity
    assert planned(saved(tmp_path / "one", state_of(fresh(seed=1)))).identity != planned(two).identity
