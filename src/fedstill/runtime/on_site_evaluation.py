"""Evaluation where the data is: every site scores the models on its own test data, and only sums leave it.

A server in a real deployment has no test data. The sums of all sites give what one place with all the data would: the
same confusion matrix, and so the same accuracies. Models that clients have of their own are scored where they are, on
that client's data only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import cast

import torch
from torch import Tensor, nn

from fedstill.core.dataset import Dataset
from fedstill.core.egress import Egress
from fedstill.core.errors import InputError
from fedstill.core.message import Message, part, under
from fedstill.core.protocols import (
    Abstain,
    Client,
    Engine,
    Exchange,
    Method,
    Profile,
    Reply,
    RoundContext,
    Shape,
)
from fedstill.core.records import BatchNormCheck, Evaluation, SiteEvaluation, TrafficRecord
from fedstill.core.streams import Streams
from fedstill.core.task import Task, Tensors
from fedstill.methods.base import MODEL
from fedstill.methods.recalibration import STATISTICS, Recalibration, tracked_layers
from fedstill.runtime.batchnorm_check import has_statistics
from fedstill.runtime.client_store import Store
from fedstill.runtime.dispatch import dispatch
from fedstill.runtime.evaluation import Metrics, all_finite_models, means_of, negative_variances, spread_of
from fedstill.runtime.experiment import Experiment
from fedstill.runtime.round_outcome import RoundOutcome, failure_records

SHARED, OWN, VALIDATION = "scores/shared/", "scores/own/", "scores/validation/"
_SERVER = "server/"  # the part of the request that makes a client's own model complete


class SiteScores(Exchange):
    """The exchange in which every site scores the models on its own test data."""

    name = "evaluate"
    egress = (Egress("scores/*", "statistics", "right and wrong answers on test data by class, and summed losses"),)

    def __init__(self, method: Method, task: Task, validation: bool = False) -> None:
        self.method, self.task, self.validation = method, task, validation
        self.personal = method.personal

    def models(self, state: Tensors) -> Mapping[str, Tensors]:
        """The shared models that are scored, by architecture."""
        return self.method.models(state)

    def request(self, state: Tensors, who: Profile, context: RoundContext) -> Message | None:
        models = self.models(state)
        shared = {n: t for name, model in models.items() for n, t in under(f"shared/{name}/", model).items()}
        own = under(_SERVER, part(state, MODEL)) if self.personal else {}
        return Message({**shared, **own})

    def reply(self, client: Client, request: Message, context: RoundContext) -> Message:
        if client.test is None or not len(client.test):
            raise Abstain("it has no test data")
        scores: dict[str, Tensor] = {}
        architectures = sorted({name.split("/", 1)[0] for name in request.part("shared/")})
        for architecture in architectures:
            model = client.task.build(architecture, request.part(f"shared/{architecture}/"))
            scores |= under(f"{SHARED}{architecture}/", _summed(client.task, [model], client.test))
            client.meter.add(len(client.test))
            if self.validation:
                held = client.validation
                models = [model] if held is not None and len(held) else []
                kept = _summed(client.task, models, held if models and held else cast(Dataset, _NoData()))
                scores |= under(f"{VALIDATION}{architecture}/", kept)
        if self.personal:
            state = self.method.personalise(under(MODEL, request.part(_SERVER)), client.state)
            own = [] if state is None else [self.method.assemble(client.profile.architecture, state)]
            scores |= under(OWN, _summed(client.task, own, client.test))
            client.meter.add(len(client.test) * len(own))
        return Message(scores)

    def expect(self, state: Tensors, who: Profile, request: Message) -> Mapping[str, tuple[Shape, torch.dtype]]:
        nothing = _summed(self.task, [], cast(Dataset, _NoData()))
        scored = (SHARED, VALIDATION) if self.validation else (SHARED,)
        places = [f"{place}{name}/" for place in scored for name in self.models(state)]
        places += [OWN] if self.personal else []
        return {
            f"{place}{name}": (tuple(tensor.shape), tensor.dtype)
            for place in places
            for name, tensor in nothing.items()
        }

    def aggregate(self, state: Tensors, replies: Sequence[Reply], context: RoundContext) -> Tensors:
        return state  # nothing is learnt from it


class SiteStatistics(Recalibration):
    """The exchange in which every site measures what BatchNorm layers of the last model see of its training data."""

    def __init__(self, method: Method, task: Task, batch: int) -> None:
        layers = {architecture: tracked_layers(task, architecture) for architecture in task.architectures}
        super().__init__(task, "check statistics", layers, batch, by_batch=True, place=_recalibrated)
        self.method = method

    def request(self, state: Tensors, who: Profile, context: RoundContext) -> Message | None:
        return super().request(self._last(state), who, context)

    def expect(self, state: Tensors, who: Profile, request: Message) -> Mapping[str, tuple[Shape, torch.dtype]]:
        return super().expect(self._last(state), who, request)

    def aggregate(self, state: Tensors, replies: Sequence[Reply], context: RoundContext) -> Tensors:
        """The server's state with the last models beside it, with new statistics where their clients replied."""
        return super().aggregate(self._last(state), replies, context)

    def _last(self, state: Tensors) -> Tensors:
        models = self.method.models(state)
        return {
            **state,
            **{n: t for name, model in models.items() for n, t in under(_recalibrated(name), model).items()},
        }


