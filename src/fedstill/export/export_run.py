"""`fedstill export`: a run's model as a file, checked, and for 8-bit weights measured on the run's test data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from fedstill.core.errors import InputError
from fedstill.core.hardware import one_thread
from fedstill.core.plugins import use_plugins
from fedstill.export.export_files import SAMPLES, Exported, checked_onnx, destination, export_onnx, export_pt2, put
from fedstill.export.quantise import quantised
from fedstill.export.subject import Subject
from fedstill.models.model_outputs import check_outputs, normalised
from fedstill.models.own_models import Model, OwnModel, type_name
from fedstill.models.portable.extra import need_extra
from fedstill.models.portable.onnx_file import OnnxModel
from fedstill.runtime.result import Run
from fedstill.tasks.classification import Classification

_AT_ONCE = 16


@dataclass(frozen=True)
class Quantised:
    """What 8-bit weights cost: the size before, and accuracy on the test data before and after."""

    float_bytes: int
    float_accuracy: float
    accuracy: float


@dataclass(frozen=True)
class Outcome:
    """A file that was written, and what is known of it."""

    file: Exported
    inputs: str  # where the samples come from that it was compared on
    int8: Quantised | None = None


def export(
    run: str | Path | Run | nn.Module | Model,
    file: str | Path,
    *,
    shape: Sequence[int] = (),
    classes: int | Sequence[str] = (),
    which: str = "last",
    client: int | None = None,
    architecture: str | None = None,
    int8: bool = False,
    data_root: str | Path | None = None,
    plugins: Sequence[str | Path] = (),
) -> Outcome:
    """Write a run's model as a file for other runtimes, `.onnx` or `.pt2`, and compare it with the original.

    Instead of a run, a torch module: `shape` is then that of one input, and `classes` are their names or number.

    >>> import fedstill
    >>> folder = getfixture("tmp_path")
    >>> made = fedstill.run("fedavg", data="digits", model="mlp", rounds=1, clients=2, out=folder)
    >>> written = fedstill.export(made, folder / "model.pt2")
    >>> written.file.path.name, written.file.difference < 1e-5
    ('model.pt2', True)
    """
    use_plugins(plugins)
    root = None if data_root is None else Path(data_root)
    if isinstance(run, nn.Module | Model):
        if which != "last" or client is not None or int8:
            raise InputError("which, client and int8 are for a run, which knows its data: leave them out for a module")
        with one_thread():
            return export_module(run, file, tuple(shape), classes)
    if shape or classes:
        raise InputError("shape and classes are for a module: a run knows them, leave them out")
    held = Run.of(run)
    with one_thread():
        return export_run(Subject(held, which, client, root, architecture), file, int8)


def export_module(
    given: nn.Module | Model, path: str | Path, shape: tuple[int, ...], classes: int | Sequence[str]
) -> Outcome:
    """Write a module; the suffix decides what is written."""
    path = destination(path, ".onnx", ".pt2")
    names = tuple(map(str, range(classes))) if isinstance(classes, int) else tuple(classes)
    if not shape or len(names) < 2:
        raise InputError(
            "a module is exported for inputs of a shape and some classes: say e.g. shape=(1, 28, 28), classes=10"
        )
    held = given if isinstance(given, Model) else Model(given)
    name = held.name or type_name(held.source)
    model = OwnModel(held)(shape, len(names))
    check_outputs(model, name, shape, len(names))
    task = Classification(names, shape, (name,))
    write = export_onnx if path.suffix.lower() == ".onnx" else export_pt2
    return Outcome(write(normalised(model).eval(), task, path), "random")


def export_run(subject: Subject, path: str | Path, int8: bool = False) -> Outcome:
    """Write a run's model; the suffix decides what is written.

    With `int8`, the float file is made and checked first; then its 8-bit form is put in place. Both are scored on the
    run's test data, in batches of 16, by which 8-bit activations choose their range.
    """
    path = destination(path, ".onnx", ".pt2")
    if int8 and path.suffix.lower() != ".onnx":
        raise InputError("8-bit weights are for ONNX files: use the suffix .onnx with --int8")
    if int8 and subject.task.finds_boxes:
        raise InputError("8-bit weights are for classifiers: export a detector without --int8")
    if path.suffix.lower() == ".onnx":
        need_extra()
    data = subject.test_data if int8 else None  # refused before any work where it is not here
    inputs, origin = subject.inputs(SAMPLES)
    model, task, about = subject.model, subject.task, subject.about()
    if path.suffix.lower() == ".pt2":
        return Outcome(export_pt2(model, task, path, inputs=inputs, about=about), origin)
    if data is None:
        return Outcome(export_onnx(model, task, path, inputs=inputs, about=about), origin)
    whole, parity, samples = checked_onnx(model, task, inputs, about)
    smaller = quantised(whole)

    def accuracy(contents: bytes) -> float:
        scores = task.score([OnnxModel(contents, at_once=_AT_ONCE)], data)
        return float(task.summarise(scores)["accuracy"])

    costs = Quantised(len(whole), accuracy(whole), accuracy(smaller))
    put(path, smaller)
    return Outcome(Exported(path, len(smaller), parity.difference, samples), origin, costs)
