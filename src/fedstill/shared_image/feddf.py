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

A student with BatchNorm that trains on proxy samples in training mode takes over their statistics, which are not those
of the clients' data (`statistics: batch`, as in the papers' code). With `frozen` it keeps its own. With `recalibrate`
the cohort then measures them for the distilled model, each client for its own architecture, in a second exchange that
sends the model down; where the model is not sent, the new statistics go down with the logits. Statistics are never
estimated on proxy samples.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedstill.core.dataset import SharedSamples, Subset, Told
from fedstill.core.egress import Egress, in_rounds
from fedstill.core.errors import InputError, UnusableError
from fedstill.core.fit import Correct
from fedstill.core.kinds import PARAMETERS, average, state_of
from fedstill.core.message import Message, part, under
from fedstill.core.protocols import Client, Exchange, Meter, Method, Profile, Reply, RoundContext, Shape
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
from fedstill.shared_image.ensemble_settings import EnsembleSettings, steps_in
from fedstill.shared_image.logit_clipping import clipped_loss
from fedstill.shared_image.proxy_selection import draw_uniformly, pool_outputs
from fedstill.shared_image.released_code import squared_sum
from fedstill.shared_image.server_recalibration import (
    LESSON,
    RECALIBRATED,
    ServerRecalibration,
    lesson,
    model_place,
    statistics_of,
    steps_of,
)
from fedstill.shared_image.server_validation import VALIDATION, BestStep, ServerValidation
from fedstill.shared_image.shared_samples import (
    LOGITS_EGRESS,
    SELECTED,
    ProxySettings,
    ServerProxy,
    check_whole_samples,
    client_logits,
    expected_logits,
    on_logits,
    samples_among,
    samples_of,
    towards,
)
from fedstill.shared_image.teacher_weights import CLASS_COUNTS, COUNTS_EGRESS, class_counts_of, consensus
from fedstill.tasks.classification import Classification

_log = logging.getLogger(__name__)

INITIALISE = "initialise"
TAKEN = "taken/"  # by architecture, the steps after which the last distillation was kept; 0: it was discarded


class FedDFSettings(ProxySettings, EnsembleSettings):
    pass


