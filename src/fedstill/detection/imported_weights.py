"""Weights from elsewhere for a detector's encoder: a safetensors file, matched by name and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from fedstill.core.errors import InputError
from fedstill.core.files import read_file
from fedstill.core.kinds import COUNTERS
from fedstill.core.message import Message, MessageError
from fedstill.core.task import Tensors
from fedstill.detection.three_detr_names import is_of_3detr, tensors_of_3detr

_KINDS = ("parameters", "buffers", "counters")
_WRAPPERS = ("module.", "model.", "detector.")  # what other programs put before the names of a model's tensors


@dataclass(frozen=True)
class Imported:
    """The tensors of a file that fit an encoder, under the encoder's names, and what they leave."""

    tensors: Tensors
    missing: tuple[str, ...]  # tensors of the encoder that the file does not have
    unused: tuple[str, ...]  # tensors of the file that are not of the encoder

    def description(self) -> str:
        """The layers that fit, and those that do not, for a person.

        >>> Imported({"parameters/encoder.0.norm1.bias": Tensor()}, ("parameters/fourier",), ("head",)).description()
        'fitting layers: encoder.0.norm1; not in the file: fourier; unused tensors of the file: 1'
        """
        text = f"fitting layers: {', '.join(_layers(self.tensors))}"
        if self.missing:
            text += f"; not in the file: {', '.join(_layers(self.missing))}"
        return f"{text}; unused tensors of the file: {len(self.unused)}" if self.unused else text


def read_weights(file: Path, own: Mapping[str, Tensor], model: str) -> Imported:
    """The file's tensors for an encoder with the state `own`; what cannot be used is refused in one sentence.

    A tensor fits if it has the name of one of the encoder's, without the kind of state and without usual prefixes, and
    the same shape and type; names of 3DETR's public code are translated. Counters of batches may be missing: they
    change no output.
    """
    try:
        given: Mapping[str, Tensor] = Message.decode(read_file(file))
    except FileNotFoundError:
        raise InputError(f"there is no file {file} of weights to start from") from None
    except (OSError, MessageError) as error:
        raise InputError(f"the weights in {file} cannot be read: {' '.join(str(error).split())[:200]}") from None
    by_name = {name.split("/", 1)[1]: name for name in own}
    bare = {_bare(name): tensor for name, tensor in given.items()}
    if is_of_3detr(bare):
        given = tensors_of_3detr(bare)
    fitting: dict[str, Tensor] = {}
    unused = []
    for name, tensor in given.items():
        own_name = by_name.get(_bare(name))
        if own_name is None:
            unused.append(name)
        else:
            fitting[own_name] = _checked(tensor, own[own_name], name, file, model)
    if not fitting:
        raise InputError(
            f"no tensor in {file} has the name of one in the encoder of {model}, such as {min(by_name)!r}:"
            " rename them, or start without --weights"
        )
    missing = tuple(name for name in own if name not in fitting and not name.startswith(COUNTERS))
    return Imported(fitting, missing, tuple(sorted(unused)))


def _checked(tensor: Tensor, own: Tensor, name: str, file: Path, model: str) -> Tensor:
    if tensor.shape != own.shape or tensor.dtype != own.dtype:
        theirs, ours = (f"{'x'.join(map(str, one.shape)) or 'one number'} ({one.dtype})" for one in (tensor, own))
        raise InputError(f"the weights in {file} do not fit {model}: {name!r} is {theirs}, not {ours}")
    if not tensor.isfinite().all():
        raise InputError(f"the weights in {file} cannot be used: {name!r} has numbers that are not finite")
    return tensor


def _bare(name: str) -> str:
    """A tensor's name without kind and prefixes.

    >>> _bare("detr3d-lite/parameters/encoder.0.norm1.bias"), _bare("module.encoder.0.norm1.bias")
    ('encoder.0.norm1.bias', 'encoder.0.norm1.bias')
    """
    parts = name.split("/")
    name = "/".join(parts[parts.index(kind) + 1 :]) if (kind := next(iter(set(parts) & set(_KINDS)), "")) else name
    for wrapper in _WRAPPERS:
        name = name.removeprefix(wrapper)
    return name


def _layers(names: Mapping[str, Tensor] | tuple[str, ...]) -> list[str]:
    bare = (name.split("/", 1)[1] for name in names)
    return list(dict.fromkeys(name.rpartition(".")[0] or name for name in bare))
