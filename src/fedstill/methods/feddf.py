"""Ensemble distillation on the server.

*Ensemble Distillation for Robust Model Fusion in Federated Learning*, Lin et al., 2020,
https://arxiv.org/abs/2006.07242

    w_i  <- local training from w_a           (each client i of the cohort, a: its architecture)
    z_i  <- what w_i says of the proxy samples, sent instead of, or beside, the weights
    w_a  <- sum_i n_i w_i / sum_i n_i         (only in initialisation rounds, over clients of that architecture)
    w_a  <- distilled towards softmax(sum_i n_i z_i / sum_i n_i), for some steps

Clients and server hold the same proxy data, unlabelled; what crosses the wire are indices down and logits up. The
server keeps a model for every architecture there is among the clients, and each is distilled from all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedstill.core.dataset import Batch, Dataset, Proxy, Subset, every_row
from fedstill.core.egress import Egress
from fedstill.core.errors import InputError, UnusableError
from fedstill.core.fit import Learner, Schedule, Terms, fit
from fedstill.core.kinds import average, state_of
from fedstill.core.message import Message, part, under
from fedstill.core.protocols import Client, Meter, Method, Profile, Reply, Shape, Turn
from fedstill.core.settings import Settings
from fedstill.core.streams import Streams
from fedstill.core.task import Output, Task, Tensors
from fedstill.core.training import Training
from fedstill.distillation import Objective, objectives
from fedstill.distillation.labels import under_labels
from fedstill.distillation.selection import Selection, draw_uniformly, pool_outputs
from fedstill.methods.base import (
    LOGITS,
    MODEL,
    MODEL_EGRESS,
    WEIGHTS,
    WORK_EGRESS,
    methods,
    same_as,
    train,
    work_expected,
    work_report,
)
from fedstill.methods.gradients import correction
from fedstill.tasks.classification import Classification

SELECTED, INITIALISE, PROXY = "selected", "initialise", "proxy"
PRECISIONS = {"half": torch.float16, "full": torch.float32}
LOGITS_EGRESS = Egress(LOGITS, "logits", "what the client's model says of the shared proxy samples")


class LogitSettings(Settings):
    """What methods that exchange logits on shared samples have in common."""

    samples: int = Field(1000, ge=2, description="proxy samples that a round's logits are about; at most all there are")
    precision: Literal["half", "full"] = Field("half", description="of logits on the wire")
    weights: Literal["samples", "uniform"] = Field("samples", description="how much each client's word counts")


class StepSettings(Settings):
    """How a model is moved towards what others say."""

    steps: int = Field(500, ge=1, description="of distillation in each round")
    rate: float = Field(0.005, gt=0, description="learning rate of these steps, which are Adam's")
    batch: int = Field(128, ge=2, description="of these steps")
    temperature: float = Field(1.0, gt=0, description="of the objective, where it has one")


class EnsembleSettings(StepSettings, LogitSettings):
    initialise: float = Field(
        1.0,
        gt=0,
        le=1,
        description="share of rounds in which clients also send weights, to start the server's model from",
    )
    selection: Selection | None = Field(None, description="choose each round's samples by what the model makes of them")
    schedule: Literal["uniform", "growing"] = Field(
        "uniform", description="as many steps in every round, or from half as many up to all of them in the last"
    )
    mu: float = Field(
        0.0, ge=0, description="clients are pulled towards the round's model as in FedProx; 0: they are not"
    )
    objective: str = Field(
        "vanilla", description="how the server's model learns from the clients: one that needs logits"
    )


class ProxySettings(Settings):
    proxy: str | None = Field(
        None, description="what clients and server share: a data set, whose labels are not used, or patches:IMAGE"
    )


class FedDFSettings(ProxySettings, EnsembleSettings):
    pass


class LogitMethod(Method):
    """Clients say what they think of samples that everybody has."""

    needs = frozenset({"labels"})
    task: Classification
    settings: LogitSettings
    proxy: Proxy

    def provide(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.check_proxy(len(proxy.data))

    def check_proxy(self, pool: int) -> None:
        """Refuse settings that cannot work with so many shared samples."""

    def __getstate__(self) -> dict[str, Any]:
        """Where clients are, the proxy is already: it does not travel with each exchange."""
        return {name: value for name, value in self.__dict__.items() if name != "proxy"}

    @property
    def size(self) -> int:
        return min(self.settings.samples, len(self.proxy.data))

    def asked(self, selected: Tensor) -> dict[str, Tensor]:
        """The question: which samples, of which proxy."""
        digest = torch.tensor(list(bytes.fromhex(self.proxy.digest)), dtype=torch.uint8)
        return {SELECTED: selected.to(torch.int32), PROXY: digest}

    def samples_of(self, client: Client, request: Message) -> Subset:
        """The samples that a client is asked about, if it has the same ones as the server."""
        if client.proxy is None or bytes(request[PROXY].tolist()).hex() != client.proxy.digest:
            raise InputError("the proxy data here is not the server's: give both the same image or data set")
        rows, pool = request[SELECTED].long(), client.proxy.data
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(pool):
            raise InputError(f"there are {len(pool)} proxy samples, and some of those asked about are not among them")
        return Subset(pool, rows)

    def said(self, client: Client, model: torch.nn.Module, samples: Dataset) -> Tensor:
        """What a client's model says of these samples, as it is sent."""
        client.meter.add(len(samples))
        return words(client.task, model, samples).to(PRECISIONS[self.settings.precision])

    def expected_words(self, count: int) -> dict[str, tuple[Shape, torch.dtype]]:
        return {LOGITS: ((count, len(self.task.classes)), PRECISIONS[self.settings.precision])}

    def consensus(self, replies: Sequence[Reply]) -> Tensor:
        """The weighted mean of what the clients say; summed in the order of their ids, in double precision."""
        weights = [float(reply.profile.samples) if self.settings.weights == "samples" else 1.0 for reply in replies]
        total = torch.zeros(replies[0].message[LOGITS].shape, dtype=torch.float64)
        for weight, reply in zip(weights, replies, strict=True):
            total += weight * reply.message[LOGITS].double()
        return (total / sum(weights)).float()


