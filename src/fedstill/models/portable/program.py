"""Models captured by `torch.export`: the starting point of both file formats, and the contents of a `.pt2` file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from io import BytesIO
from typing import Any

import torch
from torch import Tensor, nn

from fedstill.core.errors import InputError
from fedstill.models.portable.extra import hushed
from fedstill.models.portable.written_out import portable

INPUT = "inputs"
OUTPUTS = ("log_probabilities", "features")  # of classifiers
_EXTRA_FILE = "fedstill.json"


class _OneInput(nn.Module):
    """Names the input, and hides further arguments of a model's `forward`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.model(inputs))


def captured(model: nn.Module, shape: tuple[int, ...]) -> torch.export.ExportedProgram:
    """The model in plain operators, for batches of any size of inputs of this shape."""
    example = torch.zeros(2, *shape)
    batch = torch.export.Dim("batch", min=1)
    try:
        with hushed(), torch.no_grad():
            return torch.export.export(
                _OneInput(portable(model)).eval(), (example,), dynamic_shapes=({0: batch},), strict=False
            )
    except Exception as error:  # a user's own model may do anything that cannot be captured
        raise InputError(f"this model cannot be exported: torch.export says: {first_line(error)}") from error


def pt2_bytes(model: nn.Module, shape: tuple[int, ...], about: Mapping[str, str]) -> bytes:
    """A `.pt2` file: a program of plain torch operators that runs wherever torch does, without Fedstill."""
    buffer = BytesIO()
    with hushed():
        torch.export.save(captured(model, shape), buffer, extra_files={_EXTRA_FILE: json.dumps(dict(about))})
    return buffer.getvalue()


def read_pt2(data: bytes) -> tuple[nn.Module, dict[str, str]]:
    """The model in a `.pt2` file and its metadata.

    Only for files that you trust: `torch.export.load` unpickles parts of them, and a pickle can run any code.
    """
    about: dict[str, Any] = {_EXTRA_FILE: ""}
    with hushed():
        module = torch.export.load(BytesIO(data), extra_files=about).module()
    return module, json.loads(about[_EXTRA_FILE] or "{}")


def first_line(error: BaseException) -> str:
    """The first line of an exporter's long error message."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
