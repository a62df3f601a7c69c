"""How far the averaged extractor's features are from those that the server's part was trained on.

The server trains its part on features of each client's own extractor f_i, and the shared model feeds it those of their
mean f (which also has the mean of their BatchNorm statistics, if there are any). The server has no inputs on which to
compare them, so clients do. A client keeps the features that it sent for a few of its samples. If it is sampled in the
next round too, it computes those of the mean that it receives, before it trains, and sends two sums:

    residual = sum |f(x) - f_i(x)|^2 / sum |f_i(x) - m_i|^2      m_i: the mean of f_i over the client's compared samples

over the compared samples of all clients. 0: the features are equal; 1: the mean extractor moves a sample's features as
far as they are from the mean of all samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from fedstill.core.egress import Egress
from fedstill.core.message import part, under
from fedstill.core.protocols import Client, Reply, RoundContext, Shape
from fedstill.core.task import Tensors
from fedstill.devices.split_sides import FEATURES, sample_ids

RESIDUAL = "residual/"
COMPARED = "compared/"  # prefix in a client's state
NAME = "feature residual"  # among the metrics of a round
LARGE = 0.25  # a residual above this is worth a warning

RESIDUAL_EGRESS = (
    Egress(f"{RESIDUAL}*", "metrics", "how far the received extractor's features are from those sent before: two sums"),
)
_SUMS = ("moved", "spread")


def residual_expected() -> Mapping[str, tuple[Shape, torch.dtype]]:
    return {RESIDUAL + name: ((), torch.float64) for name in _SUMS}


def to_compare(sent: Tensors, number: int, context: RoundContext) -> Tensors:
    """What a client keeps of the features that it sends: those of some samples, spread over all of them."""
    features = sent[FEATURES]
    return under(
        COMPARED, {FEATURES: features[_spread(len(features), number)].clone(), "round": torch.tensor(context.round)}
    )


def compare(client: Client, side: nn.Module, number: int, context: RoundContext) -> Tensors:
    """The sums of a client whose part has just received the averaged weights; zero without features to compare with."""
    kept = part(client.state, COMPARED)
    if not kept or int(kept["round"]) != context.round - 1:
        return under(RESIDUAL, {name: torch.zeros((), dtype=torch.float64) for name in _SUMS})
    rows = sample_ids(client.data).argsort()[_spread(len(client.data), number)]
    side.eval()
    with torch.inference_mode():
        now = client.task.forward(side, client.data.batch(rows)).features.cpu().double()
    client.meter.add(len(rows))
    before = kept[FEATURES].double()
    sums = ((now - before).square().sum(), (before - before.mean(dim=0)).square().sum())
    return under(RESIDUAL, dict(zip(_SUMS, sums, strict=True)))


def feature_residual(replies: Sequence[Reply]) -> dict[str, float]:
    """The residual over all clients that compared any samples; empty if none did."""
    moved, spread = (sum(float(reply.message[RESIDUAL + name]) for reply in replies) for name in _SUMS)
    return {NAME: moved / spread} if spread > 0 else {}


def _spread(samples: int, number: int) -> Tensor:
    """At most this many positions, evenly spread.

    >>> _spread(10, 3).tolist(), _spread(2, 3).tolist()
    ([0, 3, 6], [0, 1])
    """
    return torch.arange(min(samples, number)) * samples // min(samples, number)
