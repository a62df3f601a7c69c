"""The border between a model and the rest: whatever a model returns becomes log-probabilities and features, once.

A model may return logits, `(logits, features)`, or an object or mapping with `logits` (and `features`). The attribute
`outputs = "log-probabilities"` declares that it returns log-probabilities; models of this package do. Features can also
be the output of one of its layers (`declare`). A model without features has features of width 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedstill.core.errors import InputError, did_you_mean
from fedstill.core.origins import PACKAGE
from fedstill.models.surgery import duplicate

Outputs = Literal["logits", "log-probabilities"]
LOG_PROBABILITIES: Outputs = "log-probabilities"
_OUTPUTS, _LAYER = "_fedstill_outputs", "_fedstill_features"  # attributes of a module, beside those of its author
_WANTED = "return logits, (logits, features), or an object with .logits"


class ModelOutput(NamedTuple):
    """What a model returned for a batch."""

    log_probabilities: Tensor
    features: Tensor
    returned: Tensor | None = None  # logits, where the model does not return log-probabilities


def declare(model: nn.Module, outputs: Outputs | None = None, features: str | None = None) -> nn.Module:
    """Note on a model what it returns, and which layer's output are its features.

    >>> model = declare(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4)), features="0")
    >>> [tuple(part.shape) for part in read_outputs(model, torch.zeros(5, 2))[:2]]
    [(5, 4), (5, 3)]
    """
    if outputs is not None:
        if outputs not in get_args(Outputs):
            raise InputError(f"unknown outputs {outputs!r}: {did_you_mean(str(outputs), get_args(Outputs))}")
        vars(model)[_OUTPUTS] = outputs
    if features is not None:
        layers = [name for name, _ in model.named_modules() if name]
        if not isinstance(features, str) or features not in layers:
            raise InputError(
                f"the model has no layer {features!r} to take features from: {did_you_mean(str(features), layers)}"
            )
        vars(model)[_LAYER] = features
    return model


def read_outputs(model: nn.Module, inputs: Tensor) -> ModelOutput:
    """Call a model and normalise what it returns."""
    layer: str | None = vars(model).get(_LAYER)
    if layer is None and _ours(model):
        return ModelOutput(*model(inputs))
    if layer is None:
        returned, features = _separated(model(inputs))
    else:
        with _outputs_of(model.get_submodule(layer), layer) as seen:
            returned, _ = _separated(model(inputs))
        if not seen:
            raise TypeError(f"its layer {layer!r} is not used when it is called")
        features = seen[-1]
    if features is None:
        features = returned[..., :0]
    elif returned.ndim == 2 and features.ndim != 2:
        features = features.flatten(1)
    if _declared(model) == LOG_PROBABILITIES:
        return ModelOutput(returned, features)
    return ModelOutput(F.log_softmax(returned.float(), dim=-1), features, returned)


class Normalised(nn.Module):
    """A model of the user's own as one of this package: returns log-probabilities and features."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        log_probabilities, features, _ = read_outputs(self.model, inputs)
        return log_probabilities, features


def normalised(model: nn.Module) -> nn.Module:
    """The model, or one around it, that returns log-probabilities and features."""
    return model if _ours(model) else Normalised(model)


def _ours(model: nn.Module) -> bool:
    """Whether it returns `(log_probabilities, features)`, as all models of this package do."""
    return type(model).__module__.partition(".")[0] == PACKAGE


def _declared(model: nn.Module) -> Outputs:
    declared = vars(model).get(_OUTPUTS) or getattr(type(model), "outputs", None)
    return LOG_PROBABILITIES if declared == LOG_PROBABILITIES else "logits"


def _separated(returned: Any) -> tuple[Tensor, Tensor | None]:
    """Logits and features of what a model returned, in whichever form it has."""
    features = None
    if isinstance(returned, Mapping) and "logits" in returned:  # also what transformers return
        returned, features = returned["logits"], returned.get("features")
    elif isinstance(getattr(returned, "logits", None), Tensor):
        returned, features = returned.logits, getattr(returned, "features", None)
    elif isinstance(returned, tuple | list) and len(returned) == 2:
        returned, features = returned
    if not isinstance(returned, Tensor) or not isinstance(features, Tensor | None):
        raise TypeError(f"it returns {_described(returned)}: {_WANTED}")
    return returned, features


