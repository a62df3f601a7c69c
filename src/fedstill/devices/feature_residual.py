"""How far the averaged extractor's features are from those that the server's part was trained on.

The server trains its part on features of each client's own extractor f_i, and the shared model feeds it those of their
mean f (which also has the mean of their BatchNorm statistics, if there are any). The server has no inputs on which to
compare them, so clients do. A client keeps the features that it sent for a few of its samples. If it is sampled in the
next round too, it computes those of the mean that it receives, before it trains, and sends two sums:

    residual = sum |f(x) - f_i(x)|^2 / sum |f_i(x) - m_i|^2      m_i: the mean of f_i over the client's compared samples

over the compared samples of all clients. 0: the features are equal; 1: the mean extractor moves a sample's features as
far as they are from the mean of all samples.

In recipe `dropout` (lite) it is mostly between 0.2 and 4 over all clients. That did no harm: when the server's
statistics were measured on the mean extractor's features instead, the accuracy stayed the same
(`python -m benchmarks.split_statistics`), and rounds with a larger residual were not less accurate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median

import torch
from torch import Tensor, nn

from fedstill.core.egress import Egress
from fedstill.core.message import part, under
from fedstill.core.protocols import Client, Reply, RoundContext, Shape
from fedstill.core.task import Tensors
from fedstill.devices.split_sides import FEATURES, sample_ids
from fedstill.runtime.cautions import EndedRun, run_cautions

RESIDUAL = "residual/"
COMPARED = "compared/"  # prefix in a client's state
LARGE = 5.0  # a median above this, on the mean of all rounds, is worth a warning: no harm was seen below
NAME, MEDIAN = "feature residual", "feature residual of the median client"  # among the metrics of a round

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
    """The residual over all clients that compared any samples, and that of the median client; empty if none did.

    The first is dominated by clients whose own features hardly vary, such as those of one class.
    """
    sums = [tuple(float(reply.message[RESIDUAL + name]) for name in _SUMS) for reply in replies]
    compared = [(moved, spread) for moved, spread in sums if spread > 0]
    if not compared:
        return {}
    moved, spread = (sum(column) for column in zip(*compared, strict=True))
    return {NAME: moved / spread, MEDIAN: median(own / around for own, around in compared)}


@run_cautions.register("feature residual")
def residual_caution(ended: EndedRun) -> list[str]:
    """The warning about a run with such a journal; empty if its residual was small or not measured."""
    measured = [one.method_metrics[MEDIAN] for one in ended.journal if MEDIAN in one.method_metrics]
    if not measured or fmean(measured) <= LARGE:
        return []
    return [
        f"the averaged extractor's features are far from those that the server's part was trained on: the {MEDIAN} was"
        f" {fmean(measured):.2g} on average (1: as far as a sample is from the mean of all); fewer local epochs or a"
        " lower rate bring them together, and extractors=private does without the average"
    ]


def _spread(samples: int, number: int) -> Tensor:
    """At most this many positions, evenly spread.

    >>> _spread(10, 3).tolist(), _spread(2, 3).tolist()
    ([0, 3, 6], [0, 1])
    """
    return torch.arange(min(samples, number)) * samples // min(samples, number)
