"""Weights that a run starts from: all of a model's or some of them, e.g. an encoder that was pre-trained."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from fedstill.core.errors import InputError
from fedstill.core.files import read_file
from fedstill.core.kinds import state_of
from fedstill.core.message import Message, MessageError, digest, part
from fedstill.core.task import Tensors
from fedstill.models import build_model, models
from fedstill.models.published import from_public, is_public
from fedstill.runtime.experiment import Experiment


def with_initial(experiment: Experiment, shape: tuple[int, ...], classes: int) -> tuple[Experiment, Tensors]:
    """Those weights, and the experiment with a digest of them, which is what a run is named by; none: no tensors."""
    if experiment.initial is None:
        return experiment, {}
    file = experiment.initial.file
    tensors = read_initial(Path(file))
    for architecture in dict.fromkeys(experiment.architectures):
        own = state_of(build_model(architecture, shape, classes))
        if is_public(tensors):
            tensors = from_public(tensors, models[architecture], own, architecture, file)
        _check(tensors, own, architecture, file)
    known = experiment.initial.model_copy(update={"sha256": digest(tensors)})
    if experiment.initial.sha256 not in (None, known.sha256):
        raise InputError(f"{experiment.initial.file} holds other weights than the run began with: its digest differs")
    return experiment.model_copy(update={"initial": known}), tensors


def read_initial(path: Path) -> Tensors:
    """A file of weights: what `fedstill pretrain` wrote, a run's model of one architecture, or a public model."""
    try:
        tensors: Tensors = Message.decode(read_file(path))
    except FileNotFoundError:
        raise InputError(missing_weights(path)) from None
    except MessageError as error:
        why = " ".join(str(error).split())[:200]
        raise InputError(
            f"the weights in {path} cannot be read ({why}): give a .safetensors file, as safetensors.torch.save_file"
            " writes a state_dict"
        ) from None
    except OSError as error:
        raise InputError(f"the weights in {path} cannot be read: {' '.join(str(error).split())[:200]}") from None
    owners = {name.split("/", 1)[0] for name in tensors}
    # A run names its models' tensors by architecture first, and a state by kind.
    if len(owners) == 1 and not is_public(tensors) and not owners & {"parameters", "buffers", "counters"}:
        tensors = part(tensors, f"{owners.pop()}/")
    return dict(tensors)


def missing_weights(path: Path | str) -> str:
    return f"there is no file {path} to start from: `fedstill pretrain` makes one"


def _check(tensors: Tensors, own: Tensors, architecture: str, file: str) -> None:
    if not tensors:
        raise InputError(f"{file} holds no weights to start from")
    for name, tensor in tensors.items():
        if name not in own:
            raise InputError(f"the weights in {file} do not fit {architecture}: it has no tensor {name!r}")
        if own[name].shape != tensor.shape or own[name].dtype != tensor.dtype:
            theirs, ours = ("x".join(map(str, one.shape)) or "one number" for one in (tensor, own[name]))
            raise InputError(
                f"the weights in {file} do not fit {architecture}: {name!r} is {theirs}, not"
                f" {ours}{_remedy(tensor, own[name])}"
            )
        if not bool(tensor.isfinite().all()):
            raise InputError(f"the weights in {file} hold NaN or infinity in {name!r}: fetch or save them again")


def _remedy(theirs: Tensor, ours: Tensor) -> str:
    """What would make the first convolution fit."""
    if theirs.ndim != 4 or ours.ndim != 4 or len(theirs) != len(ours):
        return ""
    if theirs.shape[1] in (1, 3) and ours.shape[1] in (1, 3) and theirs.shape[1] != ours.shape[1]:
        return f"; set data.channels={theirs.shape[1]}"
    if theirs.shape[2] == theirs.shape[3] != ours.shape[2] == ours.shape[3]:
        return f"; of a transformer, set patch={theirs.shape[2]}"
    return ""