def _described(value: Any) -> str:
    return f"{type(value).__name__} of {len(value)}" if isinstance(value, tuple | list) else f"a {type(value).__name__}"


@contextmanager
def _outputs_of(layer: nn.Module, name: str) -> Iterator[list[Tensor]]:
    """What a layer returns while this is open."""
    seen: list[Tensor] = []

    def look(module: nn.Module, inputs: Any, output: Any) -> None:
        first = output[0] if isinstance(output, tuple | list) and output else output
        if not isinstance(first, Tensor):
            raise TypeError(f"its layer {name!r} returns {_described(output)}, which are no features")
        seen.append(first)

    handle = layer.register_forward_hook(look)
    try:
        yield seen
    finally:
        handle.remove()


def dummy_inputs(shape: tuple[int, ...]) -> Tensor:
    """Two inputs to try a model on: between 0 and 1, so that a model that takes them for indices finds them."""
    return torch.linspace(0, 1, 2 * torch.Size(shape).numel()).reshape(2, *shape)


def feature_width(model: nn.Module, shape: tuple[int, ...]) -> int:
    """How many features a model gives for a sample; 0: it gives none."""
    with torch.no_grad():
        return read_outputs(model.eval(), dummy_inputs(shape)).features.shape[-1]


@contextmanager
def reading(name: str, shape: tuple[int, ...]) -> Iterator[None]:
    """Turn whatever a user's own module raises when it is called into one sentence."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        why = " ".join(str(error).split())[:300] or type(error).__name__
        sides = "x".join(map(str, shape))
        raise InputError(
            f"the model {name} cannot read a batch of inputs of shape {sides} ({why}): make its layers fit the data"
        ) from error


def check_outputs(
    model: nn.Module, name: str, shape: tuple[int, ...], classes: int, points: bool = False, several: bool = False
) -> None:
    """Refuse a model that cannot be used for inputs of this shape and so many classes; `several` of them for each."""
    with reading(name, shape):
        copy = duplicate(model).eval()
        with torch.enable_grad():
            output = read_outputs(copy, dummy_inputs(shape))
    wanted = (2, shape[0], classes) if points else (2, classes)
    if tuple(output.log_probabilities.shape) != wanted:
        found = tuple(output.log_probabilities.shape)
        raise InputError(
            f"the model {name} returns outputs of shape {found} for two samples, and must return {wanted}, since there"
            f" are {classes} classes: give its last layer {classes} outputs"
        )
    if several and output.returned is None:
        raise InputError(
            f"the model {name} declares log-probabilities of which one is true, and samples have several classes:"
            " return logits, and declare nothing"
        )
    _check_normalised(name, output)
    own = {id(parameter) for parameter in copy.parameters()}
    if any(id(leaf) not in own for leaf in _leaves(output.log_probabilities)):
        raise InputError(
            f"the model {name} computes with parameters that are not its own, and so would not be trained: keep layers"
            " as attributes or in nn.ModuleList, not in a list, a lambda or a closure"
        )


def check_trainable(model: nn.Module, name: str) -> None:
    """Refuse a model without parameters that training can change."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise InputError(f"the model {name} has no parameters that can be trained: set requires_grad of some")


def _leaves(output: Tensor) -> Iterator[Tensor]:
    """The tensors that receive gradients of an output."""
    waiting, seen = [output.grad_fn], set[Any]()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(variable := getattr(node, "variable", None), Tensor):
            yield variable
        waiting += [following for following, _ in node.next_functions]


def _check_normalised(name: str, output: ModelOutput) -> None:
    """Refuse probabilities in place of logits, and log-probabilities that are none: training would fail silently."""
    if output.returned is None:
        sums = output.log_probabilities.detach().exp().sum(dim=-1)
        if not torch.allclose(sums, torch.ones_like(sums), atol=1e-3):
            raise InputError(
                f"the model {name} declares log-probabilities, and their exponentials sum to"
                f" {float(sums.flatten()[0]):.4g}: end it with log_softmax, or return logits and declare nothing"
            )
        return
    sums = output.returned.sum(dim=-1)
    if bool((output.returned >= 0).all()) and torch.allclose(sums, torch.ones_like(sums), atol=1e-5):
        raise InputError(
            f"the model {name} returns probabilities, which sum to 1: leave its last softmax out and return logits"
        )
