"""Exporting with a check: a file is put in place only once it has been loaded and found to agree with the model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from fedstill._version import __version__
from fedstill.core.errors import FedstillError, InputError, RunError
from fedstill.core.files import writable_folder, write_atomically
from fedstill.core.streams import Streams
from fedstill.models.portable.extra import need_extra
from fedstill.models.portable.file_form import FileForm
from fedstill.models.portable.onnx_file import OPSET, OnnxModel, onnx_bytes
from fedstill.models.portable.program import INPUT, OUTPUTS, pt2_bytes, read_pt2
from fedstill.tasks.classification import Classification

TOLERANCE = 1e-4
SAMPLES = 8


@dataclass(frozen=True)
class Exported:
    """A file that was written, and how far its outputs are from the model's at most."""

    path: Path
    bytes: int
    difference: float
    samples: int
    chosen_otherwise: int = 0  # samples left out of the comparison, because rounding decided a near tie otherwise


@dataclass(frozen=True)
class Parity:
    """How far a file's outputs are from the model's at most, and on how many samples it chose otherwise."""

    difference: float
    chosen_otherwise: int = 0


def export_onnx(
    model: nn.Module,
    task: Classification,
    path: str | Path,
    *,
    inputs: Tensor | None = None,
    about: Mapping[str, str] | None = None,
) -> Exported:
    """Write a classifier or a detector as ONNX, for onnxruntime and everything else that reads it.

    The input, `inputs`, is what the model reads, for a batch of any size, as float32: clouds (batch, points, 3),
    centred and scaled as `fedstill.data.clouds.normalise` does it, pixels (batch, channels, height, width), 8-bit
    values divided by 127.5 minus 1, or scenes (batch, points, 3) in metres. Outputs are `log_probabilities` (batch,
    classes) and the `features` that the model's head reads; or decoded `boxes` with their probabilities. Values that
    are not finite are not refused by the file. The metadata holds classes, input and outputs as JSON, and what is given
    as `about`.

    The file must agree with the model on `inputs` (and on random ones) before it is put in place.
    """
    path = destination(path, ".onnx")
    data, parity, samples = checked_onnx(model, task, inputs, about)
    put(path, data)
    return Exported(path, len(data), parity.difference, samples, parity.chosen_otherwise)


def checked_onnx(
    model: nn.Module, task: Classification, inputs: Tensor | None, about: Mapping[str, str] | None
) -> tuple[bytes, Parity, int]:
    """The contents of an ONNX file, how far it is from the model at most, and on how many samples."""
    need_extra()
    form = task.file_form()
    reference = _checked(model, task, form)
    samples = _samples(task, form, inputs)
    names = tuple(form.outputs)
    data = onnx_bytes(reference, task.shape, describe(task, about) | {"opset": str(OPSET)}, names)
    return data, check_parity(reference, OnnxModel(data, outputs=names), samples, names, form.chosen), len(samples)


def export_pt2(
    model: nn.Module,
    task: Classification,
    path: str | Path,
    *,
    inputs: Tensor | None = None,
    about: Mapping[str, str] | None = None,
) -> Exported:
    """Write a classifier or a detector as a program of torch.export, with input, outputs and check of `export_onnx`.

    It runs with torch alone: `torch.export.load("student.pt2").module()(inputs)`. Load such files only from people
    you trust: torch unpickles parts of them, and a pickle can run any code.
    """
    path = destination(path, ".pt2")
    form = task.file_form()
    reference = _checked(model, task, form)
    samples = _samples(task, form, inputs)
    data = pt2_bytes(reference, task.shape, describe(task, about))
    loaded, _ = read_pt2(data)
    parity = check_parity(reference, loaded, samples, tuple(form.outputs), form.chosen)
    put(path, data)
    return Exported(path, len(data), parity.difference, len(samples), parity.chosen_otherwise)


