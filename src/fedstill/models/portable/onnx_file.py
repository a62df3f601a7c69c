"""Export to ONNX: one input, a batch of any size, and all information for users in the metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedstill.core.errors import InputError
from fedstill.models.portable.extra import hushed, package
from fedstill.models.portable.program import INPUT, OUTPUTS, captured, first_line

OPSET = 20  # read by onnxruntime 1.18 and later


def onnx_bytes(
    model: nn.Module, shape: tuple[int, ...], about: Mapping[str, str], outputs: Sequence[str] = OUTPUTS
) -> bytes:
    """An ONNX file that computes the named outputs, which the model returns as a tuple, of `inputs`."""
    program = captured(model, shape)
    try:
        with hushed():
            written = torch.onnx.export(
                program,
                dynamo=True,
                opset_version=OPSET,
                input_names=[INPUT],
                output_names=list(outputs),
                verbose=False,
            )
            assert written is not None
            proto = written.model_proto
    except Exception as error:  # a user's own model may use an operator that ONNX does not have
        raise InputError(f"this model cannot be written as ONNX: {first_line(error)}") from error
    (batch,) = {dim.dim_param for dim in proto.graph.input[0].type.tensor_type.shape.dim if dim.dim_param}
    _tidy(proto.graph, batch)
    return with_metadata(proto, about)


def with_metadata(proto: Any, about: Mapping[str, str]) -> bytes:
    """The file with this metadata, in a fixed order, so that the same model gives the same bytes."""
    del proto.metadata_props[:]
    for key in sorted(about):
        proto.metadata_props.add(key=key, value=about[key])
    data: bytes = proto.SerializeToString(deterministic=True)
    return data


def _tidy(graph: Any, batch: str) -> None:
    """Name the first axis `batch`, and remove the exporter's notes, which name files of the exporting machine."""
    del graph.metadata_props[:]
    del graph.value_info[:]
    for value in (*graph.input, *graph.output):
        del value.metadata_props[:]
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == batch:
                dim.dim_param = "batch"
    for weights in graph.initializer:
        del weights.metadata_props[:]
    for node in graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _tidy(attribute.g, batch)


class OnnxModel(nn.Module):
    """An ONNX file as a model, run by onnxruntime on the CPU.

    Idle threads of onnxruntime do not spin, so that they do not slow down later computations. With `at_once`, large
    batches are processed in pieces: neighbourhoods are materialised, which for a thousand clouds would exceed the
    memory of a small machine.
    """

    def __init__(
        self, data: bytes, threads: int = 1, at_once: int | None = None, outputs: Sequence[str] = OUTPUTS
    ) -> None:
        super().__init__()
        runtime = package("onnxruntime")
        options = runtime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self.session = runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        self.at_once, self.outputs = at_once, list(outputs)

    def forward(self, inputs: Tensor) -> tuple[Tensor, ...]:
        pieces = [inputs] if self.at_once is None else inputs.split(self.at_once)
        found = [self.session.run(self.outputs, {INPUT: piece.contiguous().numpy()}) for piece in pieces]
        return tuple(torch.cat([torch.from_numpy(one) for one in each]) for each in zip(*found, strict=True))

    def about(self) -> dict[str, str]:
        """The metadata of the file."""
        return dict(self.session.get_modelmeta().custom_metadata_map)
