"""`fedstill predict`, `export` and `latency`, also of runs whose clients have different models, which may teach too."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import fedstill
from fedstill.core.dataset import ArrayDataset
from fedstill.core.kinds import state_of
from fedstill.core.message import digest
from fedstill.data.catalogue import load
from fedstill.data.head_parts import PARTS
from fedstill.runtime.identity import identify

Call = Callable[..., tuple[int, str, str]]
TINY = ["--rounds", "2", "--clients", "4", "--set", "epochs=1", "--set", "batch=64"]
SHORT = {"proxy": "digits", "samples": 40, "steps": 2, "batch": 20}
MIXED = {"models": {"mlp": 2, "cnn": 1}, "rounds": 1, "training": {"epochs": 1, "batch": 64}}
QUICK = ("--epochs", "1", "--set", "training.batch=64", "--set", "method.share=0.1")


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> fedstill.Run:
    """Two models on the server, of which `mlp` is the first."""
    return fedstill.run({"method": {"name": "feddf", **SHORT}, **MIXED}, out=tmp_path_factory.mktemp("mixed"))


@pytest.fixture(scope="module")
def personal(tmp_path_factory: pytest.TempPathFactory) -> fedstill.Run:
    """A model with each client and none on the server."""
    return fedstill.run({"method": {"name": "fedmd", **SHORT}, **MIXED}, out=tmp_path_factory.mktemp("personal"))


def answer(call: Call, *words: str) -> dict[str, Any]:
    code, out, err = call(*words, "--json")
    assert code == 0, err
    return dict(json.loads(out))


@pytest.mark.parametrize(("words", "name"), [((), "mlp"), (("--architecture", "cnn"), "cnn")], ids=["first", "named"])
def test_predict(call: Call, mixed: fedstill.Run, words: tuple[str, ...], name: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (1, 8, 8), dtype=np.uint8)
    np.save("x.npy", pixels)
    (found,) = answer(call, "predict", str(mixed.path), "x.npy", *words)["predictions"]
    inputs = torch.from_numpy(pixels[None]).float() / 127.5 - 1
    said = mixed.task.predict(mixed.model(architecture=name), inputs)[0]
    assert found["class"] == mixed.task.classes[int(said.argmax())]
    assert found["probability"] == pytest.approx(float(said.max()), abs=1e-6)


@pytest.mark.parametrize(("words", "name"), [((), "mlp"), (("--architecture", "cnn"), "cnn")], ids=["first", "named"])
def test_export(call: Call, mixed: fedstill.Run, words: tuple[str, ...], name: str) -> None:
    """The file says whose model it holds, and says of inputs what that model says."""
    from fedstill.models.portable.program import read_pt2

    answer(call, "export", str(mixed.path), "student.pt2", *words)
    program, about = read_pt2(Path("student.pt2").read_bytes())
    assert about["model"] == name
    inputs = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        wanted = mixed.model(architecture=name).eval()(inputs)[0]
        torch.testing.assert_close(program(inputs)[0], wanted, rtol=0, atol=1e-5)


def test_a_clients_own_model_is_of_its_architecture(call: Call, personal: fedstill.Run) -> None:
    from fedstill.models.portable.program import read_pt2

    answer(call, "export", str(personal.path), "own.pt2", "--client", "2")
    _, about = read_pt2(Path("own.pt2").read_bytes())
    assert (about["model"], about["client"]) == ("cnn", "2")
    assert call("export", str(personal.path), "same.pt2", "--client", "2", "--architecture", "cnn")[0] == 0


def test_latency_compares_the_models_of_one_run(
    call: Call, mixed: fedstill.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The perceptron has 64 x 200 + 200 + 200 x 200 + 200 + 200 x 10 + 10 parameters."""
    monkeypatch.setattr(
        import_module("fedstill.export.latency"), "missing", lambda: ["onnxruntime"]
    )  # whose files take a while to make
    words = ("--architecture", "cnn", "--architecture", "mlp", "--passes", "1")
    told = answer(call, "latency", str(mixed.path), *words)
    assert [one["model"] for one in told["runs"]] == ["cnn", "mlp"]
    small = sum(weight.numel() for weight in mixed.model(architecture="cnn").parameters())
    assert [one["parameters"] for one in told["runs"]] == [small, 55_210]
    assert told["ratios"]["parameters"] == pytest.approx(small / 55_210)