@methods.register("feddf", behaviour=2)
class FedDF(Method):
    """Ensemble distillation: client models are fused into shared ones by their logits on proxy data."""

    name = "train"
    egress: Sequence[Egress] = (LOGITS_EGRESS, *MODEL_EGRESS, *WORK_EGRESS)
    Options: ClassVar[type[Settings]] = FedDFSettings
    needs = frozenset({"labels"})
    wants: ClassVar = frozenset({"shared samples", VALIDATION})
    task: Classification
    settings: EnsembleSettings
    refuses: ClassVar[Mapping[str, str]] = {
        "several labels": "the logits that clients send are those of one class per sample: give data with one"
        " label, or choose another method, such as fedavg",
        "local_update": "the server distils clients' logits in the built-in training loop, and clients train in it too:"
        " leave training.local_update out, or use fedavg",
    }

    def __init__(
        self, settings: Settings, task: Task, training: Training, inputs: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(settings, task, training)
        self.proxy, self.validation = ServerProxy(inputs), ServerValidation(inputs)
        if self.settings.weights == "class-counts":
            self.egress = (*self.egress, COUNTS_EGRESS)
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
        for setting in ("keep", "replace", "selector"):
            if getattr(self.settings, setting) != EnsembleSettings.model_fields[setting].default:
                self.validation.require(setting)

    def refusal(self, setting: str) -> str | None:
        if setting == "loss" and self.settings.clip_logits is not None:
            return "method.clip_logits changes the cross-entropy, which training.loss replaces: leave one of them out"
        return super().refusal(setting)

    def objective(self) -> Objective:
        return on_logits(self.settings.objective, self.settings.temperature)

    @property
    def size(self) -> int:
        return self.proxy.size(self.settings.samples)

    def start(self, streams: Streams) -> Tensors:
        return {**fresh_models(self.task, streams, MODEL), SELECTED: torch.zeros(self.size, dtype=torch.int64)}

    def exchanges(self, server: Tensors, round: int) -> Sequence[Exchange]:
        if self.settings.statistics != "recalibrate":
            return (self,)
        return (self, *ServerRecalibration.after_distillation(self.task, self.training.batch))

    def metrics(self, server: Tensors) -> Mapping[str, float]:
        told = {"recalibrated": part(server, RECALIBRATED), "distillation steps": part(server, TAKEN)}
        return {f"{what} {name}": float(value) for what, found in told.items() for name, value in found.items()}

    def prepare(self, state: Tensors, context: RoundContext) -> Tensors:
        return {**state, SELECTED: self.selected(lambda: self.selecting_model(state), context)}

    def selected(self, model: Callable[[], nn.Module], context: RoundContext) -> Tensor:
        """The same samples in every round, drawn once; or those that this model selects."""
        pool, selection = self.proxy.data, self.settings.selection
        if selection is None:
            return draw_uniformly(len(pool), self.size, Streams(context.streams.seed))
        if not selection.asks:
            return draw_uniformly(len(pool), self.size, context.streams)
        embeddings, logits = pool_outputs(self.task, model(), pool)
        try:
            return selection.select(embeddings, logits, self.size, context.streams)
        except UnusableError:  # non-finite outputs select nothing; the journal records them
            _log.info("outputs are not finite: proxy samples are drawn uniformly", exc_info=True)
            return draw_uniformly(len(pool), self.size, context.streams)

    def selecting_model(self, state: Tensors) -> nn.Module:
        """The model that selects: of several, the first, or the first of those with the best validation accuracy."""
        names = self.task.architectures if self.settings.selector == "best" else self.task.architectures[:1]
        models = [self.task.build(name, part(state, model_place(name))) for name in names]
        return models[0] if len(models) == 1 else max(models, key=self.validated)

    def validated(self, model: nn.Module) -> float:
        return self.validation.accuracy(self.task, model)

    def initialises(self, round: int) -> bool:
        """Whether clients also send weights in this round, counted from zero."""
        return self.settings.initialises(round)

    def when(self, line: Egress, rounds: int) -> str:
        """Weights leave in initialisation rounds only."""
        if not line.name.startswith(MODEL):
            return super().when(line, rounds)
        return in_rounds([round for round in range(rounds) if self.initialises(round)], rounds)

    def request(self, state: Tensors, who: Profile, context: RoundContext) -> Message | None:
        start = self.lessons(state, who, context) or under(MODEL, part(state, model_place(who.architecture)))
        flag = {INITIALISE: torch.tensor(self.initialises(context.round))}
        return Message({**start, **self.proxy.question(state[SELECTED]), **flag})

    def lessons(self, state: Tensors, who: Profile, context: RoundContext) -> Tensors | None:
        """The consensus logits that update the client's model to this round's; None if sending the model is better."""
        if self.settings.downlink == "model" or who.last_round is None:
            return None
        if any(self.initialises(round) for round in range(who.last_round, context.round + 1)):
            return None
        missed = [round for round in range(who.last_round, context.round) if lesson(round, LOGITS) in state]
        lessons = {name: state[name] for round in missed for name in (lesson(round, LOGITS), lesson(round, SELECTED))}
        for round in missed:
            place, steps = statistics_of(round, who.architecture), steps_of(round, who.architecture)
            lessons |= under(place, part(state, place)) | ({steps: state[steps]} if steps in state else {})
        model = part(state, model_place(who.architecture))
        return lessons if _size(lessons) < _size(model) else None

    def reply(self, client: Client, request: Message, context: RoundContext) -> Message:
        samples = samples_of(client, request)
        if bool(request[INITIALISE]) and not self.initialises(context.round):
            raise InputError(f"weights were requested in round {context.round + 1}, in which none are to leave")
        start = request.part(MODEL) or self.caught_up(client, request, context)
        if self.settings.downlink == "logits":
            client.state = {**client.state, **under(MODEL, start)}
        model = client.task.build(client.profile.architecture, start)
        loss, pull = clipped_loss(self.task, self.settings.clip_logits), self.pull(model, part(start, PARAMETERS))
        trained = train(client, model, self.training, context, loss, correct=pull)
        weights = under(MODEL, state_of(model)) if bool(request[INITIALISE]) else {}
        logits = client_logits(client, model, samples, self.settings.precision)
        counts = class_counts_of(client, len(self.task.classes)) if self.settings.weights == "class-counts" else {}
        return Message({LOGITS: logits, **weights, **counts, **work_report(trained)})

    def pull(self, model: nn.Module, anchor: Tensors) -> Correct | None:
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
            samples = samples_among(client.proxy.data, request[lesson(round, SELECTED)])
            told = Told(samples, request[lesson(round, LOGITS)].float())
            then = RoundContext.of(
                Streams(context.streams.seed), round, context.rounds, context.clients, context.exchange
            )
            kept = request.get(steps_of(round, architecture))
            steps = steps_in(self.settings, round, context.rounds) if kept is None else int(kept)
            model = self.distilled(architecture, model, told, then, client.meter, steps)
            model = {**model, **request.part(statistics_of(round, architecture))}
        return model

    def expect(self, state: Tensors, who: Profile, request: Message) -> Mapping[str, tuple[Shape, torch.dtype]]:
        weights = same_as(under(MODEL, request.part(MODEL))) if bool(request[INITIALISE]) else {}
        count, classes = len(request[SELECTED]), len(self.task.classes)
        logits = expected_logits(count, classes, self.settings.precision)
        counts = {CLASS_COUNTS: ((classes,), torch.int64)} if self.settings.weights == "class-counts" else {}
        return {**logits, **weights, **counts, **work_expected(self.task.terms)}

    def aggregate(self, state: Tensors, replies: Sequence[Reply], context: RoundContext) -> Tensors:
        said = consensus(replies, self.settings.weights)
        merged = dict(state)
        if self.settings.downlink == "logits":
            said = said.to(PRECISIONS[self.settings.precision])  # as clients receive it
            merged = self.remembered(merged, said, context)
        proxy = Told(Subset(self.proxy.data, state[SELECTED]), said.float())
        for architecture in self.task.architectures:
            model = part(state, model_place(architecture))
            own = [reply for reply in replies if reply.profile.architecture == architecture]
            if own and self.initialises(context.round):
                counts = [float(reply.profile.samples) for reply in own]
                model = average([reply.message.part(MODEL) for reply in own], counts)
            distilled, steps = self.judged(architecture, model, proxy, context)
            merged |= under(model_place(architecture), distilled)
            if self.settings.judges:
                merged[TAKEN + architecture] = torch.tensor(steps)
                if lesson(context.round, LOGITS) in merged:
                    merged[steps_of(context.round, architecture)] = torch.tensor(steps)
        return merged

    def remembered(self, state: dict[str, Tensor], said: Tensor, context: RoundContext) -> dict[str, Tensor]:
        """The state with this round's consensus logits; an initialisation makes the earlier ones unusable."""
        if self.initialises(context.round):
            return {name: tensor for name, tensor in state.items() if not name.startswith(LESSON)}
        selected = state[SELECTED].to(torch.int32)
        return {**state, lesson(context.round, LOGITS): said, lesson(context.round, SELECTED): selected}

    def judged(self, architecture: str, start: Tensors, proxy: Told, context: RoundContext) -> tuple[Tensors, int]:
        """The model that the server keeps, and after how many steps: of none, that from which distillation started."""
        steps = steps_in(self.settings, context.round, context.rounds)
        model = self.task.build(architecture, start)
        best = None
        if self.settings.keep == "best-step":
            best = BestStep(model, self.validated, steps, self.settings.validate_every)
        self.distil(model, architecture, proxy, context, Meter(), steps, best)
        kept, taken = (state_of(model), steps) if best is None else (best.state, best.step)
        if self.settings.replace == "if-not-worse":
            before, after = (self.validated(self.task.build(architecture, state)) for state in (start, kept))
            kept, taken = (kept, taken) if after >= before else (dict(start), 0)
        return kept, taken

    def distilled(
        self, architecture: str, state: Tensors, proxy: Told, context: RoundContext, meter: Meter, steps: int
    ) -> Tensors:
        """A model after so many of this round's distillation steps towards the consensus logits."""
        model = self.task.build(architecture, state)
        self.distil(model, architecture, proxy, context, meter, steps)
        return state_of(model)

    def distil(
        self,
        model: nn.Module,
        architecture: str,
        proxy: Told,
        context: RoundContext,
        meter: Meter,
        steps: int,
        watch: Callable[[int], None] | None = None,
    ) -> None:
        """Take this round's distillation steps."""
        streams, clip = context.streams.at("distil", architecture), self.settings.clip_logits
        towards(model, self.task, proxy, self.objective(), self.settings, steps, streams, meter, clip=clip, watch=watch)

    def models(self, server: Tensors) -> Mapping[str, Tensors]:
        return {architecture: part(server, model_place(architecture)) for architecture in self.task.architectures}


def _size(tensors: Tensors) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())
