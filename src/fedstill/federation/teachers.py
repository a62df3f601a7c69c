"""Teachers: runs, a file of weights, or a module of the user's own; checked before anyone learns from them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedstill.config import Experiment, TeacherSource
from fedstill.core.errors import InputError
from fedstill.core.kinds import load_state, state_of
from fedstill.core.message import Message, MessageError, digest
from fedstill.core.task import Task
from fedstill.data.bundle import Bundle
from fedstill.distillation.teaching import Teacher
from fedstill.federation.result import Run
from fedstill.models import build_model


def load_teachers(experiment: Experiment, bundle: Bundle, device: str) -> tuple[Experiment, list[Teacher]]:
    """The teachers, and the experiment with a digest of each one's weights, which is what a run is named by."""
    found, sources = [], []
    for source in experiment.teachers:
        teacher = _load(source, bundle)
        teacher.model.to(device).eval().requires_grad_(False)
        sources.append(source.model_copy(update={"model": teacher.architecture, "sha256": _digest(teacher.model)}))
        found.append(teacher)
    return experiment.model_copy(update={"teachers": tuple(sources)}), found


def examine(teachers: Sequence[Teacher], task: Task, bundle: Bundle) -> list[dict[str, Any]]:
    """Each teacher's metrics on the test set; one that does not say numbers is refused."""
    reports = []
    for teacher in teachers:
        metrics = task.summarise(task.score([teacher.model], bundle.test))
        if metrics["non_finite"] > 0:
            raise InputError(
                f"the teacher {teacher.name} gives outputs that are not finite for {metrics['non_finite']:.0%} of the"
                " test samples: nothing can be learnt from it"
            )
        reports.append({"name": teacher.name, "model": teacher.architecture, **metrics})
    return reports


def _load(source: TeacherSource, bundle: Bundle) -> Teacher:
    if source.run is not None:
        return _from_run(source, bundle)
    if source.call is not None:
        model = _called(source.call, bundle)
        if source.file is not None:
            _fill(model, Path(source.file))
        return Teacher(source.call, source.model or source.call, model)
    assert source.file is not None
    assert source.model is not None
    model = build_model(source.model, bundle.shape, len(bundle.classes))
    _fill(model, Path(source.file))
    return Teacher(Path(source.file).name, source.model, model)


def _from_run(source: TeacherSource, bundle: Bundle) -> Teacher:
    run = Run(str(source.run))
    if tuple(run.config["classes"]) != tuple(bundle.classes):
        theirs, ours = len(run.config["classes"]), len(bundle.classes)
        raise InputError(
            f"the teacher {run.path.name} knows {theirs} classes of {run.experiment.data}, and the student is to learn"
            f" {ours} of {bundle.name}: they must be the same classes in the same order"
        )
    return Teacher(run.path.name, str(run.experiment.model), run.model(source.which))


def _called(name: str, bundle: Bundle) -> nn.Module:
    """`module:function`, which gets the shape of an input and the number of classes."""
    module, separator, function = name.partition(":")
    if not separator:
        raise InputError(f"a teacher of your own is written module:function, not {name!r}")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        made = getattr(import_module(module), function)(bundle.shape, len(bundle.classes))
    except (ImportError, AttributeError, TypeError) as error:
        raise InputError(f"the teacher {name} cannot be made: {error}") from None
    if not isinstance(made, nn.Module):
        raise InputError(f"the teacher {name} must return a torch module, not {type(made).__name__}")
    return Foreign(made)


def _fill(model: nn.Module, path: Path) -> None:
    """Weights from a safetensors file, named as Fedstill names them or as torch does."""
    inner = model.model if isinstance(model, Foreign) else model
    try:
        tensors = Message.decode(path.read_bytes())
        kinds = state_of(inner)
        named = tensors if set(tensors) == set(kinds) else {kind: tensors[kind.split("/", 1)[1]] for kind in kinds}
        load_state(inner, named)
    except (OSError, MessageError) as error:
        raise InputError(f"the teacher's weights in {path} cannot be read: {error}") from None
    except (KeyError, RuntimeError) as error:
        raise InputError(
            f"the weights in {path} do not fit the teacher's model: {' '.join(str(error).split())[:200]}"
        ) from None


class Foreign(nn.Module):
    """A module of the user's own, made to speak as ours do: log-probabilities, and features where it has any."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        said = self.model(inputs)
        logits, features = said if isinstance(said, tuple) else (said, inputs.new_empty(len(inputs), 0))
        return F.log_softmax(logits, dim=1), features


def _digest(model: nn.Module) -> str:
    with torch.no_grad():
        return digest(state_of(model))