def test_either_model_can_teach(call: Call, mixed: fedstill.Run) -> None:
    """The first one is the same teacher whether it is named or not, to the name of the run; the other is another."""
    words = ("distill", "--teacher", str(mixed.path), "--student", "cnn-bn", *QUICK)
    silent, first, second = (answer(call, *words, *more) for more in ((), _model("mlp"), _model("cnn")))
    assert [each["teachers"][0]["model"] for each in (silent, first, second)] == ["mlp", "mlp", "cnn"]
    assert silent["run"] == first["run"] != second["run"]
    assert second["teachers"][0]["metrics"]["accuracy"] == mixed.result.extra_models["cnn"]
    both = answer(call, *words, *_model("mlp"), *_model("cnn"), "--objective", "multi-teacher")
    assert [teacher["model"] for teacher in both["teachers"]] == ["mlp", "cnn"]


def test_either_model_can_teach_in_python(mixed: fedstill.Run, tmp_path: Path) -> None:
    source = {"run": str(mixed.path), "model": "cnn"}
    taught = fedstill.distill(source, "cnn-bn", out=tmp_path, rounds=1, share=0.1, training={"batch": 64})
    (teacher,) = taught.config["experiment"]["teachers"]
    assert teacher["model"] == "cnn"
    assert teacher["sha256"] == digest(state_of(mixed.model(architecture="cnn")))
    assert identify(fedstill.Run(taught.path).experiment, taught.config["reads"]).name in taught.path.name


def _model(name: str) -> tuple[str, str]:
    return "--teacher-model", name


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("predict {mixed} x.npy --architecture resnet8", "has no resnet8: known: cnn, mlp"),
        ("predict {mixed} x.npy --architecture cn", "has no cn: did you mean 'cnn'? Known: cnn, mlp"),
        ("export {mixed} a.pt2 --architecture resnet8", "has no resnet8: known: cnn, mlp"),
        ("export {personal} a.pt2 --architecture cnn", "its clients have models of their own: name one with --client"),
        ("export {personal} a.pt2 --client 0 --architecture cnn", "has a mlp, and no cnn"),
        ("export {personal} a.pt2 --client 3", "there is no client 3: clients are 0 to 2"),
        ("latency {mixed}/config.json", "is a file: name the folder of a run"),
        ("latency {mixed} --architecture resnet8", "has no resnet8: known: cnn, mlp"),
        ("latency {mixed} {mixed} {mixed} --architecture cnn --architecture mlp", "give it once, or once for each"),
        ("distill --teacher {mixed} --teacher-model resnet8 --student cnn-bn", "has no resnet8: known: cnn, mlp"),
        (
            "distill --teacher {mixed} --teacher-model resnet8 --which best --student cnn-bn",
            "has no resnet8: known: cnn, mlp",
        ),
        ("distill --teacher {mixed} --teacher-model cnn --student cnn", "the student is the teacher: both are cnn"),
        ("distill --teacher-file a --teacher-model cnn --teacher-model mlp --student mlp", "what one --teacher-file"),
    ],
    ids=lambda value: value if "{" in value or "--student" in value else "",
)
def test_mistakes(call: Call, mixed: fedstill.Run, personal: fedstill.Run, words: str, sentence: str) -> None:
    np.save("x.npy", np.zeros((8, 8), dtype=np.uint8))
    code, out, err = call(*(word.format(mixed=mixed.path, personal=personal.path) for word in words.split()))
    assert (code, out) == (2, "")
    assert sentence in err
    assert len(err.splitlines()) == 1
    assert [path.name for path in Path().iterdir()] == ["x.npy"]