@methods.register("feddf")
class FedDF(LogitMethod):
    """Local models are distilled into shared ones, of several architectures if need be, by what they say of a proxy."""

    name = "train"
    egress: Sequence[Egress] = (LOGITS_EGRESS, *MODEL_EGRESS, *WORK_EGRESS)
    Options: ClassVar[type[Settings]] = FedDFSettings
    settings: EnsembleSettings

    def shared_samples(self) -> str:
        assert isinstance(self.settings, FedDFSettings)
        return named_proxy(self.settings.proxy)

    def check(self) -> None:
        self.objective()

    def objective(self) -> Objective:
        return on_logits(self.settings.objective, self.settings.temperature)

    def start(self, streams: Streams) -> Tensors:
        models = {
            name: tensor
            for architecture in self.task.architectures
            for name, tensor in under(
                _place(architecture), state_of(self.task.build(architecture, streams=streams.at("model", architecture)))
            ).items()
        }
        return {**models, SELECTED: torch.zeros(self.size, dtype=torch.int64)}

    def prepare(self, state: Tensors, turn: Turn) -> Tensors:
        return {**state, SELECTED: self.selected(state, turn)}

    def check_proxy(self, pool: int) -> None:
        if self.settings.selection is not None:
            self.settings.selection.check(pool, self.settings.samples)

    def selected(self, state: Tensors, turn: Turn) -> Tensor:
        """The same samples in every round, drawn once; or those that the model of the first architecture selects."""
        pool, selection = self.proxy.data, self.settings.selection
        if selection is None:
            return draw_uniformly(len(pool), self.size, Streams(turn.streams.seed))
        if not selection.asks:
            return draw_uniformly(len(pool), self.size, turn.streams)
        architecture = self.task.architectures[0]
        model = self.task.build(architecture, part(state, _place(architecture)))
        embeddings, logits = pool_outputs(self.task, model, pool)
        try:
            return selection.select(embeddings, logits, self.size, turn.streams)
        except UnusableError:  # a model that says no numbers selects nothing; the journal says that it is not finite
            return draw_uniformly(len(pool), self.size, turn.streams)

    def initialises(self, round: int) -> bool:
        """Every fifth round at a rate of 0.2, the first one among them."""
        due = [int(number * self.settings.initialise + 1e-9) for number in (round - 1, round)]
        return round == 0 or due[0] < due[1]

    def request(self, state: Tensors, who: Profile, turn: Turn) -> Message | None:
        model = under(MODEL, part(state, _place(who.architecture)))
        flag = {INITIALISE: torch.tensor(self.initialises(turn.round))}
        return Message({**model, **self.asked(state[SELECTED]), **flag})

    def reply(self, client: Client, request: Message, turn: Turn) -> Message:
        samples = self.samples_of(client, request)
        model = client.task.build(client.profile.architecture, request.part(MODEL))
        pull = correction(model, pull=self.settings.mu, anchor=request.part(WEIGHTS)) if self.settings.mu else None
        trained = train(client, model, self.training, turn, correct=pull)
        weights = under(MODEL, state_of(model)) if bool(request[INITIALISE]) else {}
        return Message({LOGITS: self.said(client, model, samples), **weights, **work_report(trained)})

    def expect(self, state: Tensors, who: Profile, request: Message) -> Mapping[str, tuple[Shape, torch.dtype]]:
        weights = same_as(under(MODEL, request.part(MODEL))) if bool(request[INITIALISE]) else {}
        return {**self.expected_words(len(request[SELECTED])), **weights, **work_expected(self.task.terms)}

    def merge(self, state: Tensors, replies: Sequence[Reply], turn: Turn) -> Tensors:
        proxy = Told(Subset(self.proxy.data, state[SELECTED]), self.consensus(replies))
        merged = dict(state)
        for architecture in self.task.architectures:
            model = part(state, _place(architecture))
            own = [reply for reply in replies if reply.profile.architecture == architecture]
            if own and self.initialises(turn.round):
                counts = [float(reply.profile.samples) for reply in own]
                model = average([reply.message.part(MODEL) for reply in own], counts)
            merged |= under(_place(architecture), self.distilled(architecture, model, proxy, turn))
        return merged

    def distilled(self, architecture: str, state: Tensors, proxy: Told, turn: Turn) -> Tensors:
        """A model after this round's steps towards what the clients say."""
        model = self.task.build(architecture, state)
        streams = turn.streams.at("distil", architecture)
        towards(model, self.task, proxy, self.objective(), self.settings, self.steps(turn), streams, Meter())
        return state_of(model)

    def steps(self, turn: Turn) -> int:
        """Of this round; growing from half to all of them, so that 30 rounds take 3/4 of the uniform schedule's.

        >>> settings = EnsembleSettings(steps=500, schedule="growing")
        >>> [round(500 * (1 + number / 29) / 2) for number in (0, 29)]
        [250, 500]
        """
        if self.settings.schedule == "uniform":
            return self.settings.steps
        progress = turn.round / max(turn.rounds - 1, 1)
        return max(1, round(self.settings.steps * (1 + progress) / 2))

    def models(self, server: Tensors) -> Mapping[str, Tensors]:
        return {architecture: part(server, _place(architecture)) for architecture in self.task.architectures}


