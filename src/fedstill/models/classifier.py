"""The base class of all classifiers: an extractor, a head, and the outputs of both.

A model can also be split between two machines: the first receives inputs and the second the first one's outputs
(`Classifier.parts`). A part's state uses the names of the whole model, so that both together are its state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedstill.core.kinds import load_state, state_of


class Classifier(nn.Module):
    """`forward` returns log-probabilities and the features that the head reads.

    Distillation needs the features, and personalisation and transfer need the two parts separately, so the split is the
    same everywhere: `extractor` maps a batch to `feature_size` numbers per sample, `head` maps those to logits.

    The split between two machines may have to be elsewhere, since an extractor can be most of the work: `cut` names the
    child of the extractor, a sequence of layers on images, after which the model is split.
    """

    outputs: ClassVar[str] = "log-probabilities"  # see `model_outputs`

    def __init__(self, extractor: nn.Module, head: nn.Module, feature_size: int, cut: str | None = None) -> None:
        super().__init__()
        self.extractor = extractor
        self.head = head
        self.feature_size = feature_size
        self.cut = cut
        self.input_norm: InputNorm | None = None
        self.several = False  # whether a sample has any number of classes: each has a probability of its own

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        features: Tensor = self.extractor(inputs if self.input_norm is None else self.input_norm(inputs))
        logits = self.head(features)
        return log_sigmoid(logits) if self.several else F.log_softmax(logits, dim=1), features

    def parts(self) -> tuple[nn.Module, nn.Module]:
        """The client's part and the server's part, which compose to the whole model and share its tensors.

        >>> model = Classifier(nn.Flatten(), nn.Linear(4, 2), 4)
        >>> [type(one).__name__ for one in model.parts()]
        ['Flatten', 'Linear']
        """
        begin = [] if self.input_norm is None else [self.input_norm]
        if self.cut is None:
            return nn.Sequential(*begin, self.extractor) if begin else self.extractor, self.head
        layers = dict(self.extractor.named_children())
        place = list(layers).index(self.cut) + 1
        # Received activations are contiguous by channel; the second part then computes as in the whole model.
        first = nn.Sequential(*begin, *list(layers.values())[:place])
        return first, nn.Sequential(ChannelsLast(), *list(layers.values())[place:], self.head)


def log_sigmoid(logits: Tensor) -> Tensor:
    """Log-probabilities of independent classes, of operations that exported files compute with the same precision.

    >>> log_sigmoid(torch.tensor([-200.0, 0.0, 200.0])).tolist()
    [-200.0, -0.6931471824645996, 0.0]
    """
    return torch.minimum(logits, torch.zeros_like(logits)) - torch.log1p(torch.exp(-logits.abs()))


def part_state(model: nn.Module, part: nn.Module) -> dict[str, Tensor]:
    """A copy of the state of a part, under the names of the whole model.

    >>> model = Classifier(nn.Flatten(), nn.Linear(4, 2), 4)
    >>> sorted(part_state(model, model.parts()[1]))
    ['parameters/head.bias', 'parameters/head.weight']
    """
    names = _names(model, part)
    return {names[name]: tensor for name, tensor in state_of(part).items()}


def load_part(model: nn.Module, part: nn.Module, state: Mapping[str, Tensor]) -> None:
    """The inverse of `part_state`; every tensor of the part must be present."""
    load_state(part, {own: state[name] for own, name in _names(model, part).items()})


def _names(model: nn.Module, part: nn.Module) -> dict[str, str]:
    """The whole model's name of each tensor of its part; both names with the kind of the tensor."""
    known = {id(tensor): name for name, tensor in model.state_dict(keep_vars=True).items()}
    kinds = {name.split("/", 1)[1]: name.split("/", 1)[0] for name in state_of(part)}
    tensors = part.state_dict(keep_vars=True)
    return {f"{kinds[name]}/{name}": f"{kinds[name]}/{known[id(tensor)]}" for name, tensor in tensors.items()}


class InputNorm(nn.Module):
    """Normalises images by mean and standard deviation of each channel, which count on the scale 0..1.

    Images reach models on the scale -1..1. The numbers are part of the model, not of its state.

    >>> InputNorm([0.5], [0.25])(torch.tensor([[[[-1.0, 0.0, 1.0]]]])).flatten().tolist()
    [-2.0, 0.0, 2.0]
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, mean: Sequence[float], deviation: Sequence[float]) -> None:
        super().__init__()
        middle, width = (torch.tensor(values, dtype=torch.float64).view(-1, 1, 1) for values in (mean, deviation))
        self.register_buffer("scale", (0.5 / width).float(), persistent=False)
        self.register_buffer("shift", ((0.5 - middle) / width).float(), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        return images * self.scale + self.shift


class ChannelsLast(nn.Module):
    """Converts images to channels-last memory format.

    Convolution and pooling on a CPU are up to twice as fast in that format, and later layers keep it. Only activations
    use it: parameters and gradients stay contiguous, as messages and checkpoints require. It clones, because requesting
    the format leaves single-channel images unchanged.
    """

    def forward(self, x: Tensor) -> Tensor:
        return x.clone(memory_format=torch.channels_last)
