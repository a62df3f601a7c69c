"""Probabilistic federated neural matching.

*Bayesian Nonparametric Federated Learning of Neural Networks*, Yurochkin et al., 2019, https://arxiv.org/abs/1905.12022

    train    client --its model--> server         trained alone, as in local-only; extractors are averaged by samples
    heads    client <--the mean extractor-- server
             client --a hidden layer on top of it--> server       trained on features that do not move
    match    neurons of these layers are matched (see `neuron_matching.py`); all clients use the global ones

The article matches perceptrons with one hidden layer on the inputs. The models here are deeper, and some have no hidden
layer that could be permuted by itself (a residual network's last features are a sum over its blocks). So the matched
model is a perceptron of one hidden layer on a common extractor, the mean of the clients' extractors; or, with `over:
inputs`, on the inputs themselves, as in the article. Every client uses the result, whose number of neurons is
determined by the matching.

Outgoing weights to a class are weighted by a client's share of that class's samples, as in the authors' code, since a
client without samples has no information about it; the client sends its class counts for that, unless `class_counts` is
off. Variances and mass are values from the grid in the authors' code, which selects among them by training accuracy:
here no party has the data to do so. Of its variances (1, 0.5, 0.1) the smallest is closest to the squares of weights;
with a much larger one all neurons look alike, and only their numbers decide. (One check on test data agreed: digits,
one seed, 14 % with 1.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Literal, TypeVar

import torch
from pydantic import Field
from torch import Tensor, nn

from fedstill.core.dataset import Dataset
from fedstill.core.egress import Egress
from fedstill.core.errors import InputError
from fedstill.core.fit import Learner, Schedule, Trained, fit, task_loss
from fedstill.core.kinds import average, state_of
from fedstill.core.message import Message, part, under
from fedstill.core.numbers import count
from fedstill.core.protocols import Abstain, Client, Exchange, Profile, Reply, RoundContext, Shape
from fedstill.core.streams import Streams
from fedstill.core.task import Tensors
from fedstill.methods.base import MODEL, MODEL_EGRESS, WORK_EGRESS, methods, same_as, work_expected, work_report
from fedstill.methods.local_only import LocalSettings
from fedstill.models.classifier import Classifier
from fedstill.queries.neuron_matching import Prior, match
from fedstill.queries.peers import BEFORE, PeerMethod, own_model
from fedstill.queries.perceptron import HIDDEN, OUTPUT, Perceptron, neurons_of, state_from
from fedstill.queries.transfer_loss import features_of

T = TypeVar("T")

COMMON, HEAD, COUNTS = "common/", "head/", "class_counts"
START = "start-head/"  # the initial head of all clients


class PFNMSettings(LocalSettings):
    over: Literal["features", "inputs"] = Field(
        "features", description="input of the matched layer: features of the averaged extractor, or raw inputs"
    )
    hidden: int = Field(100, ge=1, description="neurons of each client's hidden layer")
    head_epochs: int | None = Field(None, ge=1, description="of that layer's training; none: as of the model's")
    variance: float = Field(0.1, gt=0, description="sigma^2: of clients' neurons around global ones")
    prior_variance: float = Field(10.0, gt=0, description="sigma0^2: of global neurons around zero")
    gamma: float = Field(1.0, gt=0, description="mass of the buffet process: the larger, the more new neurons")
    sweeps: int = Field(3, ge=0, description="number of further matching passes over all clients")
    limit: int = Field(700, ge=1, description="most global neurons")
    class_counts: bool = Field(
        True, description="weight outgoing weights by the client's number of samples of each class"
    )


@methods.register("pfnm")
class PFNM(PeerMethod):
    """Probabilistic federated neural matching: hidden layers are matched neuron by neuron into one, in one round."""

    needs = frozenset({"one-architecture", "labels"})
    Options = PFNMSettings
    settings: PFNMSettings

    @property
    def egress(self) -> Sequence[Egress]:  # type: ignore[override]
        return (*(MODEL_EGRESS if self.settings.over == "features" else ()), *WORK_EGRESS)

    def check(self) -> None:
        super().check()
        if self.settings.limit < self.settings.hidden:
            raise InputError(
                f"limit is {self.settings.limit}, and a client's {self.settings.hidden} hidden neurons may all be"
                " different: raise limit, or lower hidden"
            )
        if self.settings.over == "inputs" and len(self.task.shape) == 2:
            raise InputError("points of a cloud come in no particular order: set over to features")

    def start(self, streams: Streams) -> Tensors:
        width = prod(self.task.shape)
        if self.settings.over == "features":
            model = self.task.build(self.task.architectures[0])
            assert isinstance(model, Classifier)
            width = model.feature_size
        with streams.at("model", "perceptron").ambient("initialise"):
            head = Perceptron(width, self.settings.hidden, len(self.task.classes))
        return {**super().start(streams), **under(START, state_of(head))}

    def exchanges(self, server: Tensors, round: int) -> Sequence[Exchange]:
        return (self, Heads(self))

    def reply(self, client: Client, request: Message, context: RoundContext) -> Message:
        return Message(self.told(super().reply(client, request, context)))

    def expect(self, state: Tensors, who: Profile, request: Message) -> Mapping[str, tuple[Shape, torch.dtype]]:
        return self.told(super().expect(state, who, request))

    def told(self, everything: Mapping[str, T]) -> dict[str, T]:
        """The tensors that the server uses: a model only if its extractor is averaged."""
        wanted = self.settings.over == "features"
        return {name: value for name, value in everything.items() if wanted or not name.startswith(MODEL)}

    def aggregate(self, state: Tensors, replies: Sequence[Reply], context: RoundContext) -> Tensors:
        if self.settings.over == "inputs":
            return state
        samples = [float(reply.profile.samples) for reply in replies]
        return {**state, **under(COMMON, average([reply.message.part(MODEL) for reply in replies], samples))}

    def matched(self, heads: Sequence[Tensors], counts: Sequence[Tensor] | None, streams: Streams) -> Tensors:
        """One head matched from those of all clients."""
        settings, classes = self.settings, len(self.task.classes)
        layers, biases = [neurons_of(head) for head in heads], torch.stack([head[f"{OUTPUT}bias"] for head in heads])
        known = torch.ones(len(heads), classes, dtype=torch.float64)
        if counts is not None:
            samples = torch.stack(list(counts)).double()
            known = samples / samples.sum(dim=0).clamp(min=1)
        trust = torch.ones(len(heads), layers[0].shape[1], dtype=torch.float64)
        trust[:, -classes:] = known
        prior = Prior(1 / settings.prior_variance, settings.gamma, settings.limit)
        found = match(layers, list(trust / settings.variance), prior, settings.sweeps, streams)
        # The output's biases belong to no neuron; they are averaged by the same rule.
        known = known / settings.variance
        return state_from(found.neurons, (biases * known).sum(dim=0) / (prior.precision + known.sum(dim=0)))

    def personalise(self, server: Tensors, state: Tensors) -> Tensors | None:
        """The matched model, the same for all clients; before it exists, the client's own model."""
        return part(server, MODEL) or part(state, MODEL) or None

    def assemble(self, architecture: str, personal: Tensors) -> nn.Module:
        matched, common = part(personal, HEAD), part(personal, COMMON)
        if not matched:
            return self.task.build(architecture, personal)
        head = Perceptron.of(matched)
        below: list[nn.Module] = []
        if common:
            model = self.task.build(architecture, common)
            assert isinstance(model, Classifier)
            below = [model.extractor]
        whole = nn.Sequential(*below, nn.Flatten(), head.hidden, nn.ReLU())
        return Classifier(whole, head.output, head.hidden.out_features).to(self.task.device)

    def metrics(self, server: Tensors) -> Mapping[str, float]:
        neurons = server.get(f"{MODEL}{HEAD}{HIDDEN}bias")
        return {} if neurons is None else {"neurons": float(len(neurons))}


