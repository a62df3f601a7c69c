"""A peer's program is read before it is loaded: it may compute, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fedstill.core.errors import InputError
from fedstill.models import build_model
from fedstill.models.portable import program_check
from fedstill.models.portable.onnx_file import onnx_bytes
from fedstill.models.portable.program_check import check_program
from fedstill.queries.peers import programmed

from ...queries.asked import planned

onnx = pytest.importorskip("onnx")


@pytest.fixture(scope="module")
def good() -> bytes:
    return onnx_bytes(build_model("mlp", (1, 8, 8), 10).eval(), (1, 8, 8), {})


def secret_as_weights(model: Any, folder: Path) -> None:
    """Its first weights are those of a file in the working directory: this read 32 of 32 bytes of a private key."""
    tensor = model.graph.initializer[0]
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.ClearField("raw_data")
    tensor.external_data.add(key="location", value="site.key")


def secret_in_a_constant(model: Any, folder: Path) -> None:
    tensor = onnx.TensorProto(name="x", data_type=1, dims=[8], data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="site.key")
    model.graph.node.append(onnx.helper.make_node("Constant", [], ["x"], value=tensor))


def location_without_the_flag(model: Any, folder: Path) -> None:
    model.graph.initializer[0].external_data.add(key="location", value="site.key")


def sparse(model: Any, folder: Path) -> None:
    values = onnx.TensorProto(name="s", data_type=1, dims=[1], data_location=onnx.TensorProto.EXTERNAL)
    values.external_data.add(key="location", value="site.key")
    model.graph.sparse_initializer.append(onnx.SparseTensorProto(values=values, dims=[4]))


def loop(model: Any, folder: Path) -> None:
    body = onnx.helper.make_graph([], "body", [], [])
    model.graph.node.append(onnx.helper.make_node("Loop", ["", ""], ["y"], body=body))


def graph_in_a_harmless_operator(model: Any, folder: Path) -> None:
    body = onnx.helper.make_graph([], "body", [], [])
    model.graph.node.append(onnx.helper.make_node("Add", ["a", "b"], ["y"], body=body))


def vendor(model: Any, folder: Path) -> None:
    model.graph.node.append(onnx.helper.make_node("Gemm", ["a", "b"], ["y"], domain="com.microsoft"))


def function(model: Any, folder: Path) -> None:
    model.functions.append(onnx.FunctionProto(name="Gemm", domain=""))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (secret_as_weights, "names a file for its weights"),
        (secret_in_a_constant, "names a file for its weights"),
        (location_without_the_flag, "names a file for its weights"),
        (sparse, "names a file for its weights"),
        (loop, "the operator 'Loop'"),
        (graph_in_a_harmless_operator, "a program within it, in Add"),
        (vendor, "the operator 'com.microsoft.Gemm'"),
        (function, "operators of its own"),
    ],
)
def test_what_is_refused(
    change: Callable[[Any, Path], None], says: str, good: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "site.key").write_bytes(bytes(range(256)) * 100)
    model = onnx.load_model_from_string(good)
    change(model, tmp_path)
    data = model.SerializeToString()
    with pytest.raises(InputError, match=says):
        check_program(data)
    task = planned("qkt").task
    assert programmed(task, torch.frombuffer(bytearray(data), dtype=torch.uint8)) is None


def test_other_bytes_and_too_many_of_them(good: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="not an ONNX file"):
        check_program(b"\xff" * 64)
    monkeypatch.setattr(program_check, "LARGEST", len(good) - 1)
    with pytest.raises(InputError, match="are the most"):
        check_program(good)


@pytest.mark.parametrize(("name", "shape"), [("cnn-bn", (1, 8, 8)), ("mlp", (1, 8, 8)), ("resnet8", (3, 16, 16))])
def test_models_of_images_pass(name: str, shape: tuple[int, ...]) -> None:
    check_program(onnx_bytes(build_model(name, shape, 10).eval(), shape, {}))


def test_a_model_that_needs_a_loop_is_refused_before_any_work() -> None:
    clouds = {"data": "heads", "model": "small-pointnet2-lite", "points": 64}
    with pytest.raises(
        InputError, match=r"small-pointnet2-lite cannot be offered as a program: .*'Scan'.*teachers=weights"
    ):
        planned("qkt", {"teachers": "program"}, **clouds)
