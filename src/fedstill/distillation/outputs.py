"""What a model says of a batch, as tensors by name: so it is remembered, passed on, and put together again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from fedstill.core.task import Output

NAMES = ("logits", "features", "boxes", "queries")


@dataclass(frozen=True, kw_only=True)
class Found(Output):
    """What a detector says of scenes, as far as others learn from it; of `logits` "no object" is last."""

    boxes: Tensor  # (scenes, queries, 7)
    queries: Tensor  # (scenes, queries, width): what it makes of each query


def named_outputs(output: Output) -> dict[str, Tensor]:
    """What others learn from in an output; `output_of` is the way back."""
    return {name: getattr(output, name) for name in NAMES if hasattr(output, name)}


def output_of(said: Mapping[str, Tensor], voice: str = "") -> Output:
    """The output that words are of; where several speak, those of one `voice`, which their names begin with.

    >>> import torch
    >>> said = {"1/logits": torch.zeros(2, 3), "1/features": torch.ones(2, 4), "logits": torch.zeros(9)}
    >>> tuple(output_of(said, "1/").features.shape)
    (2, 4)
    """
    own = {name: said[voice + name] for name in NAMES if voice + name in said}
    logits, features = own["logits"], own["features"]
    if "boxes" not in own:
        return Output(logits, features)
    return Found(logits, features, boxes=own["boxes"], queries=own["queries"])


def finds_boxes(output: Output) -> bool:
    """Whether it is a detector's."""
    return isinstance(output, Found)


def width_of(output: Output) -> int:
    """Of the features that are compared: a detector's are those of its queries."""
    compared = output.queries if isinstance(output, Found) else output.features
    return compared.shape[-1]
