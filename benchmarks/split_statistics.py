"""How much the accuracy of split distillation depends on rounding, and on the statistics of the server's head.

    python -m benchmarks.split_statistics --statistics recalibrate

runs the first rounds of recipe `dropout` (preset lite, no dropout), adds noise to the features of the last of them,
and repeats the server's work on them. Printed are the accuracies, and those of other models from the same weights: the
head behind the averaged extractor with statistics measured on that extractor's features of the training data, and
the head behind each client's own extractor.
"""

from __future__ import annotations

import argparse
from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

import torch
from torch import nn

from fedstill.core.kinds import norm_layers
from fedstill.core.message import Message
from fedstill.core.protocols import Exchange, Failure, Profile, Reply, RoundContext
from fedstill.core.task import Tensors
from fedstill.devices.split_sides import Received
from fedstill.engines import InProcess
from fedstill.methods.recalibration import recalibrate_exactly
from fedstill.models.classifier import Classifier
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.client_store import ClientStore
from fedstill.runtime.plan import Simulation, make_plan
from fedstill.runtime.recipes import recipe_by
from fedstill.runtime.round import Federation


class Recording(InProcess):
    """Keeps the replies of the last exchange."""

    replies: Sequence[Reply] = ()

    def dispatch(
        self, exchange: Exchange, jobs: Iterable[tuple[Profile, Message, Tensors]], context: RoundContext
    ) -> Generator[Reply | Failure]:
        results = list(super().dispatch(exchange, jobs, context))
        self.replies = [result for result in results if isinstance(result, Reply)]
        yield from results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--statistics", default="recalibrate")
    parser.add_argument("--data", default="mnist[:10%]")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--noise", type=float, default=1e-8)
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args()
    torch.set_num_threads(1)
    recipe = recipe_by("dropout", "lite", None).experiment
    method = {"name": "fedgkt", "statistics": given.statistics}
    own = {"data": given.data, "rounds": given.rounds, "seed": given.seed, "method": method}
    plan = make_plan(make_experiment({**recipe, **own}))
    server, replies, context = _rounds(plan)
    after = plan.method.aggregate(server, replies, context)
    print(f"round {given.rounds}, {given.statistics}: {_accuracy(plan, after):.2f} %")
    print(_lag(plan, after, replies))
    generator = torch.Generator().manual_seed(given.seed)
    for _ in range(given.draws):
        noisy = [_with_noise(reply, given.noise, generator) for reply in replies]
        print(f"noise {given.noise:g}: {_accuracy(plan, plan.method.aggregate(server, noisy, context)):.2f} %")
    print(f"statistics of the averaged extractor's features: {_accuracy(plan, after, measured=True):.2f} %")
    clients = [_accuracy(plan, {**after, **reply.message.part("")}) for reply in replies]
    print(f"behind clients' own extractors: {fmean(clients):.2f} % ({min(clients):.2f} to {max(clients):.2f})")


def _rounds(plan: Simulation) -> tuple[Tensors, Sequence[Reply], RoundContext]:
    """All rounds; the server before the last, the replies of the last, and its context."""
    engine = Recording()
    engine.open(plan.clients)
    with TemporaryDirectory() as folder:
        store = ClientStore(Path(folder), len(plan.profiles))
        federation = Federation(plan.method, plan.participants, engine, plan.profiles, plan.streams, plan.rounds)
        progress = federation.begin(store)
        for _ in range(plan.rounds):
            before = progress
            progress, _ = federation.run_round(before, store)
    context = RoundContext.of(plan.streams, plan.rounds - 1, plan.rounds, len(plan.profiles), plan.method.name)
    return before.server, sorted(engine.replies, key=lambda reply: reply.profile.id), context


def _lag(plan: Simulation, server: Tensors, replies: Sequence[Reply]) -> str:
    """How far the running means of the head are from the means over the received features, in standard deviations."""
    ((architecture, state),) = plan.method.models(server).items()
    model = plan.task.build(architecture, state)
    assert isinstance(model, Classifier)
    kept = [layer.running_mean.clone() for layer in norm_layers(model.parts()[1]).values()]
    head = Classifier(nn.Identity(), model.parts()[1], 0)
    recalibrate_exactly(head, plan.task, Received([reply.message for reply in replies]))
    measured = norm_layers(model.parts()[1]).values()
    off = torch.cat(
        [(old - layer.running_mean).abs() / layer.running_var.sqrt() for old, layer in zip(kept, measured, strict=True)]
    )
    return f"running means are {off.mean():.2f} standard deviations off on average, {off.max():.2f} at most"


def _with_noise(reply: Reply, noise: float, generator: torch.Generator) -> Reply:
    features = reply.message["features"]
    moved = features + noise * torch.randn(features.shape, generator=generator)
    return replace(reply, message=Message({**reply.message, "features": moved}))


def _accuracy(plan: Simulation, server: Tensors, measured: bool = False) -> float:
    ((architecture, state),) = plan.method.models(server).items()
    model = plan.task.build(architecture, state)
    if measured:
        recalibrate_exactly(model, plan.task, plan.bundle.train)
    return 100 * plan.task.summarise(plan.task.score([model], plan.bundle.test))["accuracy"]


if __name__ == "__main__":
    main()
