"""The shape all classifiers share: an extractor, a head, and both of their outputs.

A model can also be cut in two for two machines, of which the first sees inputs and the second what the first makes of
them (`Classifier.parts`). A part's state goes by the names of the whole model, so that both together are its state.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedstill.core.kinds import load_state, state_of


class Classifier(nn.Module):
    """`forward` returns log-probabilities and the features the head read.

    Distillation needs the features, personalisation and transfer need the two parts apart, so the split is the
    same everywhere: `extractor` maps a batch to `feature_size` numbers a sample, `head` maps those to logits.

    Between two machines the cut may have to be elsewhere, since an extractor can be most of the work: `cut` names the
    child of the extractor, a sequence of layers on images, after which it is.
    """

    def __init__(self, extractor: nn.Module, head: nn.Module, feature_size: int, cut: str | None = None) -> None:
        super().__init__()
        self.extractor = extractor
        self.head = head
        self.feature_size = feature_size
        self.cut = cut

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        features: Tensor = self.extractor(inputs)
        return F.log_softmax(self.head(features), dim=1), features

    def parts(self) -> tuple[nn.Module, nn.Module]:
        """The client's part and the server's, one after the other the whole: they share this model's tensors.

        >>> model = Classifier(nn.Flatten(), nn.Linear(4, 2), 4)
        >>> [type(one).__name__ for one in model.parts()]
        ['Flatten', 'Linear']
        """
        if self.cut is None:
            return self.extractor, self.head
        layers = dict(self.extractor.named_children())
        place = list(layers).index(self.cut) + 1
        # What comes over a wire lies channel after channel; the rest then computes as it does in the whole model.
        first = nn.Sequential(*list(layers.values())[:place])
        return first, nn.Sequential(ChannelsLast(), *list(layers.values())[place:], self.head)


def part_state(model: nn.Module, part: nn.Module) -> dict[str, Tensor]:
    """A copy of the state of a part, under the names that the whole model has for it.

    >>> model = Classifier(nn.Flatten(), nn.Linear(4, 2), 4)
    >>> sorted(part_state(model, model.parts()[1]))
    ['parameters/head.bias', 'parameters/head.weight']
    """
    names = _names(model, part)
    return {names[name]: tensor for name, tensor in state_of(part).items()}


def load_part(model: nn.Module, part: nn.Module, state: Mapping[str, Tensor]) -> None:
    """The inverse of `part_state`; every tensor of the part must be there."""
    load_state(part, {own: state[name] for own, name in _names(model, part).items()})


def _names(model: nn.Module, part: nn.Module) -> dict[str, str]:
    """What the whole model calls each tensor of its part; both names with the kind of the tensor."""
    known = {id(tensor): name for name, tensor in model.state_dict(keep_vars=True).items()}
    kinds = {name.split("/", 1)[1]: name.split("/", 1)[0] for name in state_of(part)}
    tensors = part.state_dict(keep_vars=True)
    return {f"{kinds[name]}/{name}": f"{kinds[name]}/{known[id(tensor)]}" for name, tensor in tensors.items()}


class ChannelsLast(nn.Module):
    """Hands images on with the channels of a pixel side by side in memory.

    Convolution and pooling on a CPU are up to twice as fast in that order, and what follows keeps it. Only
    activations are laid out so: parameters and gradients stay contiguous, as messages and checkpoints need them.
    A clone, because asking for this order leaves images of a single channel as they are.
    """

    def forward(self, x: Tensor) -> Tensor:
        return x.clone(memory_format=torch.channels_last)
