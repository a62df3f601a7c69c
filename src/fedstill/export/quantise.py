"""8-bit integers instead of floats: a quarter of the size, at a price in accuracy that has to be measured."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from fedstill.models.portable.extra import hushed, package
from fedstill.models.portable.onnx_file import with_metadata


def quantised(data: bytes) -> bytes:
    """An ONNX file whose linear maps and convolutions have 8-bit weights, the same in everything else.

    Dynamic quantisation: activations become 8-bit while the file runs, in a range that each layer finds in the batch
    at hand, so that no data is needed to prepare it, and outputs of a sample depend a little on its batch. Distances
    and sampling stay in floats. Unsigned weights, because onnxruntime has no signed convolution of this kind.
    """
    onnx, tools = package("onnx"), package("onnxruntime.quantization")
    model = onnx.load_from_string(data)
    about = {entry.key: entry.value for entry in model.metadata_props}
    with TemporaryDirectory() as folder, hushed():
        path = Path(folder) / "quantised.onnx"
        tools.quantize_dynamic(model, path, weight_type=tools.QuantType.QUInt8)
        smaller = onnx.load(path)
    return with_metadata(smaller, about | {"weights": "8-bit integers, dynamic quantisation"})
