"""Detectors as ONNX files: the boxes of the run, from the command line, in Python, and with onnxruntime alone."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import fedstill
from fedstill.core.errors import InputError, RunError
from fedstill.detection.detector_file import OUTPUTS, ReadDetector, WrittenDetector, detector_form
from fedstill.detection.model import Detector
from fedstill.detection.point_features import with_height
from fedstill.detection.rooms import make_rooms
from fedstill.detection.scene_sets import scene_bundle, some_scenes
from fedstill.engines import InProcess
from fedstill.export import latency
from fedstill.export.export_files import check_parity
from fedstill.export.export_run import Outcome
from fedstill.export.subject import Subject
from fedstill.models.portable.onnx_file import OnnxModel, onnx_bytes
from fedstill.models.portable.program import read_pt2
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.plan import make_plan
from fedstill.runtime.prediction import trained
from fedstill.runtime.result import Run
from fedstill.runtime.run import execute

from ..pages import blocks
from .small_scenes import tiny_detector

Call = Callable[..., tuple[int, str, str]]
POINTS = 256


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    every = make_rooms(8, points=POINTS, seen=2)
    splits = {"train": some_scenes(every, torch.arange(6)), "test": some_scenes(every, torch.arange(6, 8))}
    given = {"method": "fedavg", "data": "few-rooms", "model": "small-detr3d-lite", "clients": 2, "rounds": 1}
    training = {"epochs": 2, "batch": 3}
    plan = make_plan(make_experiment({**given, "training": training}), bundle=scene_bundle("few-rooms", splits))
    with InProcess() as engine:
        return Run(execute(plan, engine, tmp_path_factory.mktemp("runs")).path)


@pytest.fixture(scope="module")
def outcome(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return fedstill.export(run, tmp_path_factory.mktemp("files") / "detector.onnx")


@pytest.fixture
def scan(tmp_path: Path) -> Path:
    np.save(tmp_path / "room.npy", make_rooms(1, points=600, first=20).points[0].numpy())
    return tmp_path / "room.npy"


def test_the_file_agrees_with_the_run_on_scenes_and_batches(run: Run, outcome: Outcome) -> None:
    assert outcome.file.difference < 1e-4
    assert outcome.file.chosen_otherwise == 0
    session = onnxruntime.InferenceSession(outcome.file.path)
    model = run.built().eval()
    for batch, first in ((1, 30), (2, 40), (5, 50)):
        points = make_rooms(batch, points=POINTS, first=first, seen=3).points
        boxes, objectness, probabilities, _ = session.run(None, {"inputs": points.numpy()})
        with torch.inference_mode():
            last = model(points).layers[-1]
        assert torch.allclose(torch.from_numpy(boxes), last.boxes, atol=1e-4)
        assert torch.allclose(torch.from_numpy(probabilities), last.log_probabilities[..., :-1].exp(), atol=1e-5)
        assert np.allclose(probabilities.sum(axis=-1), objectness, atol=1e-5)


def test_what_the_file_says_about_itself(run: Run, outcome: Outcome) -> None:
    about = OnnxModel(outcome.file.path.read_bytes()).about()
    assert json.loads(about["classes"]) == list(run.task.classes)
    assert json.loads(about["input"])["shape"] == ["batch", POINTS, 3]
    assert "metres" in json.loads(about["input"])["meaning"]
    assert list(json.loads(about["outputs"])) == list(OUTPUTS)
    assert (about["task"], about["points"], about["run"]) == ("detection", str(POINTS), run.config["identity"])
    suppression = json.loads(about["suppression"])
    assert (suppression["overlap"], suppression["least_score"]) == (0.25, 0.3)


def test_detect_gives_the_boxes_of_the_run(
    call: Call,
    run: Run,
    outcome: Outcome,
    scan: Path,
) -> None:
    words = (str(scan), "--least", "0", "--json")
    (of_run,) = json.loads(call("detect", str(run.path), *words)[1])["scenes"]
    code, out, err = call("detect", str(outcome.file.path), *words)
    assert (code, err) == (0, "")
    (of_file,) = json.loads(out)["scenes"]
    assert json.loads(out)["model"] == "small-detr3d-lite"
    assert [box["class"] for box in of_file["boxes"]] == [box["class"] for box in of_run["boxes"]]
    assert len(of_run["boxes"]) > 3
    for one, other in zip(of_file["boxes"], of_run["boxes"], strict=True):
        assert one["score"] == pytest.approx(other["score"], abs=2e-4)
        assert one["centre"] + one["size"] == pytest.approx(other["centre"] + other["size"], abs=2e-3)
    code, out, _ = call("detect", str(outcome.file.path), str(scan), "--html", "view.html")
    assert code == 0
    assert "detector.onnx" in Path("view.html").read_text(encoding="utf-8")
    (again,) = fedstill.detect(outcome.file.path, scan)
    assert again.sure(0.0) == of_file["boxes"]


def test_bad_use_gets_a_sentence(
    call: Call,
    run: Run,
    outcome: Outcome,
    scan: Path,
    tmp_path: Path,
) -> None:
    file = str(outcome.file.path)
    classifier = fedstill.run("fedavg", data="digits", model="mlp", clients=2, rounds=1, out=tmp_path / "runs")
    fedstill.export(classifier, tmp_path / "digits.onnx")
    (tmp_path / "torn.onnx").write_bytes(outcome.file.path.read_bytes()[:5000])
    (tmp_path / "empty.onnx").write_bytes(b"")
    bare = onnx_bytes(nn.Sequential(_Pair()), (2,), {})
    (tmp_path / "bare.onnx").write_bytes(bare)
    for words, sentence in {
        ("detect", "digits.onnx", str(scan)): "digits.onnx is no detector: its model mlp finds no boxes",
        ("detect", "torn.onnx", str(scan)): "torn.onnx is no ONNX file that can be read",
        ("detect", "empty.onnx", str(scan)): "empty.onnx is no ONNX file that can be read",
        ("detect", "bare.onnx", str(scan)): "bare.onnx does not say what its inputs and classes are",
        ("detect", "nowhere.onnx", str(scan)): "there is no file nowhere.onnx",
        ("detect", "model.pt2", str(scan)): "export .onnx instead",
        ("detect", file, str(scan), "--which", "best"): "holds one model: leave --which best out",
        ("detect", file, str(scan), "--client", "0"): "holds one model",
        ("predict", file, str(scan)): "finds boxes in scenes: say fedstill detect",
        ("export", str(run.path), "x.onnx", "--int8"): "8-bit weights are for classifiers",
    }.items():
        code, out, err = call(*words)
        assert (code, out) == (2, ""), words
        assert sentence in " ".join(err.split()), (words, err)
    assert not Path("x.onnx").exists()
    with pytest.raises(InputError, match="takes inputs of 256x3 float32 numbers each, not 255x3"):
        trained(file).built()(torch.zeros(1, 255, 3))


def test_a_classifier_predicts_from_its_file(call: Call, tmp_path: Path) -> None:
    run = fedstill.run("fedavg", data="digits", model="mlp", clients=2, rounds=1, out=tmp_path / "runs")
    fedstill.export(run, tmp_path / "digits.onnx")
    np.save(tmp_path / "x.npy", np.arange(64, dtype=np.uint8).reshape(8, 8))
    of_run = json.loads(call("predict", str(run.path), "x.npy", "--json")[1])["predictions"]
    of_file = json.loads(call("predict", "digits.onnx", "x.npy", "--json")[1])["predictions"]
    assert of_file[0]["class"] == of_run[0]["class"]
    assert of_file[0]["probability"] == pytest.approx(of_run[0]["probability"], abs=1e-5)


def test_latency_of_a_detector(run: Run, outcome: Outcome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency, "onnx_bytes", lambda *_: outcome.file.path.read_bytes())  # exporting takes longer
    quick = latency.Protocol(passes=1, warm_ups=0, batches=(1,), threads=(1,))
    (measured,) = latency.measure([Subject(run)], quick)
    assert [each.runtime for each in measured.latency] == ["pytorch", "onnxruntime"]
    assert measured.onnx_bytes is not None
    assert measured.parameters == sum(parameter.numel() for parameter in run.model().parameters())


@pytest.mark.parametrize(
    ("bins", "points", "columns", "layers"),  # writing a file takes seconds for each layer
    [
        (6, 300, 7, 1),
        pytest.param(6, 300, 3, 2, marks=pytest.mark.slow),
        pytest.param(1, 96, 3, 2, marks=pytest.mark.slow),
    ],
)
def test_other_sizes_headings_and_features(bins: int, points: int, columns: int, layers: int) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        tiny = tiny_detector((points, 3), 4, 0.0)
        assert isinstance(tiny, Detector)
        sizes = replace(tiny.sizes, angle_bins=bins, encoder_layers=layers, decoder_layers=layers)
        written = WrittenDetector(Detector(sizes, 4, "tiny", channels=columns - 3)).eval()
        colours = torch.rand(4, points, 3) - 0.5
    exported = OnnxModel(onnx_bytes(written, (points, columns), {}, tuple(OUTPUTS)), outputs=tuple(OUTPUTS))
    rooms = make_rooms(4, points=points, seen=3).points
    rooms = rooms if columns == 3 else with_height(torch.cat([rooms, colours], dim=-1))
    rooms[3, points // 2 :] = rooms[3, 0]  # fewer locations than tokens or points
    parity = check_parity(written, exported, rooms, tuple(OUTPUTS), "query_positions")
    assert parity.difference < 1e-4
    assert parity.chosen_otherwise == 0
    with torch.inference_mode():
        headings = written(rooms)[0][..., 6]
    assert bool((headings != 0).any()) == (bins > 1)


@pytest.mark.slow
def test_a_program_of_torch_export_agrees_too(run: Run, tmp_path: Path) -> None:
    written = fedstill.export(run, tmp_path / "detector.pt2").file
    assert written.difference < 1e-4
    assert written.chosen_otherwise == 0
    program, about = read_pt2(written.path.read_bytes())
    assert (about["task"], about["points"]) == ("detection", str(POINTS))
    points = make_rooms(2, points=POINTS, first=60, seen=3).points
    with torch.inference_mode():
        assert torch.allclose(program(points)[0], run.built().eval()(points).layers[-1].boxes, atol=1e-4)


def test_a_file_read_back_is_the_detector() -> None:
    model = tiny_detector((64, 3), 4, 0.0).eval()
    points = make_rooms(2, points=64).points
    with torch.inference_mode():
        wanted, found = model(points), ReadDetector(WrittenDetector(model))(points)
    assert torch.equal(found.layers[-1].boxes, wanted.layers[-1].boxes)
    assert torch.allclose(found.layers[-1].log_probabilities, wanted.layers[-1].log_probabilities, atol=1e-5)
    assert torch.equal(found.places, wanted.places)
    assert torch.equal(found.extent, points.amax(1) - points.amin(1))


def test_the_script_of_the_documentation_needs_only_the_file(
    run: Run, outcome: Outcome, scan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its boxes are those of the run, on the same points."""
    (script,) = [body for name, body in blocks("docs/detection.md", "python") if name == "use_detector.py"]
    points = make_rooms(1, points=POINTS, first=21).points
    np.save(scan, points[0].numpy())
    assert "fedstill" not in script.replace("detector", "")
    script = script.replace(
        "np.random.default_rng(0).choice(len(scan), count, replace=len(scan) < count)", "slice(None)"
    )
    script = script.replace('rule["least_score"]', "0.1")
    (tmp_path / "use_detector.py").write_text(script)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["use_detector.py", str(outcome.file.path), str(scan)])
        runpy.run_path(str(tmp_path / "use_detector.py"))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    (wanted,) = run.task.detect(run.built(), points, least=0.1)  # type: ignore[attr-defined]
    assert len(lines) == len(wanted.scores) > 1
    for words, box, score in zip(lines, wanted.boxes.tolist(), wanted.scores.tolist(), strict=True):
        assert [float(word) for word in words[-8:]] == pytest.approx([score, *box], abs=2e-3)