class Told:
    """Samples with what was said of each, as a column beside them."""

    def __init__(self, data: Dataset, said: Tensor) -> None:
        self.data, self.said = data, said

    def __len__(self) -> int:
        return len(self.data)

    def batch(self, rows: Tensor) -> Batch:
        return {**self.data.batch(rows), "said": self.said[rows]}

    def labels(self) -> Tensor | None:
        return None

    def unlabelled(self) -> Told:
        return self


def towards(
    model: torch.nn.Module,
    task: Task,
    proxy: Told,
    objective: Objective,
    settings: StepSettings,
    steps: int,
    streams: Streams,
    meter: Meter,
) -> None:
    """So many steps of a model towards what was said of the proxy."""

    def loss(output: Output, batch: Batch, shared: Mapping[str, Tensor]) -> Terms:
        teacher = Output(batch["said"].to(output.logits.device), output.features.detach())
        return objective.terms(output, teacher)

    training = Training(optimiser="adam", rate=settings.rate, batch=settings.batch, weight_decay=0.0)
    learner = Learner(model, loss, training.make_optimiser(model.parameters()), streams)
    fit([learner], task, proxy, Schedule(range(steps), settings.batch, steps=steps), streams, meter)


def on_logits(name: str, temperature: float) -> Objective:
    """An objective that needs nothing but logits, and no labels."""
    kind = objectives[name]
    given = {"temperature": temperature} if "temperature" in kind.Options.model_fields else {}
    objective = under_labels(kind(kind.Options.model_validate(given)), "withhold")
    if objective.compares_features or objective.least_teachers != 1:
        raise InputError(
            f"clients send logits, and the objective {name} wants more: choose vanilla, logit-mse, cosine, dkd or"
            " another one on logits"
        )
    return objective


def words(task: Task, model: torch.nn.Module, data: Dataset) -> Tensor:
    """What a model says of every sample, in evaluation mode."""
    model.eval()
    with torch.inference_mode():
        said = [task.forward(model, data.batch(rows)).logits.cpu() for rows in every_row(data)]
    return torch.cat(said).clone()


def named_proxy(name: str | None) -> str:
    if name is None:
        raise InputError(
            "clients and server need samples that both have: set method.proxy to a data set or patches:china"
        )
    return name


def _place(architecture: str) -> str:
    return f"{MODEL}{architecture}/"