def destination(path: str | Path, *suffixes: str) -> Path:
    """The path, once it is clear that a file with one of these suffixes can be written there."""
    path = Path(path)
    if path.suffix.lower() not in suffixes:
        raise InputError(f"{path} has no suffix that says what to write: use {' or '.join(suffixes)}")
    if path.is_dir():
        raise InputError(f"{path} is a folder: name a file")
    writable_folder(path.parent)
    return path


def put(path: Path, data: bytes) -> None:
    try:
        write_atomically(path, data)
    except FedstillError as error:
        raise InputError(f"cannot write {path}: {error.__cause__}") from error


def describe(task: Classification, about: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a user of the file must know, as names and texts."""
    form = task.file_form()
    reads = {
        "name": INPUT,
        "type": "float32",
        "shape": ["batch", *task.shape],
        "axes": ["batch", *form.axes],
        "meaning": form.meaning,
    }
    return {
        "task": form.task,
        "classes": json.dumps(list(task.classes), ensure_ascii=False),
        "input": json.dumps(reads),
        "outputs": json.dumps(dict(form.outputs)),
        "model": task.architectures[0],
        "fedstill": __version__,
        **form.about,
        **(about or {}),
    }


def check_parity(
    model: nn.Module, exported: nn.Module, inputs: Tensor, names: Sequence[str] = OUTPUTS, chosen: str = ""
) -> Parity:
    """The largest difference of any output, refusing what is not within 1e-4.

    Where an output is larger than 1 the difference counts in relation to it: single precision has seven digits. One
    sample, three, and all of them: a batch must not matter. Samples whose output `chosen` differs are not compared, and
    must be fewer than half: rounding decided otherwise between candidates that are nearly equal.
    """
    largest, otherwise = 0.0, 0
    for size in sorted({1, min(3, len(inputs)), len(inputs)}):
        batch = inputs[:size]
        with torch.inference_mode():
            wanted, found = model(batch), exported(batch)
        alike = torch.ones(size, dtype=torch.bool)
        if chosen:
            one, other = (each[names.index(chosen)] for each in (wanted, found))
            alike = _near(one, other).flatten(1).all(dim=1)
            otherwise = max(otherwise, size - int(alike.sum()))
            if 2 * otherwise >= len(inputs):
                raise RunError(f"the exported file starts from other {chosen} than the model; nothing was written")
        for name, one, other in zip(names, wanted, found, strict=True):
            if one.shape != other.shape:
                raise RunError(f"the exported file gives {name} of shape {tuple(other.shape)}, not {tuple(one.shape)}")
            one, other = one[alike], other[alike]
            difference = (one - other).abs()
            most = float(difference.max()) if difference.numel() else 0.0  # a model may have no features
            if not bool(_near(one, other).all()):
                raise RunError(
                    f"the exported file does not agree with the model: its {name} are up to {most:.2g} off in a batch"
                    f" of {size}; nothing was written"
                )
            largest = max(largest, most)
    return Parity(largest, otherwise)


def _near(one: Tensor, other: Tensor) -> Tensor:
    return (one - other).abs() <= TOLERANCE * one.abs().clamp(min=1)


def _checked(model: nn.Module, task: Classification, form: FileForm) -> nn.Module:
    """The model on the CPU in evaluation mode, refusing one whose outputs are not those of its task or not finite."""
    from fedstill.models import duplicate

    reference = duplicate(model).cpu().eval()
    with torch.inference_mode():
        found = reference(_samples(task, form, None)[:2])
    fits = isinstance(found, tuple) and len(found) == len(form.outputs)
    if not fits or not (task.finds_boxes or found[0].shape == (2, len(task.classes))):
        raise InputError(f"{task.architectures[0]} is not a classifier of whole inputs: only those can be exported")
    if not all(bool(one.isfinite().all()) for one in found):
        raise InputError("the model's outputs are not finite: there is nothing worth exporting")
    return reference


def _samples(task: Classification, form: FileForm, inputs: Tensor | None) -> Tensor:
    """Inputs to compare on: random ones, and those given."""
    drawn = form.drawn(SAMPLES, task.shape, Streams(0).draw("export", "samples"))
    return drawn if inputs is None else torch.cat([inputs.cpu().float(), drawn])