class _Pair(nn.Module):
    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        return inputs + 1, inputs + 2


class _Chooses(nn.Module):
    """Two outputs of each sample: what was chosen, and a value."""

    def __init__(self, chosen: list[float], value: float) -> None:
        super().__init__()
        self.chosen, self.value = torch.tensor(chosen).float(), value

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        chosen = self.chosen[: len(inputs)].unsqueeze(1)
        return torch.full_like(chosen, self.value) + 5 * chosen, chosen


def test_samples_with_another_choice_are_counted_and_must_be_few() -> None:
    inputs, names = torch.zeros(5, 1), ("value", "chosen")
    model = _Chooses([0, 0, 0, 0, 0], 1.0)
    parity = check_parity(model, _Chooses([0, 0, 0, 1, 0], 1.00005), inputs, names, "chosen")
    assert parity.chosen_otherwise == 1
    assert parity.difference == pytest.approx(5e-5, rel=1e-2)
    with pytest.raises(RunError, match=r"value are up to 0\.001 off in a batch of 1"):
        check_parity(model, _Chooses([0, 0, 0, 1, 0], 1.001), inputs, names, "chosen")
    with pytest.raises(RunError, match="starts from other chosen"):
        check_parity(model, _Chooses([0, 0, 1, 1, 1], 1.0), inputs, names, "chosen")
    with pytest.raises(RunError, match="value are up to 5 off"):
        check_parity(model, _Chooses([0, 0, 0, 1, 0], 1.0), inputs, names)


def test_a_file_says_which_features_it_reads() -> None:
    form = detector_form((64, 7), 0.25)
    assert json.loads(form.about["features"]) == ["colour", "height"]
    assert "red, green and blue" in form.meaning
    assert "above the floor" in form.meaning
    drawn = form.drawn(2, (64, 7), np.random.default_rng(0))
    assert drawn.shape == (2, 64, 7)
    assert drawn[..., 3:6].abs().max() <= 0.5
    assert "features" not in detector_form((64, 3), 0.25).about
