"""Imprinting: how many training images a malicious server reads exactly from one agreed training reply.

The server sends crafted weights instead of the shared model (Fowl et al., *Robbing the Fed*,
<https://arxiv.org/abs/2110.13057>). All units of the first layer measure the same projection of an image, each with its
own threshold, and pass it on with the same weight. The update of a unit is then a sum over the images above its
threshold, and the difference between two neighbours is the image between them, if there is just one. The attacker knows
images of the same kind, for the thresholds (another client's, here), and the settings of training; it tries several
scales. An image counts as read if every pixel is nearer to the true value than to any other of the 17 grey levels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.report import Findings
from benchmarks.sizes import Size
from fedstill.core.client import answer
from fedstill.core.message import Message
from fedstill.core.protocols import Reply, RoundContext
from fedstill.core.sums import added
from fedstill.methods.secure.summed_exchange import SUM, SummedExchange, vector_of
from fedstill.methods.wrappers.privacy_accounting import replies_epsilon
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.plan import Plan, make_plan

_FIRST, _SECOND = "model/parameters/extractor.1", "model/parameters/extractor.3"
_HEAD = "model/parameters/head"
_DELTA = 1e-5
_CLIENTS = 3
_TRAINING = {"epochs": 1, "batch": 64}
# Noise multipliers of `privacy=client-level` with `where: client`; None: no privacy. The clip is 1.
_NOISE: tuple[float | None, ...] = (None, 1e-8, 1e-6, 1e-4, 0.01, 1.0)
# The same of `privacy=distributed`, which is in the sum. 0: clipping alone. What is below 1e-6 is refused as too fine.
_NOISE_OF_SUMS: tuple[float | None, ...] = (None, 0.0, 1e-6, 1e-4, 0.01, 1.0)


@dataclass(frozen=True)
class Scale:
    """Sizes of the crafted weights, between the limits that drift during training and rounding set."""

    measure: float  # of the first layer
    passed: float  # of the second
    head: float


# The best of a search over five sizes of each, without noise; noise of the size of the clip calls for larger ones.
SCALES = (
    Scale(1e-4, 0.01, 0.01),
    Scale(1e-4, 1e-3, 0.1),
    Scale(1e-3, 0.01, 0.01),
    Scale(0.01, 0.1, 0.1),
    Scale(1.0, 1.0, 1.0),
    Scale(1.0, 10.0, 10.0),
)


@dataclass(frozen=True)
class Reading:
    """What one reply revealed."""

    images: int  # of the client
    read: int  # exactly
    others: int  # images of another client that are among the candidates, which must be none: the control
    deviation: float | None  # of the noise in the reply, in units of the clip
    epsilon: float | None  # of this one reply, against the server


def crafted(request: Message, public: Tensor, scale: Scale, seed: int = 0) -> Message:
    """The request with weights that imprint images into the update; `public` are images of the same kind."""
    drawn = torch.Generator().manual_seed(seed)
    first, head = request[f"{_FIRST}.weight"], request[f"{_HEAD}.weight"]
    units, pixels = first.shape
    direction = torch.zeros(pixels)
    used = torch.randperm(pixels, generator=drawn)[: pixels // 8]
    direction[used] = scale.measure * torch.randn(len(used), generator=drawn)
    levels = torch.quantile(public.flatten(1) @ direction, torch.linspace(0.001, 0.999, units))
    signs = torch.linspace(1, 2, len(head))[:, None]
    weights = {
        f"{_FIRST}.weight": direction.repeat(units, 1),
        f"{_FIRST}.bias": -levels,
        f"{_SECOND}.weight": torch.full((units, units), scale.passed / units),
        f"{_SECOND}.bias": torch.full((units,), scale.passed),
        f"{_HEAD}.weight": (scale.head * signs).repeat(1, units),
        f"{_HEAD}.bias": torch.zeros(len(head)),
    }
    return Message({**request, **weights})


def reconstructed(sent: Message, reply: Message) -> Tensor:
    """The candidates for images in a reply."""
    return candidates_in({name: (reply[name] - sent[name]).double() for name in reply if name.startswith(_FIRST)})


def candidates_in(update: Mapping[str, Tensor]) -> Tensor:
    """The candidates for images in an update: the differences between neighbouring units of the first layer."""
    change = {name: update[f"{_FIRST}.{name}"] for name in ("weight", "bias")}
    weight, bias = (one - torch.cat([one[1:], torch.zeros_like(one[:1])]) for one in change.values())
    known = bias.abs() > 0
    return weight[known] / bias[known, None]


def number_read(candidates: Tensor, images: Tensor, step: float) -> int:
    """How many images are among the candidates, to the right grey level of every pixel."""
    if not len(candidates):
        return 0
    distance = (images.flatten(1).double()[:, None] - candidates[None]).abs().amax(2).amin(1)
    return int((distance < step / 2).sum())


def plan_with(noise: float | None, seed: int) -> Plan:
    private: dict[str, Any] = {"name": "client-level", "where": "client", "clip": 1.0, "noise": noise}
    given: dict[str, Any] = {"data": "digits", "model": "mlp", "method": "fedavg", "clients": _CLIENTS, "rounds": 1}
    more = {} if noise is None else {"privacy": private, "method": {"name": "fedavg", "weights": "uniform"}}
    return make_plan(make_experiment({**given, "partition": "iid", "seed": seed, "training": _TRAINING, **more}))


def read_once(noise: float | None, scale: Scale, seed: int = 0) -> Reading:
    """Ask one client once, with crafted weights, and count what its reply reveals."""
    plan = plan_with(noise, seed)
    exchange = next(iter(plan.method.every_exchange()))
    context = RoundContext.of(plan.streams, 0, plan.rounds, _CLIENTS, exchange.name)
    who = plan.profiles[0]
    request = exchange.request(plan.method.start(plan.streams), who, context)
    client, other = plan.clients(who, {}, context), plan.clients(plan.profiles[1], {}, context)
    images, public = (one.data.batch(torch.arange(len(one.data)))["inputs"] for one in (client, other))
    sent = crafted(Message(dict(request)), public, scale)
    outcome = answer(plan.clients, exchange, who, sent, {}, context)
    assert isinstance(outcome, Reply), outcome
    values = images.unique()
    step = float((values[1:] - values[:-1]).min())
    deviation = None if plan.method.reply_noise is None else plan.method.reply_noise.deviation
    spent = None if deviation is None else replies_epsilon([deviation], _DELTA)
    candidates = reconstructed(sent, outcome.message)
    read, others = (number_read(candidates, some, step) for some in (images, public))
    return Reading(len(images), read, others, deviation, spent)


def read_from_sum(scale: Scale, seed: int = 0, noise: float | None = None) -> Reading:
    """Ask all clients once, with the same crafted weights, and count what the sum of their updates reveals."""
    given: dict[str, Any] = {"data": "digits", "model": "mlp", "method": "fedavg", "clients": _CLIENTS, "rounds": 1}
    secure: dict[str, Any] = {"seed": seed, "secure": "fixed-point", "training": _TRAINING}
    if noise is not None:
        private = {"name": "distributed", "clip": 1.0, "noise": noise}
        secure |= {"privacy": private, "method": {"name": "fedavg", "weights": "uniform"}}
    plan = make_plan(make_experiment({**given, **secure}))
    (exchange,) = plan.method.every_exchange()
    assert isinstance(exchange, SummedExchange)
    context = RoundContext.of(plan.streams, 0, plan.rounds, _CLIENTS, exchange.name)
    start = plan.method.start(plan.streams)
    request = exchange.request(start, plan.profiles[0], context)
    assert request is not None
    public = plan.bundle.test.batch(torch.arange(len(plan.bundle.test)))["inputs"]
    sent, vectors, images = crafted(request, public, scale), [], []
    for who in plan.profiles:
        outcome = answer(plan.clients, exchange, who, sent, {}, context)
        assert isinstance(outcome, Reply), outcome
        vectors.append(vector_of(outcome.message[SUM]))
        data = plan.clients(who, {}, context).data
        images.append(data.batch(torch.arange(len(data)))["inputs"])
    sums, _ = exchange.layout(start, plan.profiles[0], request).decoded(added(vectors), _CLIENTS)
    every, candidates = torch.cat(images), candidates_in(sums.totals)
    values = every.unique()
    step = float((values[1:] - values[:-1]).min())
    read, others = (number_read(candidates, some, step) for some in (every, public))
    least = plan.method.reply_noise  # in the sum of the fewest clients
    spent = None if least is None else replies_epsilon([least.deviation], _DELTA)
    return Reading(len(every), read, others, None if least is None else least.deviation, spent)


def best(noise: float | None, scales: Sequence[Scale], seed: int = 0) -> Reading:
    return max((read_once(noise, scale, seed) for scale in scales), key=lambda one: one.read)


def measure(size: Size, folder: Path) -> Findings:
    seeds = range(3 if size.jobs > 1 else 1)
    lines = [
        ("noise in a reply (of the clip)", "epsilon of one reply, against the server", "images read exactly", "control")
    ]
    for noise in _NOISE:
        found = [best(noise, SCALES, seed) for seed in seeds]
        one = found[0]
        read = ", ".join(f"{each.read} of {each.images}" for each in found)
        lines.append(
            (
                "none" if one.deviation is None else f"{one.deviation:.2g}",
                "none" if one.epsilon is None else f"{one.epsilon:.3g}",
                read,
                f"{sum(each.others for each in found)} of another client's",
            )
        )
    of_sums = [
        ("noise in the sum (of the clip)", "epsilon of one sum, against the server", "images read exactly", "control")
    ]
    for noise in _NOISE_OF_SUMS:
        sums = [
            max((read_from_sum(scale, seed, noise) for scale in SCALES), key=lambda one: one.read) for seed in seeds
        ]
        first = sums[0]
        of_sums.append(
            (
                "none" if noise is None else f"{noise:.2g}",
                "none" if first.epsilon is None else f"{first.epsilon:.3g}",
                ", ".join(f"{each.read} of {each.images}" for each in sums),
                f"{sum(each.others for each in sums)} test images",
            )
        )
    return Findings(
        tables={
            "one training request with crafted weights (digits, mlp, 200 units)": lines,
            f"the same to {_CLIENTS} clients with secure aggregation: what their sum reveals": of_sums,
        }
    )
