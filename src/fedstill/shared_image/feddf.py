"""Ensemble distillation on the server.

*Ensemble Distillation for Robust Model Fusion in Federated Learning*, Lin et al., 2020,
https://arxiv.org/abs/2006.07242

    w_i  <- local training from w_a           (each client i of the cohort, a: its architecture)
    z_i  <- logits of w_i on the proxy samples, sent instead of, or beside, the weights
    w_a  <- sum_i n_i w_i / sum_i n_i         (only in initialisation rounds, over clients of that architecture)
    w_a  <- distilled towards softmax(sum_i n_i z_i / sum_i n_i), for some steps

Clients and server hold the same unlabelled proxy data; indices are sent down and logits up. The server keeps a model
for every architecture among the clients, and each is distilled from all clients.

With `downlink: logits` a client that holds the model of an earlier round receives the consensus logits since then
instead of the model, and takes the same steps as the server. It cannot reproduce a model that was averaged meanwhile,
and does not do so in a round in which it sends weights, since an update is relative to a model that was sent. On
another type of processor than the server's its model differs in the last digits; on the same type it matches bit for
bit.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedstill.core.dataset import SharedSamples, Subset, Told
from fedstill.core.egress import Egress, in_rounds
from fedstill.core.errors import InputError, UnusableError
from fedstill.core.fit import Correct
from fedstill.core.kinds import PARAMETERS, average, state_of
from fedstill.core.message import Message, part, under
from fedstill.core.protocols import Client, Meter, Method, Profile, Reply, RoundContext, Shape
from fedstill.core.settings import Settings
from fedstill.core.streams import Streams
from fedstill.core.task import Task, Tensors
from fedstill.core.training import Training
from fedstill.distillation import Objective
from fedstill.methods.base import (
    LOGITS,
    MODEL,
    MODEL_EGRESS,
    PRECISIONS,
    WORK_EGRESS,
    fresh_models,
    methods,
    same_as,
    train,
    work_expected,
    work_report,
)
from fedstill.methods.gradients import correction
from fedstill.models.own_models import check_features
from fedstill.shared_image.proxy_selection import Selection, draw_uniformly, pool_outputs
from fedstill.shared_image.released_code import squared_sum
from fedstill.shared_image.shared_samples import (
    LOGITS_EGRESS,
    SELECTED,
    LogitSettings,
    ProxySettings,
    ServerProxy,
    StepSettings,
    check_whole_samples,
    client_logits,
    consensus,
    expected_logits,
    on_logits,
    samples_among,
    samples_of,
    towards,
)
from fedstill.tasks.classification import Classification

_log = logging.getLogger(__name__)

INITIALISE = "initialise"
LESSON = "lesson/"  # lesson/ROUND/...: a round's samples and the consensus logits on them


class EnsembleSettings(StepSettings, LogitSettings):
    added_later = frozenset({"proximal"})

    initialise: float = Field(
        1.0,
        gt=0,
        le=1,
        description="fraction of rounds in which clients also send weights, from which the server's model starts",
    )
    selection: Selection | None = Field(
        None, description="select each round's proxy samples by the model's outputs on them"
    )
    schedule: Literal["uniform", "growing"] = Field(
        "uniform",
        description="the same number of steps in every round, or growing from half of them to all in the last round",
    )
    mu: float = Field(0.0, ge=0, description="weight of FedProx's proximal term towards the round's model; 0: none")
    proximal: Literal["distance", "sum-as-released"] = Field(
        "distance",
        description="FedProx's term: the squared distance; sum-as-released: the squared sum of differences, by a fault"
        " of the released code",
    )
    objective: str = Field("vanilla", description="distillation loss of the server's model; one that needs only logits")
    downlink: Literal["model", "logits"] = Field(
        "model",
        description="what the server sends: the model; or averaged logits, if clients can compute the model from them",
    )


class FedDFSettings(ProxySettings, EnsembleSettings):
    pass


@methods.register("feddf")
class FedDF(Method):
    """Ensemble distillation: client models are fused into shared ones by their logits on proxy data."""

    name = "train"
    egress: Sequence[Egress] = (LOGITS_EGRESS, *MODEL_EGRESS, *WORK_EGRESS)
    Options: ClassVar[type[Settings]] = FedDFSettings
    needs = frozenset({"labels"})
    wants: ClassVar = frozenset({"shared samples"})
    task: Classification
    settings: EnsembleSettings
    refuses: ClassVar[Mapping[str, str]] = {
        "local_update": "the server distils clients' logits in the built-in training loop, and clients train in it too:"
        " leave training.local_update out, or use fedavg"
    }

    def __init__(
        self, settings: Settings, task: Task, training: Training, inputs: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(settings, task, training)
        self.proxy = ServerProxy(inputs)
        if inputs is not None and self.settings.selection is not None:
            self.settings.selection.check(len(self.proxy.data), self.settings.samples)

    @classmethod
    def shared_samples(cls, settings: Any) -> SharedSamples:
        return SharedSamples.named(settings.proxy)

    def same_with_more_rounds(self, few: int, many: int) -> bool:
        steps = [[steps_in(self.settings, round, rounds) for round in range(few)] for rounds in (few, many)]
        return steps[0] == steps[1] and super().same_with_more_rounds(few, many)

    def check(self) -> None:
        check_whole_samples(self.task)
        self.objective()
        if self.settings.selection is not None:
            check_features("the selection of shared samples", self.task)

    def objective(self) -> Objective:
        return on_logits(self.settings.objective, self.settings.temperature)

    @property
    def size(self) -> int:
        return self.proxy.size(self.settings.samples)

    def start(self, streams: Streams) -> Tensors:
        return {**fresh_models(self.task, streams, MODEL), SELECTED: torch.zeros(self.size, dtype=torch.int64)}

    def prepare(self, state: Tensors, context: RoundContext) -> Tensors:
        return {**state, SELECTED: self.selected(state, context)}

    def selected(self, state: Tensors, context: RoundContext) -> Tensor:
        """The same samples in every round, drawn once; or those selected by the model of the first architecture."""
        pool, selection = self.proxy.data, self.settings.selection
        if selection is None:
            return draw_uniformly(len(pool), self.size, Streams(context.streams.seed))
        if not selection.asks:
            return draw_uniformly(len(pool), self.size, context.streams)
        architecture = self.task.architectures[0]
        model = self.task.build(architecture, part(state, _place(architecture)))
        embeddings, logits = pool_outputs(self.task, model, pool)
        try:
            return selection.select(embeddings, logits, self.size, context.streams)
        except UnusableError:  # non-finite outputs select nothing; the journal records them
            _log.info("outputs are not finite: proxy samples are drawn uniformly", exc_info=True)
            return draw_uniformly(len(pool), self.size, context.streams)

    def initialises(self, round: int) -> bool:
        """Every fifth round at a rate of 0.2, including the first one."""
        due = [int(number * self.settings.initialise + 1e-9) for number in (round - 1, round)]
        return round == 0 or due[0] < due[1]

    def when(self, line: Egress, rounds: int) -> str:
        """Weights leave in initialisation rounds only."""
        if not line.name.startswith(MODEL):
            return super().when(line, rounds)
        return in_rounds([round for round in range(rounds) if self.initialises(round)], rounds)

    def request(self, state: Tensors, who: Profile, context: RoundContext) -> Message | None:
        start = self.lessons(state, who, context) or under(MODEL, part(state, _place(who.architecture)))
        flag = {INITIALISE: torch.tensor(self.initialises(context.round))}
        return Message({**start, **self.proxy.question(state[SELECTED]), **flag})

    def lessons(self, state: Tensors, who: Profile, context: RoundContext) -> Tensors | None:
        """The consensus logits that update the client's model to this round's; None if sending the model is better."""
        if self.settings.downlink == "model" or who.last_round is None:
            return None
        if any(self.initialises(round) for round in range(who.last_round, context.round + 1)):
            return None
        missed = [round for round in range(who.last_round, context.round) if _lesson(round, LOGITS) in state]
        lessons = {name: state[name] for round in missed for name in (_lesson(round, LOGITS), _lesson(round, SELECTED))}
        model = part(state, _place(who.architecture))
        return lessons if _size(lessons) < _size(model) else None

    def reply(self, client: Client, request: Message, context: RoundContext) -> Message:
        samples = samples_of(client, request)
        if bool(request[INITIALISE]) and not self.initialises(context.round):
            raise InputError(f"weights were requested in round {context.round + 1}, in which none are to leave")
        start = request.part(MODEL) or self.caught_up(client, request, context)
        if self.settings.downlink == "logits":
            client.state = {**client.state, **under(MODEL, start)}
        model = client.task.build(client.profile.architecture, start)
        trained = train(client, model, self.training, context, correct=self.pull(model, part(start, PARAMETERS)))
        weights = under(MODEL, state_of(model)) if bool(request[INITIALISE]) else {}
        logits = client_logits(client, model, samples, self.settings.precision)
        return Message({LOGITS: logits, **weights, **work_report(trained)})

    def pull(self, model: torch.nn.Module, anchor: Tensors) -> Correct | None:
        """FedProx's term towards the round's model, if there is one."""
        if not self.settings.mu:
            return None
        if self.settings.proximal == "sum-as-released":
            return squared_sum(model, self.settings.mu, anchor)
        return correction(model, pull=self.settings.mu, anchor=anchor)

    def caught_up(self, client: Client, request: Message, context: RoundContext) -> Tensors:
        """The round's model, computed from the client's own one and the request."""
        architecture = client.profile.architecture
        model: Tensors = part(client.state, MODEL)
        if client.proxy is None or not model:
            raise InputError("the server takes this client to hold a model, and there is none")
        for round in sorted({int(name.partition("/")[0]) for name in request.part(LESSON)}):
            samples = samples_among(client.proxy.data, request[_lesson(round, SELECTED)])
            told = Told(samples, request[_lesson(round, LOGITS)].float())
            then = RoundContext.of(
                Streams(context.streams.seed), round, context.rounds, context.clients, context.exchange
            )
            model = self.distilled(architecture, model, told, then, client.meter)
        return model

    def expect(self, state: Tensors, who: Profile, request: Message) -> Mapping[str, tuple[Shape, torch.dtype]]:
        weights = same_as(under(MODEL, request.part(MODEL))) if bool(request[INITIALISE]) else {}
        count, classes = len(request[SELECTED]), len(self.task.classes)
        logits = expected_logits(count, classes, self.settings.precision)
        return {**logits, **weights, **work_expected(self.task.terms)}

    def aggregate(self, state: Tensors, replies: Sequence[Reply], context: RoundContext) -> Tensors:
        said = consensus(replies, self.settings.weights)
        merged = dict(state)
        if self.settings.downlink == "logits":
            said = said.to(PRECISIONS[self.settings.precision])  # as clients receive it
            merged = self.remembered(merged, said, context)
        proxy = Told(Subset(self.proxy.data, state[SELECTED]), said.float())
        for architecture in self.task.architectures:
            model = part(state, _place(architecture))
            own = [reply for reply in replies if reply.profile.architecture == architecture]
            if own and self.initialises(context.round):
                counts = [float(reply.profile.samples) for reply in own]
                model = average([reply.message.part(MODEL) for reply in own], counts)
            merged |= under(_place(architecture), self.distilled(architecture, model, proxy, context, Meter()))
        return merged

    def remembered(self, state: dict[str, Tensor], said: Tensor, context: RoundContext) -> dict[str, Tensor]:
        """The state with this round's consensus logits; an initialisation makes the earlier ones unusable."""
        if self.initialises(context.round):
            return {name: tensor for name, tensor in state.items() if not name.startswith(LESSON)}
        selected = state[SELECTED].to(torch.int32)
        return {**state, _lesson(context.round, LOGITS): said, _lesson(context.round, SELECTED): selected}

    def distilled(self, architecture: str, state: Tensors, proxy: Told, context: RoundContext, meter: Meter) -> Tensors:
        """A model after this round's distillation steps towards the consensus logits."""
        model = self.task.build(architecture, state)
        streams, steps = (
            context.streams.at("distil", architecture),
            steps_in(self.settings, context.round, context.rounds),
        )
        towards(model, self.task, proxy, self.objective(), self.settings, steps, streams, meter)
        return state_of(model)

    def models(self, server: Tensors) -> Mapping[str, Tensors]:
        return {architecture: part(server, _place(architecture)) for architecture in self.task.architectures}


def steps_in(settings: EnsembleSettings, context: int, turns: int) -> int:
    """The number of steps in a round; it grows from half to all, so that 30 rounds take 3/4 of a uniform schedule.

    >>> growing = EnsembleSettings(steps=500, schedule="growing")
    >>> [steps_in(growing, turn, 30) for turn in (0, 29)], sum(steps_in(growing, turn, 30) for turn in range(30))
    ([250, 500], 11250)
    >>> steps_in(EnsembleSettings(steps=500), 0, 30)
    500
    """
    if settings.schedule == "uniform":
        return settings.steps
    progress = context / max(turns - 1, 1)
    return max(1, round(settings.steps * (1 + progress) / 2))


def _lesson(round: int, what: str) -> str:
    return f"{LESSON}{round:06d}/{what}"


def _size(tensors: Tensors) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())


def _place(architecture: str) -> str:
    return f"{MODEL}{architecture}/"
