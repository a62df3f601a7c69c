"""A perceptron with one hidden layer, with its neurons as rows: incoming weights, bias, outgoing weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedstill.core.kinds import PARAMETERS, load_state
from fedstill.core.task import Tensors

HIDDEN, OUTPUT = f"{PARAMETERS}hidden.", f"{PARAMETERS}output."


class Perceptron(nn.Module):
    """Log-probabilities from the inputs through one hidden layer, which is also its features."""

    def __init__(self, width: int, neurons: int, classes: int) -> None:
        super().__init__()
        self.hidden, self.output = nn.Linear(width, neurons), nn.Linear(neurons, classes)

    @classmethod
    def of(cls, state: Tensors) -> Perceptron:
        """A perceptron with the sizes of this state."""
        neurons, width = state[f"{HIDDEN}weight"].shape
        model = cls(width, neurons, len(state[f"{OUTPUT}bias"]))
        load_state(model, state)
        return model

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        features = self.hidden(inputs.flatten(1)).relu()
        return F.log_softmax(self.output(features), dim=1), features


def neurons_of(state: Tensors) -> Tensor:
    """One row per hidden neuron."""
    return torch.cat(
        [state[f"{HIDDEN}weight"], state[f"{HIDDEN}bias"][:, None], state[f"{OUTPUT}weight"].T], dim=1
    ).double()


def state_from(neurons: Tensor, bias: Tensor) -> dict[str, Tensor]:
    """The inverse, with the output's bias, which belongs to no neuron."""
    classes = len(bias)
    incoming, own, outgoing = neurons.float().split([neurons.shape[1] - classes - 1, 1, classes], dim=1)
    return {
        f"{HIDDEN}weight": incoming.contiguous(),
        f"{HIDDEN}bias": own.flatten().contiguous(),
        f"{OUTPUT}weight": outgoing.T.contiguous(),
        f"{OUTPUT}bias": bias.float(),
    }
