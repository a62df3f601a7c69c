"""Evaluation where the data is: every site scores the models on its own test data, and only sums leave it.

A server in a real deployment has no test data. The sums of all sites give what one place with all the data would: the
same confusion matrix, and so the same accuracies. Models that clients have of their own are scored where they are, on
that client's data only.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import cast

import torch
from torch import Tensor, nn

from fedstill.core.dataset import Dataset
from fedstill.core.egress import Egress
from fedstill.core.errors import InputError
from fedstill.core.message import Message, part, under
from fedstill.core.metric_records import FurtherMetrics
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
from fedstill.core.sums import SkipRound, Summand, Sums
from fedstill.core.task import Task, Tensors
from fedstill.methods.base import MODEL
from fedstill.methods.recalibration import STATISTICS, Recalibration, tracked_layers
from fedstill.methods.wrappers.choices import Aggregation
from fedstill.runtime.batchnorm_check import has_statistics
from fedstill.runtime.client_store import Store
from fedstill.runtime.dispatch import dispatch
from fedstill.runtime.evaluation import (
    Metrics,
    all_finite_models,
    further_metrics,
    means_of,
    negative_variances,
    spread_of,
)
from fedstill.runtime.experiment import Experiment
from fedstill.runtime.round_outcome import RoundOutcome, failure_records

_log = logging.getLogger(__name__)

SHARED, OWN, VALIDATION = "scores/shared/", "scores/own/", "scores/validation/"
BINNED_SCORES = "counts of scores by class in bins of log-odds, in which one sample may be alone, and of confidences"
SUMMED = "evaluation/"  # the prefix of sums over sites, where single ones are not shown
_SERVER = "server/"  # the part of the request that makes a client's own model complete


class SiteScores(Exchange):
    """The exchange in which every site scores the models on its own test data."""

    name = "evaluate"

    def __init__(self, method: Method, task: Task, validation: bool = False) -> None:
        self.egress = (Egress("scores/*", "statistics", task.sums_meaning, by_class=True),)
        self.method, self.task, self.validation = method, task, validation
        self.summed = (Summand("scores/*", "statistics", weighted=False),)
        if task.counts_scores:
            self.egress = (replace(self.egress[0], why=f"{self.egress[0].why}; {BINNED_SCORES}"),)
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

    def finish(self, state: Tensors, sums: Sums, context: RoundContext) -> Tensors:
        """The sums beside the server's state, in the types in which sites count."""
        kinds = {name: tensor.dtype for name, tensor in _summed(self.task, [], cast(Dataset, _NoData())).items()}
        totals = {name: total.to(_kind_of(name, kinds)) for name, total in sums.totals.items()}
        return {**state, **under(SUMMED, totals)}


