"""Checks of an ONNX program that comes from somebody else, before it is loaded.

onnxruntime reads the files that a program names, runs loops that a program writes, and knows operators of many vendors.
A peer's model needs none of these: it computes, from its own weights and an input.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fedstill.core.errors import InputError
from fedstill.models.portable.extra import package

LARGEST = 256 * 2**20  # bytes
_NAMES = (
    "Abs Add ArgMax ArgMin AveragePool BatchNormalization Cast Clip Concat Constant ConstantOfShape Conv "
    "Div Dropout Equal Erf Exp Expand Flatten Gather GatherElements GatherND Gelu Gemm GlobalAveragePool "
    "GlobalMaxPool Greater GreaterOrEqual GroupNormalization HardSigmoid HardSwish Identity "
    "LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax MatMul Max MaxPool Mean Min Mul Neg Not "
    "Pad Pow Range Reciprocal ReduceMax ReduceMean ReduceMin ReduceSum Relu Reshape ScatterElements Shape "
    "Sigmoid Sign Slice Softmax Softplus Split Sqrt Squeeze Sub Sum Tanh Tile TopK Transpose Unsqueeze "
    "Where"
)
OPERATORS = frozenset(_NAMES.split())


def check_program(data: bytes) -> None:
    """Refuse a program that names files, contains further programs, has unknown operators or is too large."""
    if len(data) > LARGEST:
        raise InputError(f"the program has {len(data):,} bytes, and {LARGEST:,} are the most")
    onnx = package("onnx")
    try:
        model = onnx.load_model_from_string(data)
    except Exception as error:  # protobuf's errors for bytes that are something else
        raise InputError("the program is not an ONNX file") from error
    if model.functions or model.training_info:
        raise InputError("the program defines operators of its own")
    for node in model.graph.node:
        if node.domain not in ("", "ai.onnx") or node.op_type not in OPERATORS:
            named = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
            raise InputError(f"the program has the operator {named[:80]!r}, which no peer's model needs")
        if any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute):
            raise InputError(f"the program has a program within it, in {node.op_type}")
    for tensor in _tensors(model.graph):
        if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.external_data:
            raise InputError("the program names a file for its weights, which is never read")


def _tensors(graph: Any) -> Iterator[Any]:
    """Every tensor of a graph: weights, sparse weights, and attributes of operators."""
    yield from graph.initializer
    sparse = list(graph.sparse_initializer)
    for node in graph.node:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            sparse += [attribute.sparse_tensor, *attribute.sparse_tensors]
    for one in sparse:
        yield from (one.values, one.indices)
