"""What the exported file of a task's models computes: its input, its outputs, and how models and files correspond."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from fedstill.models.model_outputs import normalised
from fedstill.models.portable.program import OUTPUTS


@dataclass(frozen=True)
class FileForm:
    """The input and the outputs of a file, with their meaning for people who have only the file."""

    task: str
    axes: tuple[str, ...]  # of one input
    meaning: str  # of its numbers
    outputs: Mapping[str, str]  # names with meanings
    write: Callable[[nn.Module], nn.Module]  # from a model to a module that returns the outputs as a tuple
    read: Callable[[nn.Module], nn.Module]  # from such a module to one that returns what the model returns
    about: Mapping[str, str] = field(default_factory=dict)  # more metadata
    low: tuple[float, ...] = (-1.0,)  # bounds of random inputs, one for all numbers or one for each column
    high: tuple[float, ...] = (1.0,)
    chosen: str = ""  # an output that rounding can change by a choice among nearly equal candidates

    def drawn(self, count: int, shape: tuple[int, ...], generator: np.random.Generator) -> Tensor:
        """This many random inputs of a shape."""
        return torch.from_numpy(generator.uniform(self.low, self.high, (count, *shape))).float()


def classifier_form(shape: tuple[int, ...], signal: bool = False) -> FileForm:
    """The form of classifiers of whole inputs; what has two axes is a cloud or a `signal`."""
    cloud = len(shape) == 2 and not signal
    axes: tuple[str, ...] = ("points", "coordinates") if cloud else ("channels", "height", "width")
    numbers = "x, y, z, normal" if cloud and shape[1] == 6 else "x, y, z"
    if signal:
        axes = ("channels", "time")
    elif len(shape) not in (2, 3):
        axes = tuple(f"axis {number}" for number in range(1, len(shape) + 1))
    return FileForm(
        task="classification",
        axes=axes,
        meaning=f"points ({numbers}): each cloud centred on its mean, its largest norm 1"
        if cloud
        else "values as they were in training"
        if signal
        else "pixels: 8-bit values divided by 127.5, minus 1; other values as they were in training",
        outputs={
            OUTPUTS[0]: "natural logarithms of class probabilities",
            OUTPUTS[1]: "what the model's head reads",
        },
        write=normalised,
        read=lambda exported: exported,
    )