def _kind_of(name: str, kinds: Mapping[str, torch.dtype]) -> torch.dtype:
    """The type of a score that is named below a place and an architecture."""
    return next(kind for end, kind in kinds.items() if name.endswith(f"/{end}"))


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
class _Found:
    """What an exchange with the sites gave: the server's state, the replies or their sum, and what is behind them."""

    server: Tensors
    accepted: list[Reply]
    sites: int
    samples: int


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
    aggregation: Aggregation | None = None  # by which the server sees sums over sites only; None: each site's
    sites: int = 0  # how many there are

    @classmethod
    def of(cls, experiment: Experiment, method: Method, task: Task, streams: Streams) -> OnSiteEvaluator:
        """The evaluator of an experiment; where the method recalibrates, sites send statistics anyhow."""
        private = experiment.privacy.name != "none"
        if experiment.check_statistics and private:
            raise InputError(
                "check_statistics sends statistics of the clients' data that privacy does not cover: leave it out"
            )
        if experiment.site_metrics and private:
            raise InputError("site_metrics sends counts of scores that privacy does not cover: leave it out")
        lines = [line.name for exchange in method.every_exchange() for line in exchange.egress]
        asks = experiment.check_statistics or (STATISTICS in lines and not private)
        batch = experiment.training.batch if asks else None
        secure = None if experiment.secure is None else experiment.secure.settings
        assert secure is None or isinstance(secure, Aggregation)
        rounds, validation = method.rounds(experiment.rounds), bool(experiment.validation)
        return cls(task, streams, rounds, validation, batch, secure, experiment.clients)

    def exchanges(self, method: Method) -> list[Exchange]:
        """All that sites may be sent for evaluation."""
        return [step for exchange in self.declared(method) for step in self.steps(exchange)]

    def steps(self, exchange: Exchange) -> Sequence[Exchange]:
        """The exchange, or those by which the server sees the sum only."""
        return (exchange,) if self.aggregation is None else self.aggregation.exchanges(exchange, self.sites)

    def declared(self, method: Method) -> list[Exchange]:
        """The same before secure aggregation."""
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
        exchanges = self.declared(method)[1:]
        if not exchanges:
            ask = "sites were not asked for statistics: set check_statistics=true, which their policies must allow"
            return BatchNormCheck(accuracy=accuracy, samples=0, not_measured=ask)
        outcome, accepted, samples = RoundOutcome(), list[list[Reply]](), list[int]()
        for exchange in exchanges:
            found = self._run(exchange, server, profiles, store, round, engine, outcome)
            if not found.accepted:
                return BatchNormCheck(accuracy=accuracy, samples=0, not_measured="no site replied")
            server = found.server
            accepted.append(found.accepted)
            samples.append(found.samples)
        metrics = self._shared(list(self.task.architectures), accepted[1], SHARED)
        if not metrics:
            return BatchNormCheck(accuracy=accuracy, samples=0, not_measured="the sites have nothing to measure on")
        return BatchNormCheck(
            accuracy=accuracy,
            recalibrated=metrics["accuracy"],
            samples=samples[0],
            traffic=TrafficRecord(
                up=outcome.traffic.up
                if self.aggregation
                else sum(reply.message.nbytes for replies in accepted for reply in replies),
                down=outcome.traffic.down,
            ),
        )

    def _run(
        self,
        exchange: Exchange,
        server: Tensors,
        profiles: Sequence[Profile],
        store: Store,
        round: int,
        engine: Engine,
        outcome: RoundOutcome,
    ) -> _Found:
        """Run an exchange with all sites; with secure aggregation its steps, each with the sites that are left."""
        cohort, accepted = list(profiles), list[Reply]()
        for step in self.steps(exchange):
            context = RoundContext.of(self.streams, round, self.rounds, len(profiles), step.name)
            replies = dispatch(engine, step, server, cohort, context, store, outcome)
            accepted = accepted if step.auxiliary else replies
            if not replies:
                return _Found(server, [], 0, 0)
            try:
                server = step.aggregate(server, replies, context)
            except SkipRound as why:
                _log.info("round %d, %s: %s", round + 1, step.name, why)
                return _Found(server, [], 0, 0)
            cohort = [who for who in cohort if who.id not in outcome.failed]
        sites, samples = len(accepted), sum(reply.profile.samples for reply in accepted)
        if self.aggregation is not None:  # what the sites sent tells nothing: their sums stand for them
            accepted = [replace(accepted[0], message=Message(part(server, SUMMED)))]
        return _Found(server, accepted, sites, samples)

    def __call__(
        self,
        method: Method,
        server: Tensors,
        profiles: Sequence[Profile],
        store: Store,
        round: int,
        engine: Engine,
    ) -> Evaluation:
        exchange, outcome = SiteScores(method, self.task, self.validation), RoundOutcome()
        found = self._run(exchange, server, profiles, store, round, engine, outcome)
        accepted = found.accepted
        sites = SiteEvaluation(
            sampled=len(outcome.sampled),
            accepted=found.sites,
            up=outcome.traffic.up if self.aggregation else sum(reply.message.nbytes for reply in accepted),
            down=outcome.traffic.down,
            failures=failure_records(outcome.failures) or None,
        )
        models = method.models(server)
        last = round + 1 == self.rounds and self.aggregation is None  # sums tell nothing of each site
        test = self._shared(list(models), accepted, SHARED)
        validation = self._shared(list(models), accepted, VALIDATION) if self.validation else {}
        every = self._personal(accepted) if method.personal else []
        personal = None if self.aggregation else spread_of(every, [one["accuracy"] for one in every])
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
            further=self._further(list(models), accepted, last) if accepted else None,
        )

    def _further(self, names: Sequence[str], accepted: Sequence[Reply], last: bool) -> FurtherMetrics | None:
        """Of the sums of all sites; after the last round, of each site as well."""
        if not names:
            own = [scores for reply in accepted if self.task.scored(scores := reply.message.part(OWN))]
            return further_metrics(self.task, own)
        test, validation = (
            [_sums([reply.message.part(f"{place}{name}/") for reply in accepted]) for name in chosen]
            for place, chosen in ((SHARED, names), (VALIDATION, names if self.validation else ()))
        )
        each = {reply.profile.id: reply.message.part(f"{SHARED}{names[0]}/") for reply in accepted}
        known = {site: scores for site, scores in each.items() if self.task.scored(scores)}
        return further_metrics(self.task, test, validation, known if last else None)

    def truth(self) -> None:
        """Labels of test samples do not leave a site."""

    def predictions(self, models: Mapping[str, Tensors]) -> None:
        """Nor does what is said of each of them."""

    def _shared(self, architectures: Sequence[str], accepted: Sequence[Reply], place: str) -> Metrics:
        """The means over models of what all sites measured together; nothing where they have nothing to measure on."""
        if not accepted:
            return {}
        sums = [_sums([reply.message.part(f"{place}{name}/") for reply in accepted]) for name in architectures]
        each = [self.task.summarise(one) for one in sums if self.task.scored(one)]
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