class Heads(Exchange):
    """The exchange in which a client trains a hidden layer on the common features and sends it."""

    name = "heads"
    update_prefix = HEAD

    def __init__(self, method: PFNM) -> None:
        self.method = method

    @property
    def egress(self) -> Sequence[Egress]:  # type: ignore[override]
        read = {"features": "features that all clients have in common", "inputs": "the client's samples"}
        counts = Egress(COUNTS, "statistics", "how many samples of each class the client has", by_class=True)
        return (
            Egress(f"{HEAD}*", "parameters", f"the weights of a layer trained on {read[self.method.settings.over]}"),
            *((counts,) if self.method.settings.class_counts else ()),
            *WORK_EGRESS,
        )

    def request(self, state: Tensors, who: Profile, context: RoundContext) -> Message | None:
        return Message({**under(COMMON, part(state, COMMON)), **under(HEAD, part(state, START))})

    def reply(self, client: Client, request: Message, context: RoundContext) -> Message:
        own, settings = own_model(client), self.method.settings
        data = self.read(client, request.part(COMMON))
        head = Perceptron.of(request.part(HEAD))
        trained = self.trained(client, head, data)
        client.state = {**client.state, **under(BEFORE, own)}
        labels = client.data.labels()
        assert labels is not None
        counts = (
            {COUNTS: torch.bincount(labels, minlength=len(self.method.task.classes))} if settings.class_counts else {}
        )
        return Message({**under(HEAD, state_of(head)), **counts, **work_report(trained)})

    def read(self, client: Client, common: Tensors) -> Dataset:
        """The training inputs of the layer: features of unaugmented samples, or the samples."""
        if self.method.settings.over == "inputs":
            return client.data
        model = client.task.build(client.profile.architecture, common)
        assert isinstance(model, Classifier)
        client.meter.add(len(client.data))
        return features_of(client.task, model, client.data)

    def trained(self, client: Client, head: Perceptron, data: Dataset) -> Trained:
        training = self.method.training
        epochs = self.method.settings.head_epochs or training.epochs
        head.to(self.method.task.device)
        learner = Learner(head, task_loss, training.make_optimiser(head.parameters()), client.streams)
        schedule = Schedule(range(epochs), training.batch, training.clip)
        (trained,) = fit([learner], client.task, data, schedule, client.streams, client.meter)
        if trained.steps == 0:
            raise Abstain(f"no step: no batch of at least two in {count(len(data), 'sample')}")
        return trained

    def expect(self, state: Tensors, who: Profile, request: Message) -> Mapping[str, tuple[Shape, torch.dtype]]:
        counts: dict[str, tuple[Shape, torch.dtype]] = {COUNTS: ((len(self.method.task.classes),), torch.int64)}
        return {
            **same_as(under(HEAD, request.part(HEAD))),
            **(counts if self.method.settings.class_counts else {}),
            **work_expected(self.method.task.terms),
        }

    def aggregate(self, state: Tensors, replies: Sequence[Reply], context: RoundContext) -> Tensors:
        counted = self.method.settings.class_counts
        head = self.method.matched(
            [reply.message.part(HEAD) for reply in replies],
            [reply.message[COUNTS] for reply in replies] if counted else None,
            context.streams,
        )
        kept = {name: tensor for name, tensor in state.items() if not name.startswith((COMMON, MODEL))}
        model = {**under(COMMON, part(state, COMMON)), **under(HEAD, head)}
        return {**kept, **under(MODEL, model)}
