"""Teachers: runs, a file of weights, or a module of the user's own; checked before anyone learns from them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from fedstill.core.dataset import Dataset, every_row, has_several_labels
from fedstill.core.errors import InputError, UnusableError
from fedstill.core.files import read_file
from fedstill.core.kinds import load_state, state_of
from fedstill.core.message import Message, MessageError, digest, part
from fedstill.core.origins import is_outside
from fedstill.core.protocols import Method
from fedstill.core.records import TeacherRecord
from fedstill.core.streams import Streams
from fedstill.core.task import Task, Tensors
from fedstill.data.bundle import Bundle
from fedstill.data.data_kinds import data_kinds
from fedstill.data.point_labels import has_point_labels
from fedstill.distillation.teachers import TeacherModel, teacher_outputs
from fedstill.methods.recalibration import recalibrated
from fedstill.models import build_model, models
from fedstill.models.model_outputs import Normalised, check_outputs
from fedstill.models.own_models import own_function
from fedstill.runtime.experiment import Experiment, TeacherSource
from fedstill.runtime.result import Run
from fedstill.tasks.task_choice import tasks


class TeacherLoader:
    """Teachers, each loaded and examined once: students of one teacher share it."""

    def __init__(self) -> None:
        self._loaded: dict[str, tuple[TeacherSource, TeacherModel]] = {}
        self._reports: dict[str, TeacherRecord] = {}
        self._words: dict[str, Tensor] = {}

    def load(self, experiment: Experiment, bundle: Bundle, device: str) -> tuple[Experiment, list[TeacherModel]]:
        """The teachers, and the experiment with a digest of each one's weights, which is what a run is named by."""
        found = []
        for source in experiment.teachers:
            key = f"{source.model_dump_json()} {bundle.name} {bundle.shape} {device}"
            if key not in self._loaded:
                with Streams(0).ambient("teacher"):  # where its weights are drawn, they are the same every time
                    teacher = _load(source, bundle)
                teacher.model.to(device).eval().requires_grad_(False)
                known = source.model_copy(update={"model": teacher.architecture, "sha256": _digest(teacher.model)})
                self._loaded[key] = known, teacher
            found.append(self._loaded[key])
        sources = tuple(source for source, _ in found)
        return experiment.model_copy(update={"teachers": sources}), [teacher for _, teacher in found]

    def examine(
        self, experiment: Experiment, teachers: Sequence[TeacherModel], task: Task, bundle: Bundle, proxy: Dataset
    ) -> list[TeacherRecord]:
        """Each teacher's metrics on the test set; one whose outputs are not finite is refused.

        `recalibrated` is its accuracy with BatchNorm statistics measured anew on the proxy data: far above the
        accuracy, they are stale.
        """
        reports = []
        for source, teacher in zip(experiment.teachers, teachers, strict=True):
            key = f"{source.sha256} {_lesson(experiment)}"
            if key not in self._reports:
                self._reports[key] = _examined(teacher, task, bundle, proxy)
            which = source.which if source.run else None
            reports.append(self._reports[key].model_copy(update={"which": which}))
        return reports

    def ceiling(
        self, experiment: Experiment, teachers: Sequence[TeacherModel], method: Method, task: Task, data: Dataset
    ) -> float | None:
        """The accuracy on the labels of this data that the teachers leave room for, where the method can tell."""
        key = f"{[source.sha256 for source in experiment.teachers]} {_lesson(experiment)}"

        def outputs() -> Tensor:
            if key not in self._words:
                with Streams(0).ambient("ceiling"):
                    said = [
                        teacher_outputs(teachers, task, data.batch(rows)).log_probabilities.cpu()
                        for rows in every_row(data)
                    ]
                self._words[key] = torch.cat(said)
            return self._words[key]

        return method.ceiling(outputs, data)


def _lesson(experiment: Experiment) -> str:
    """The settings that determine a student's training and test data, labels aside."""
    given = experiment.model_dump(mode="json", include={"data", "points", "seed", "validation"})
    settings = experiment.method.settings.model_dump(mode="json", include={"proxy", "share"})
    return json.dumps([given, settings])