class RecalibratedScores(SiteScores):
    """The exchange in which every site scores those models."""

    name = "evaluate recalibrated"

    def __init__(self, method: Method, task: Task) -> None:
        super().__init__(method, task)
        self.personal = False

    def models(self, state: Tensors) -> Mapping[str, Tensors]:
        return {name: part(state, _recalibrated(name)) or model for name, model in super().models(state).items()}


def _recalibrated(architecture: str) -> str:
    """The prefix of a model with statistics that the sites have measured, beside the server's state."""
    return f"recalibrated/{architecture}/"


class _NoData:
    """Stands where no data is needed: scores of no model say how scores are shaped."""

    def __len__(self) -> int:
        return 0


@dataclass(frozen=True)
class OnSiteEvaluator:
    """Sends the models to every client, sampled in the round or not; sums are over accepted replies.

    Further models that some methods have beside the shared one (`Method.extra_models`) are not sent.
    """

    task: Task
    streams: Streams
    rounds: int
    validation: bool = False  # whether sites keep a share of their training data to select a round by
    check_batch: int | None = None  # of the check of BatchNorm statistics; None: sites were not asked for them

    @classmethod
    def of(cls, experiment: Experiment, method: Method, task: Task, streams: Streams) -> OnSiteEvaluator:
        """The evaluator of an experiment; where the method recalibrates, sites send statistics anyhow."""
        private = experiment.privacy.name != "none"
        if experiment.check_statistics and private:
            raise InputError(
                "check_statistics sends statistics of the clients' data that privacy does not cover: leave it out"
            )
        lines = [line.name for exchange in method.every_exchange() for line in exchange.egress]
        asks = experiment.check_statistics or (STATISTICS in lines and not private)
        batch = experiment.training.batch if asks else None
        return cls(task, streams, method.rounds(experiment.rounds), bool(experiment.validation), batch)

    def exchanges(self, method: Method) -> list[Exchange]:
        """All that sites may be sent for evaluation."""
        scores = SiteScores(method, self.task, self.validation)
        if self.check_batch is None or not any(tracked_layers(self.task, name) for name in self.task.architectures):
            return [scores]
        return [scores, SiteStatistics(method, self.task, self.check_batch), RecalibratedScores(method, self.task)]

    def check(
        self,
        method: Method,
        server: Tensors,
        profiles: Sequence[Profile],
        store: Store,
        round: int,
        engine: Engine,
        accuracy: float | None,
    ) -> BatchNormCheck | None:
        """What the sites find with BatchNorm statistics that they have re-estimated; None without BatchNorm."""
        if not has_statistics(self.task, method.models(server)):
            return None
        exchanges = self.exchanges(method)[1:]
        if not exchanges:
            ask = "sites were not asked for statistics: set check_statistics=true, which their policies must allow"
            return BatchNormCheck(accuracy=accuracy, samples=0, not_measured=ask)
        outcome, accepted = RoundOutcome(), list[list[Reply]]()
        for exchange in exchanges:
            context = RoundContext.of(self.streams, round, self.rounds, len(profiles), exchange.name)
            replies = dispatch(engine, exchange, server, profiles, context, store, outcome)
            if not replies:
                return BatchNormCheck(accuracy=accuracy, samples=0, not_measured="no site replied")
            server = exchange.aggregate(server, replies, context)
            accepted.append(replies)
        metrics = self._shared(list(self.task.architectures), accepted[1], SHARED)
        return BatchNormCheck(
            accuracy=accuracy,
            recalibrated=metrics["accuracy"],
            samples=sum(reply.profile.samples for reply in accepted[0]),
            traffic=TrafficRecord(
                up=sum(reply.message.nbytes for replies in accepted for reply in replies), down=outcome.traffic.down
            ),
        )

    def __call__(
        self,
        method: Method,
        server: Tensors,
        profiles: Sequence[Profile],
        store: Store,
        round: int,
        engine: Engine,
    ) -> Evaluation:
        exchange = SiteScores(method, self.task, self.validation)
        context = RoundContext.of(self.streams, round, self.rounds, len(profiles), exchange.name)
        outcome = RoundOutcome()
        accepted = dispatch(engine, exchange, server, profiles, context, store, outcome)
        sites = SiteEvaluation(
            sampled=len(outcome.sampled),
            accepted=len(accepted),
            up=sum(reply.message.nbytes for reply in accepted),
            down=outcome.traffic.down,
            failures=failure_records(outcome.failures) or None,
        )
        models = method.models(server)
        test = self._shared(list(models), accepted, SHARED)
        validation = self._shared(list(models), accepted, VALIDATION) if self.validation else {}
        every = self._personal(accepted) if method.personal else []
        personal = spread_of(every, [one["accuracy"] for one in every])
        if not models and every:
            test = means_of(self.task, every)
        finite = all_finite_models(models, test, personal)
        several = list(models) if len(models) > 1 and accepted else []
        return Evaluation(
            finite=finite,
            test=dict(test),
            validation=dict(validation),
            personal=personal,
            extra_models={name: dict(self._shared([name], accepted, SHARED)) for name in several},
            negative_variances=negative_variances(self.task, models),
            sites=sites,
        )

    def truth(self) -> None:
        """Labels of test samples do not leave a site."""

    def predictions(self, models: Mapping[str, Tensors]) -> None:
        """Nor does what is said of each of them."""

    def _shared(self, architectures: Sequence[str], accepted: Sequence[Reply], place: str) -> Metrics:
        each = [
            self.task.summarise(_sums([reply.message.part(f"{place}{name}/") for reply in accepted]))
            for name in architectures
            if accepted
        ]
        return {name: fmean(metrics[name] for metrics in each) for name in each[0]} if each else {}

    def _personal(self, accepted: Sequence[Reply]) -> list[Metrics]:
        """Each on its own test data."""
        scores = [reply.message.part(OWN) for reply in accepted]
        return [self.task.summarise(one) for one in scores if self.task.scored(one)]


def _summed(task: Task, models: Sequence[nn.Module], data: Dataset) -> dict[str, Tensor]:
    """What a site sends of its scores."""
    return dict(task.sums(task.score(models, data)))


def _sums(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([one[name] for one in parts]).sum(dim=0) for name in parts[0]}