def test_predict_reads_pictures_and_arrays(call: Call) -> None:
    run = answer(call, "run", "fedavg", "--rounds", "3")["run"]
    digits = load("digits").test
    pixels = np.asarray(digits.columns["inputs"][:6])  # type: ignore[attr-defined]
    np.save("first.npy", pixels[0])
    for number, image in enumerate(pixels[1:]):
        Image.fromarray(image[0]).save(f"{number}.png")
    found = answer(call, "predict", run, "first.npy", *(f"{number}.png" for number in range(5)))["predictions"]
    truth = [str(label) for label in digits.labels()[:6].tolist()]  # type: ignore[index]
    assert sum(one["class"] == label for one, label in zip(found, truth, strict=True)) >= 5
    code, out, _ = call("predict", run, "first.npy", "--which", "best")
    assert code == 0
    assert "first.npy" in out


def test_predict_with_a_clients_own_model(call: Call) -> None:
    run = answer(call, "run", "local-only", *TINY)["run"]
    np.save("x.npy", np.zeros((8, 8), dtype=np.uint8))
    assert answer(call, "predict", run, "x.npy", "--client", "2")["predictions"][0]["probability"] > 0
    code, _, err = call("predict", run, "x.npy")
    assert code == 2
    assert "--client" in err
    assert call("predict", run, "x.npy", "--client", "9")[0] == 2


def test_predictions_are_parts(succeed: Callable[..., str], tmp_path: Path) -> None:
    sizes = {"points": 32, "clients": 2, "rounds": 1}
    run = fedstill.run("fedavg", data="head-parts", out=tmp_path, training={"epochs": 1}, **sizes)
    cloud = np.random.default_rng(0).normal(size=(40, 3))
    np.save("a.npy", cloud)
    np.save("b.npy", 2 * cloud + np.array([5, 0, 0]))
    told = json.loads(succeed("predict", str(run.path), "a.npy", "b.npy", "--json"))
    assert told["classes"] == list(PARTS)
    for answer in told["predictions"]:
        assert answer["counts"] == {part: answer["labels"].count(number) for number, part in enumerate(PARTS)}
        assert len(answer["labels"]) == len(answer["points"]) == 32
        assert np.linalg.norm(answer["points"], axis=1).max() == pytest.approx(1, rel=1e-6)
    said = succeed("predict", str(run.path), "a.npy").splitlines()
    assert said[0].split() == ["file", "part", "points", "share"]
    first = told["predictions"][0]["counts"]
    assert {line.split()[1]: int(line.split()[2]) for line in said[1:]} == {k: v for k, v in first.items() if v}


def test_predict_reads_rows_of_a_table_as_the_training_rows_were(call: Call, tmp_path: Path) -> None:
    cells = [(n * 7 % 11, n % 4 if n % 5 else "", "mf"[n % 3 == 0], ("well", "ill")[n % 2]) for n in range(40)]
    rows = "".join(",".join(map(str, row)) + "\n" for row in cells)
    (tmp_path / "people.csv").write_text(f"age,dose,sex,label\n{rows}")
    made = fedstill.run("fedavg", data=f"table:{tmp_path / 'people.csv'}", clients=2, rounds=1, out=tmp_path / "runs")
    data = load(made.experiment.data)
    assert isinstance(data.test, ArrayDataset)
    with torch.inference_mode():
        right = made.task.predict(made.model(), data.test.columns["inputs"])
    found = answer(call, "predict", str(made.path), "people.csv")["predictions"]
    assert [one["row"] for one in found] == list(range(2, 42))
    said = {(one["class"], round(one["probability"], 5)) for one in found}
    assert {(made.task.classes[int(one.argmax())], round(float(one.max()), 5)) for one in right} <= said
    fedstill.export(made, tmp_path / "model.onnx")
    assert [one["class"] for one in answer(call, "predict", "model.onnx", "people.csv")["predictions"]] == [
        one["class"] for one in found
    ]
    on_arrays = fedstill.run("fedavg", data=(np.eye(9), np.arange(9) % 3), clients=2, rounds=1, out=tmp_path / "runs")
    code, _, err = call("predict", str(on_arrays.path), "people.csv")
    assert code == 2
    assert "does not keep how a table becomes its inputs" in err