def _examined(teacher: TeacherModel, task: Task, bundle: Bundle, proxy: Dataset) -> TeacherRecord:
    with Streams(0).ambient("examination"):
        metrics = task.summarise(task.score([teacher.model], bundle.test))
        if metrics["non_finite"] > 0:
            raise UnusableError(
                f"the teacher {teacher.name} gives outputs that are not finite for {metrics['non_finite']:.0%} of the"
                " test samples: nothing can be learnt from it"
            )
        anew = recalibrated(teacher.model, task, proxy, Streams(0).at("examination"))
        afterwards = None if anew is None else task.summarise(task.score([anew], bundle.test))["accuracy"]
    return TeacherRecord(name=teacher.name, model=teacher.architecture, metrics=dict(metrics), recalibrated=afterwards)


def _load(source: TeacherSource, bundle: Bundle) -> TeacherModel:
    if source.run is not None:
        return _from_run(source, bundle)
    if source.call is not None:
        if tasks[data_kinds[bundle.kind].task].finds_boxes:
            raise InputError(
                f"the teacher {source.call} of your own cannot be a detector: name a run, or a file of weights with its"
                " model"
            )
        own = _called(source.call, bundle)
        if source.file is not None:
            _fill(own.model, Path(source.file))
        return TeacherModel(source.call, source.model or source.call, own)
    assert source.model is not None
    model = build_model(source.model, bundle.shape, len(bundle.classes))
    if source.file is None:
        if not is_outside(models[source.model]):
            raise InputError(f"the teacher {source.model} has no weights: name a run, or a file of weights beside it")
        if not tasks[data_kinds[bundle.kind].task].finds_boxes:
            points, several = has_point_labels(bundle.train), has_several_labels(bundle.train)
            check_outputs(model, source.model, bundle.shape, len(bundle.classes), points, several)
        return TeacherModel(source.model, source.model, model)
    _fill(model, Path(source.file), source.model)
    return TeacherModel(Path(source.file).name, source.model, model)


def _from_run(source: TeacherSource, bundle: Bundle) -> TeacherModel:
    run = Run(str(source.run))
    name = run.path.resolve().name
    if tuple(run.config["classes"]) != tuple(bundle.classes):
        theirs, ours = len(run.config["classes"]), len(bundle.classes)
        raise InputError(
            f"the teacher {name} knows {theirs} classes of {run.experiment.data}, and the student is to learn"
            f" {ours} of {bundle.name}: they must be the same classes in the same order"
        )
    architecture = run.architecture(source.model)
    try:
        return TeacherModel(name, architecture, run.built(source.which, architecture=architecture))
    except InputError as error:
        if run.finished and source.which == "best":  # there is none because no round's model was finite
            raise UnusableError(str(error)) from None
        raise


def _called(name: str, bundle: Bundle) -> Normalised:
    """`module:function`, which gets the shape of an input and the number of classes."""
    try:
        made = own_function(name, "teacher")(bundle.shape, len(bundle.classes))
    except InputError:
        raise
    except Exception as error:  # anything may come from there
        raise InputError(f"the teacher {name} cannot be made: {_short(error)}") from error
    if not isinstance(made, nn.Module):
        raise InputError(f"the teacher {name} must return a torch module, not {type(made).__name__}")
    return Normalised(made)


def _fill(model: nn.Module, path: Path, architecture: str = "") -> None:
    """Weights from a safetensors file, named as a run names them, as Fedstill names a model's state, or as torch does.

    A file with tensors that the model does not have is refused like one that lacks some: it is of another model.
    """
    try:
        tensors: Tensors = Message.decode(read_file(path))
    except (OSError, MessageError) as error:
        raise InputError(f"the teacher's weights in {path} cannot be read: {_short(error)}") from None
    kinds = state_of(model)
    plain = {name.split("/", 1)[1]: name for name in kinds}
    if architecture and all(name.startswith(f"{architecture}/") for name in tensors):
        tensors = part(tensors, f"{architecture}/")
    if tensors.keys() <= plain.keys():
        tensors = {plain[name]: tensor for name, tensor in tensors.items()}
    strange, lacking = sorted(tensors.keys() - kinds.keys()), sorted(kinds.keys() - tensors.keys())
    if strange or lacking:
        what = f"it has no tensor {strange[0]!r}" if strange else f"the file lacks {lacking[0]!r}"
        raise InputError(f"the weights in {path} do not fit the teacher's model: {what}")
    try:
        load_state(model, tensors)
    except RuntimeError as error:
        raise InputError(f"the weights in {path} do not fit the teacher's model: {_short(error)}") from None


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _digest(model: nn.Module) -> str:
    with torch.no_grad():
        return digest(state_of(model))
