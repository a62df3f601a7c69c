"""An exported ONNX file in place of a run: what it says about itself is enough to use it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedstill.core.errors import InputError
from fedstill.core.files import read_file
from fedstill.data.feature_preparation import Preparation
from fedstill.models.portable.extra import package
from fedstill.models.portable.onnx_file import OnnxModel
from fedstill.tasks.classification import Classification
from fedstill.tasks.task_choice import tasks

SUFFIX = ".onnx"


class ExportedFile:
    """A file that `fedstill export` wrote; its model computes with onnxruntime on the CPU."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise InputError(f"there is no file {self.path}")
        package("onnxruntime")  # refused here where it is missing, whatever the file is
        try:
            self._model = OnnxModel(read_file(self.path))
        except Exception as error:  # onnxruntime raises errors of its own kinds for files that are none of its
            why = " ".join(str(error).split())[:200]
            raise InputError(f"{self.path} is no ONNX file that can be read ({why}): export it again") from None
        about = self._model.about()
        self.task = self._task(about)
        self.data = about.get("data", "")  # the name of what its model was trained on
        self.preparation = self._preparation(about.get("features", ""))

    def architecture(self, name: str | None = None, client: int | None = None) -> str:
        """The same for every choice: a file has one model."""
        if name is not None or client is not None:
            raise InputError(f"{self.path} holds one model: leave --architecture and --client out")
        return self.task.architectures[0]

    def built(self, which: str = "last", client: int | None = None, architecture: str | None = None) -> nn.Module:
        """Its model, with the outputs of the one it was exported from."""
        if which != "last":
            raise InputError(f"{self.path} holds one model: leave --which {which} out")
        self.architecture(architecture, client)
        form = self.task.file_form()
        self._model.outputs = list(form.outputs)
        return form.read(_OfShape(self._model, self))

    def _task(self, about: Mapping[str, str]) -> Classification:
        try:
            name, classes = about.get("task", "classification"), json.loads(about["classes"])
            shape = json.loads(about["input"])["shape"][1:]
            return tasks[name](_names(classes), _sides(shape), (about["model"],))
        except (KeyError, ValueError, TypeError, InputError):
            raise InputError(
                f"{self.path} does not say what its inputs and classes are: only files of fedstill export can be used"
            ) from None

    def _preparation(self, text: str) -> Preparation | None:
        """How cells of a table became the features that its model reads."""
        try:
            return Preparation.from_dict(json.loads(text)) if text else None
        except (KeyError, ValueError, TypeError):
            raise InputError(f"{self.path} does not say how its features were made: export it again") from None


class _OfShape(nn.Module):
    """Refuses inputs of another shape with a sentence, where onnxruntime would raise an error of its own."""

    def __init__(self, exported: nn.Module, file: ExportedFile) -> None:
        super().__init__()
        self.exported, self.shape, self.where = exported, file.task.shape, file.path

    def forward(self, inputs: Tensor) -> Any:
        if tuple(inputs.shape[1:]) != self.shape or inputs.dtype != torch.float32:
            sides, given = ("x".join(map(str, each)) for each in (self.shape, inputs.shape[1:]))
            raise InputError(f"{self.where} takes inputs of {sides} float32 numbers each, not {given} {inputs.dtype}")
        return self.exported(inputs)


def _names(classes: Any) -> tuple[str, ...]:
    if not isinstance(classes, list) or not classes or not all(isinstance(name, str) for name in classes):
        raise ValueError("no list of names")
    return tuple(classes)


def _sides(shape: Any) -> tuple[int, ...]:
    if not shape or not all(isinstance(side, int) and side > 0 for side in shape):
        raise ValueError("no shape")
    return tuple(shape)
