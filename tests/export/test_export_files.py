"""Files of every registered classifier, run by other runtimes than the one that trained it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fedstill.core.errors import InputError, RunError
from fedstill.data.catalogue import load
from fedstill.export import export_files, export_onnx, export_pt2
from fedstill.export.quantise import quantised
from fedstill.models import models
from fedstill.models.classifier import Classifier
from fedstill.models.portable.onnx_file import OnnxModel
from fedstill.models.portable.program import read_pt2
from fedstill.tasks.classification import Classification
from fedstill.tasks.task_choice import task_of

# Larger or deeper forms of models that are tested each time: exporting all of them takes minutes.
LARGE = {
    "pointnet2-msg",
    "resnet18",
    "resnet20",
    "resnet50",
    "resnet50-imagenet",
    "vit-tiny",
    "wrn16-4",
    "pointnet",
    "pointnet-tiny",
    "pointnet2",
    "pointnet2-lite",
    "small-pointnet2",
}
CLASSIFIERS = [name for name in models.names() if task_of(name) is Classification]
SHALLOW = ["vit-tiny:depth=2"]  # in place of twelve equal blocks
EVERY = [
    *(pytest.param(name, marks=pytest.mark.slow if name in LARGE else ()) for name in CLASSIFIERS),
    *SHALLOW,
]

MakeTask = Callable[[str], Classification]
MakeModel = Callable[[str], nn.Module]
MakeOnnx = Callable[[str], bytes]


def furthest(model: nn.Module, exported: nn.Module, inputs: Tensor) -> float:
    with torch.inference_mode():
        return max(float((one - other).abs().max()) for one, other in zip(model(inputs), exported(inputs), strict=True))


@pytest.mark.parametrize("name", EVERY)
def test_onnx_says_what_pytorch_says(
    name: str, make_task: MakeTask, make_trained: MakeModel, make_onnx: MakeOnnx
) -> None:
    exported, shape = OnnxModel(make_onnx(name)), make_task(name).shape
    for batch in (1, 3, 32):
        inputs = torch.randn(batch, *shape) / 2
        assert furthest(make_trained(name), exported, inputs) < 1e-4
    assert [put.name for put in exported.session.get_inputs()] == ["inputs"]
    assert [put.name for put in exported.session.get_outputs()] == ["log_probabilities", "features"]
    assert exported.session.get_inputs()[0].shape == ["batch", *shape]
    assert exported.session.get_outputs()[0].shape == ["batch", 5]


def test_every_classifier_is_tested() -> None:
    assert len(CLASSIFIERS) >= 17
    assert set(CLASSIFIERS) >= LARGE


def test_onnx_on_digits_and_heads(make_trained: MakeModel, make_onnx: MakeOnnx) -> None:
    pixels = load("digits").test.batch(torch.arange(64))["inputs"]
    assert furthest(make_trained("cnn-bn"), OnnxModel(make_onnx("cnn-bn")), pixels) < 1e-4
    clouds = load("heads").with_points(96).test.batch(torch.arange(40))["inputs"]
    whole = OnnxModel(make_onnx("small-pointnet2-lite"))
    assert furthest(make_trained("small-pointnet2-lite"), whole, clouds) < 1e-4
    # In pieces it is the same to the last digits, and in order.
    pieces = OnnxModel(make_onnx("small-pointnet2-lite"), at_once=7)
    assert furthest(whole, pieces, clouds) < 1e-5


def test_metadata_says_how_to_use_the_file(make_onnx: MakeOnnx) -> None:
    about = OnnxModel(make_onnx("cnn")).about()
    assert json.loads(about["classes"]) == ["a", "b", "c", "d", "é"]
    reads = json.loads(about["input"])
    assert reads["name"] == "inputs"
    assert reads["shape"] == ["batch", 1, 8, 8]
    assert "127.5" in reads["meaning"]
    assert set(json.loads(about["outputs"])) == {"log_probabilities", "features"}
    assert about["model"] == "cnn"
    assert about["run"] == "0123"
    assert (
        "largest norm"
        in json.loads(export_files.describe(Classification(("a", "b"), (9, 3), ("pointnet",)))["input"])["meaning"]
    )


def test_a_sampling_loop_is_written_once(make_onnx: MakeOnnx, make_trained: MakeModel) -> None:
    """64 samples by one loop: weights and little else, and nothing about the machine that wrote them."""
    data = make_onnx("small-pointnet2-lite")
    weights = 4 * sum(parameter.numel() for parameter in make_trained("small-pointnet2-lite").parameters())
    assert len(data) < weights + 20_000
    assert str(Path(export_files.__file__).parents[3]).encode() not in data
    assert b"site-packages" not in data


def test_the_same_model_gives_the_same_bytes(make_task: MakeTask, make_trained: MakeModel, tmp_path: Path) -> None:
    first = export_onnx(make_trained("mlp"), make_task("mlp"), tmp_path / "first.onnx")
    again = export_onnx(make_trained("mlp"), make_task("mlp"), tmp_path / "again.ONNX")
    assert first.path.read_bytes() == again.path.read_bytes()
    assert first.bytes == first.path.stat().st_size
    assert first.difference < 1e-4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.ONNX", "first.onnx"]


@pytest.mark.parametrize("name", ["cnn-bn", "small-pointnet2-lite", pytest.param("dgcnn", marks=pytest.mark.slow)])
def test_pt2_says_what_pytorch_says(name: str, make_task: MakeTask, make_trained: MakeModel, tmp_path: Path) -> None:
    written = export_pt2(make_trained(name), make_task(name), tmp_path / "model.pt2", about={"run": "0123"})
    loaded, about = read_pt2(written.path.read_bytes())
    for batch in (1, 3, 32):
        assert furthest(make_trained(name), loaded, torch.randn(batch, *make_task(name).shape) / 2) < 1e-4
    assert about["run"] == "0123"
    assert json.loads(about["classes"])[-1] == "é"


@pytest.mark.parametrize("name", ["cnn-bn", "small-pointnet2-lite"])
def test_eight_bits_are_smaller_and_still_near(
    name: str, make_task: MakeTask, make_trained: MakeModel, make_onnx: MakeOnnx
) -> None:
    data = make_onnx(name)
    smaller = quantised(data)
    assert len(smaller) < 0.5 * len(data)
    small, whole = OnnxModel(smaller), OnnxModel(data)
    assert small.about() == whole.about() | {"weights": "8-bit integers, dynamic quantisation"}
    for batch in (1, 3):
        inputs = torch.randn(batch, *make_task(name).shape) / 2
        difference = furthest(make_trained(name), small, inputs)
        assert 0 < difference < 0.5


def test_a_file_that_disagrees_is_never_put_in_place(
    make_task: MakeTask, make_trained: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Off(OnnxModel):
        def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
            found, features = super().forward(inputs)
            return (found + (2e-4 if len(inputs) == 3 else 0)) * 1.0, features

    (tmp_path / "model.onnx").write_bytes(b"before")
    monkeypatch.setattr(export_files, "OnnxModel", Off)
    with pytest.raises(RunError, match=r"log_probabilities are up to 0\.0002 off in a batch of 3"):
        export_onnx(make_trained("mlp"), make_task("mlp"), tmp_path / "model.onnx")
    assert (tmp_path / "model.onnx").read_bytes() == b"before"
    assert len(list(tmp_path.iterdir())) == 1


def test_large_outputs_are_compared_by_their_digits() -> None:
    class Says(nn.Module):
        def __init__(self, value: float) -> None:
            super().__init__()
            self.value = value

        def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
            return torch.full((len(inputs), 2), self.value), torch.zeros(len(inputs), 1)

    inputs = torch.zeros(4, 1)
    assert export_files.check_parity(Says(-1000.0), Says(-1000.05), inputs).difference == pytest.approx(0.05, rel=1e-2)
    with pytest.raises(RunError):
        export_files.check_parity(Says(-1.0), Says(-1.05), inputs)
    with pytest.raises(RunError):
        export_files.check_parity(Says(-1.0), Says(float("nan")), inputs)


@pytest.mark.parametrize("path", ["model", "model.pt", "model.tflite"])
def test_an_unknown_suffix_is_refused(path: str, make_task: MakeTask, make_trained: MakeModel, tmp_path: Path) -> None:
    for write in (export_onnx, export_pt2):
        with pytest.raises(InputError, match="suffix"):
            write(make_trained("mlp"), make_task("mlp"), tmp_path / path)
    assert list(tmp_path.iterdir()) == []


def test_unwritable_places_are_refused(make_task: MakeTask, make_trained: MakeModel, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "folder.pt2").mkdir()
    for place in ("file/model.pt2", "folder.pt2"):
        with pytest.raises(InputError, match=r"cannot write|is a folder"):
            export_pt2(make_trained("mlp"), make_task("mlp"), tmp_path / place)
    with pytest.raises(InputError, match="cannot write"):
        export_pt2(make_trained("mlp"), make_task("mlp"), "/dev/full/model.pt2")


def test_models_that_are_of_no_use_are_refused(make_task: MakeTask, make_trained: MakeModel, tmp_path: Path) -> None:
    broken = Classifier(nn.Flatten(), nn.Linear(64, 5), 64)
    nn.init.constant_(broken.head.bias, torch.nan)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="not finite"):
        export_pt2(broken, make_task("mlp"), tmp_path / "model.pt2")
    with pytest.raises(InputError, match="not a classifier"):
        export_pt2(nn.Flatten(), make_task("mlp"), tmp_path / "model.pt2")

    class Asks(nn.Module):
        def forward(self, inputs: Tensor) -> Tensor:
            return inputs.flatten(1) if float(inputs.sum()) > 0 else -inputs.flatten(1)

    with pytest.raises(InputError, match=r"cannot be exported: torch\.export says"):
        export_pt2(Classifier(Asks(), nn.Linear(64, 5), 64), make_task("mlp"), tmp_path / "model.pt2")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_extra_is_named(
    make_task: MakeTask, make_trained: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "fedstill.models.portable.extra.find_spec", lambda name: None if name == "onnxscript" else object()
    )
    with pytest.raises(InputError, match=r"need onnxscript: install them with pip install 'fedstill\[export\]'"):
        export_onnx(make_trained("mlp"), make_task("mlp"), tmp_path / "model.onnx")
