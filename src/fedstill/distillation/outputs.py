"""The outputs of a model on a batch as named tensors, for caching, sharing and restoring."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from fedstill.core.task import Output

NAMES = ("log_probabilities", "features", "boxes", "queries")


@dataclass(frozen=True, kw_only=True)
class Found(Output):
    """The outputs of a detector that others can learn from; the last of the classes is "no object"."""

    boxes: Tensor  # (scenes, queries, 7)
    queries: Tensor  # (scenes, queries, width): the features of each query


def named_outputs(output: Output) -> dict[str, Tensor]:
    """The tensors of an output that others learn from; `output_of` is the inverse."""
    return {name: getattr(output, name) for name in NAMES if hasattr(output, name)}


def output_of(said: Mapping[str, Tensor], voice: str = "") -> Output:
    """The output restored from named tensors; with several teachers, from those whose names start with `voice`.

    >>> import torch
    >>> said = {"1/log_probabilities": torch.zeros(2, 3), "1/features": torch.ones(2, 4), "features": torch.zeros(9)}
    >>> tuple(output_of(said, "1/").features.shape)
    (2, 4)
    """
    own = {name: said[voice + name] for name in NAMES if voice + name in said}
    log_probabilities, features = own["log_probabilities"], own["features"]
    if "boxes" not in own:
        return Output(log_probabilities, features)
    return Found(log_probabilities, features, boxes=own["boxes"], queries=own["queries"])


def finds_boxes(output: Output) -> bool:
    """Whether it is the output of a detector."""
    return isinstance(output, Found)


def width_of(output: Output) -> int:
    """The width of the compared features; for a detector, of its query features."""
    compared = output.queries if isinstance(output, Found) else output.features
    return compared.shape[-1]
