"""Group knowledge transfer: split learning with mutual distillation.

*Group Knowledge Transfer: Federated Learning of Large CNNs at the Edge*, He et al., 2020,
https://arxiv.org/abs/2007.14513

A model is split in two (`Classifier.parts`): clients train the first part f_i with their own small head h_i (one linear
layer), the server trains the second part g. They distil into each other, sample by sample:

    client   min over f_i, h_i of  CE(h_i(f_i(x)), y) + T^2 KL(z_s(x) || h_i(f_i(x)))
             sends f_i(x), z_i(x) = h_i(f_i(x)), y and the number of every sample x
    server   min over g of         CE(g(f_i(x)), y) + T^2 KL(z_i(x) || g(f_i(x)))      over all samples received
             keeps z_s(x) = g(f_i(x)) for client i, and sends it with that client's next request

Both KL terms are at temperature T. For a sample without server logits yet, a client minimises CE alone; logits are
matched by sample number, since batches are shuffled and clients miss rounds. The server's Adam keeps its moments.

After the server's passes the BatchNorm statistics of g are measured exactly on the features received, before z_s is
computed and anything is evaluated (`statistics: recalibrate`). Running statistics lag behind weights that Adam moves:
in recipe `dropout` (lite) they were 0.87 standard deviations off on the server's own features. `batch` keeps them, as
published code does.

With several `server_heads` (our reading of the thesis' future work, several teachers for one student) the server trains
that many g_k from different initial weights on the same features, and z_s stands for the weighted mean of their
distributions at temperature T; g_1 is the shared model's.

With `extractors: average` (the default, one global model) clients also send f_i and h_i, whose means are the start of
the next round; the shared model is the mean of the f_i followed by g. `devices.feature_residual` measures what that
exchange of extractors changes. With `private`, as in the paper, they stay on the clients, and every client has its own
model: f_i followed by g.

Privacy cost: features and **labels of every sample are sent to the server in the clear**. The communication cost
depends on the number of samples, not on the size of the model: see the measurements of a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import prod
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fedstill.core.dataset import Batch
from fedstill.core.egress import Egress
from fedstill.core.errors import InputError
from fedstill.core.fit import Loss, Terms
from fedstill.core.kinds import average, load_state, state_of
from fedstill.core.message import Message, part, under
from fedstill.core.protocols import Client, Method, Profile, Reply, RoundContext, Shape
from fedstill.core.settings import Settings
from fedstill.core.streams import Streams
from fedstill.core.task import Output, Tensors
from fedstill.core.training import Training
from fedstill.devices.feature_residual import (
    RESIDUAL_EGRESS,
    compare,
    feature_residual,
    residual_expected,
    to_compare,
)
from fedstill.devices.server_heads import ServerHead, head_place
from fedstill.devices.split_sides import (
    FEATURES,
    IDS,
    LABELS,
    SOFT,
    Received,
    ServerSettings,
    answers,
    learn,
    recalling,
    samples_as_sent,
    with_soft_targets,
)
from fedstill.methods.base import (
    LOGITS,
    MODEL,
    MODEL_EGRESS,
    PRECISIONS,
    WORK_EGRESS,
    Precision,
    methods,
    same_as,
    train,
    work_expected,
    work_report,
)
from fedstill.methods.recalibration import recalibrate_exactly
from fedstill.models.classifier import Classifier, load_part, part_state
from fedstill.tasks.classification import Classification
from fedstill.tasks.segmentation import Segmentation

SMALL = "small_head/"  # prefix of the client's own head in messages and states
START = "start/"  # prefix of the initial private models in the server state
SAID = "said/"  # the server's logits on a client's samples: said/CLIENT/... in its state, said/... in a request
OPTIMISER = "optimiser/"
FACTS = "facts/"

SAMPLES_EGRESS = (
    Egress(FEATURES, "features", "what the client's part of the model makes of every training sample"),
    Egress(LOGITS, "logits", "what the client's own head says of every training sample"),
    Egress(LABELS, "labels", "the label of every training sample, in the clear: the server learns from it"),
    # Not metrics: numbers of single samples, which identify a sample's logits from round to round.
    Egress(IDS, "labels", "the number of every training sample in the client's data: what is said goes by it"),
)
PARTS_EGRESS = (
    *(Egress(line.name, line.kind, f"{line.why}, the client's part of it") for line in MODEL_EGRESS),
    Egress(f"{SMALL}parameters/*", "parameters", "the weights of the client's own small head"),
)


class FedGktSettings(ServerSettings):
    extractors: Literal["average", "private"] = Field(
        "average",
        description="average: clients' parts are averaged into one model; otherwise each client keeps its own",
    )
    precision: Precision = Field("full", description="precision of transmitted features")
    statistics: Literal["batch", "recalibrate"] = Field(
        "recalibrate",
        description="BatchNorm statistics of the server's part after its passes: recalibrate measures them on all"
        " received features; batch keeps the running ones of training, as published",
    )
    compared: int = Field(
        32,
        ge=0,
        description="samples of a client on which features of the averaged extractor are compared with those it sent"
        " (extractors=average); 0: none",
    )


@methods.register("fedgkt", behaviour=2)
class FedGkt(Method):
    """Group knowledge transfer: clients train the first part of a model, the server the second; both distil logits."""

    name = "train"
    Options: ClassVar[type[Settings]] = FedGktSettings
    settings: FedGktSettings
    task: Classification
    spill_to_disk = True
    refuses: ClassVar[Mapping[str, str]] = {
        "several labels": "the logits that are exchanged are those of one class per sample: give data with one"
        " label, or choose another method, such as fedavg",
        "local_update": "clients train a part of the model on the server's logits, which a local update is not given:"
        " leave training.local_update out, or use fedavg",
    }
    # For images, which the literature's settings are for; clouds keep their own.
    defaults_by_kind: ClassVar = {
        "image": {
            "training": {
                "epochs": 1,
                "batch": 64,
                "optimiser": "sgd",
                "rate": 0.01,
                "momentum": 0.9,
                "weight_decay": 5e-4,
            }
        }
    }

    def __init__(self, settings: FedGktSettings, task: Classification, training: Training) -> None:
        super().__init__(settings, task, training)
        self.averages = settings.extractors == "average"
        self.personal = not self.averages
        self.compared = settings.compared if self.averages else 0

    @property
    def egress(self) -> Sequence[Egress]:  # type: ignore[override]
        return (
            *SAMPLES_EGRESS,
            *(PARTS_EGRESS if self.averages else ()),
            *(RESIDUAL_EGRESS if self.compared else ()),
            *WORK_EGRESS,
        )

    @property
    def terms(self) -> tuple[str, ...]:
        return (*self.task.terms, SOFT)

    def check(self) -> None:
        architecture = self.task.architectures[0]
        model = self.task.build(architecture)
        if isinstance(self.task, Segmentation) or not isinstance(model, Classifier):
            raise InputError(
                f"fedgkt cuts a classifier of whole samples in two, and {architecture} is none: choose data with one"
                " label for each sample, and a model for it, e.g. split-cnn"
            )
        sides = [set(part_state(model, side)) for side in model.parts()]
        if sides[0] & sides[1] or sides[0] | sides[1] != set(state_of(model)) or not all(sides):
            raise InputError(
                f"fedgkt cannot cut {architecture} in two: each of its parts needs weights, and every weight a part"
            )

    def start(self, streams: Streams) -> Tensors:
        architecture = self.task.architectures[0]
        own = streams.at("model", architecture)
        model = _split(self.task.build(architecture, streams=own))
        first, second = (part_state(model, side) for side in model.parts())
        with own.ambient("small head"):
            small = nn.Linear(prod(self.feature_shape), len(self.task.classes))
        at_home = under(MODEL if self.averages else START, first)
        return {**at_home, **under(MODEL, second), **under(SMALL, state_of(small)), **self.further_heads(own)}

    def further_heads(self, streams: Streams) -> Tensors:
        """Heads beside that of the shared model, each from its own initial weights."""
        found: dict[str, Tensor] = {}
        for number in range(1, self.settings.server_heads):
            model = _split(self.task.build(self.task.architectures[0], streams=streams.at("head", number)))
            found |= under(head_place(number) + MODEL, part_state(model, model.parts()[1]))
        return found

    def request(self, state: Tensors, who: Profile, context: RoundContext) -> Message | None:
        said = {}
        if f"{SAID}{who.id}/{IDS}" in state:
            said = {f"{SAID}{name}": state[f"{SAID}{who.id}/{name}"] for name in (IDS, LOGITS)}
        start = self.client_part(state) if self.averages or who.last_round is None else {}
        return Message({**start, **said})

    def client_part(self, state: Tensors) -> Tensors:
        """The client's initial part, as it is sent."""
        first = part(state, MODEL if self.averages else START)
        return {
            **under(MODEL, {name: first[name] for name in self.client_names}),
            **under(SMALL, part(state, SMALL)),
        }

    def reply(self, client: Client, request: Message, context: RoundContext) -> Message:
        model = _split(client.task.build(client.profile.architecture))
        side, small = self.client_side(model)
        own = request if request.part(MODEL) else client.state
        load_part(model, side.extractor, part(own, MODEL))
        load_state(small, part(own, SMALL))
        residual = compare(client, side, self.compared, context) if self.compared else {}
        recall = recalling(request[f"{SAID}{IDS}"], request[f"{SAID}{LOGITS}"]) if f"{SAID}{IDS}" in request else None
        trained = train(client, side, self.training, context, self.loss(), shared=recall)
        said = samples_as_sent(client, side, PRECISIONS[self.settings.precision])
        learnt = {**under(MODEL, part_state(model, side.extractor)), **under(SMALL, state_of(small))}
        if not self.averages:
            client.state = {**client.state, **learnt}
        if self.compared:
            client.state = to_compare(said, self.compared, context)
        return Message({**said, **(learnt if self.averages else {}), **residual, **work_report(trained, self.terms)})

    def loss(self) -> Loss:
        """The client's loss; the distillation term covers the samples that have server logits."""

        def loss(output: Output, batch: Batch, shared: Mapping[str, Tensor]) -> Terms:
            if not shared:
                return output.terms
            return with_soft_targets(output, shared["said"], shared["told"], self.settings.temperature)

        return loss

    def expect(self, state: Tensors, who: Profile, request: Message) -> Mapping[str, tuple[Shape, torch.dtype]]:
        count = who.samples
        return {
            FEATURES: ((count, *self.feature_shape), PRECISIONS[self.settings.precision]),
            LOGITS: ((count, len(self.task.classes)), torch.float32),
            LABELS: ((count,), torch.int64),
            IDS: ((count,), torch.int64),
            **(same_as(self.client_part(state)) if self.averages else {}),
            **(residual_expected() if self.compared else {}),
            **work_expected(self.terms),
        }

    def aggregate(self, state: Tensors, replies: Sequence[Reply], context: RoundContext) -> Tensors:
        """The clients' parts are averaged and the server's part is trained; features are not stored.

        A reply with invalid labels has the right shape, and is rejected here.
        """
        usable = [reply for reply in replies if self.names_classes(reply.message[LABELS])]
        merged = {name: tensor for name, tensor in state.items() if not name.startswith(FACTS)}
        facts = {"unusable replies": float(len(replies) - len(usable))} if len(usable) < len(replies) else {}
        if not usable:
            return {**merged, **_facts(facts)}
        if self.averages:
            weights = [float(reply.profile.samples) for reply in usable]
            for place in (MODEL, SMALL):
                merged |= under(place, average([reply.message.part(place) for reply in usable], weights))
        heads, losses = self.train_heads(state, usable, context)
        facts |= losses
        if self.compared:
            facts |= feature_residual(usable)
        sides = [head.side for head in heads]
        for reply in usable:
            sent = reply.message
            said = answers(sides, self.task, sent[FEATURES], sent[LABELS], self.settings)
            merged |= under(f"{SAID}{reply.profile.id}/", {IDS: sent[IDS].clone(), LOGITS: said})
        for head in heads:
            merged |= {**under(head.place + MODEL, head.state()), **under(head.place + OPTIMISER, head.moments)}
        return {**merged, **_facts(facts)}

    def train_heads(
        self, state: Tensors, usable: Sequence[Reply], context: RoundContext
    ) -> tuple[list[ServerHead], dict[str, float]]:
        """The server's heads after its passes, and the losses of the first."""
        heads = [self.head(state, number) for number in range(self.settings.server_heads)]
        received = Received([reply.message for reply in usable])
        results = learn(
            [head.side for head in heads],
            self.task,
            received,
            [head.moments for head in heads],
            self.settings,
            context.streams.at("server"),
        )
        for head, (_, moments) in zip(heads, results, strict=True):
            head.moments = moments
            if self.settings.statistics == "recalibrate":
                recalibrate_exactly(head.side, self.task, received)
        first, _ = results[0]
        return heads, {f"server {name}": mean for name, mean in first.terms.items()}

    def head(self, state: Tensors, number: int) -> ServerHead:
        model = _split(self.task.build(self.task.architectures[0]))
        place = head_place(number)
        load_part(model, model.parts()[1], part(state, place + MODEL))
        return ServerHead(model, place, part(state, place + OPTIMISER))

    def names_classes(self, labels: Tensor) -> bool:
        return bool(((labels >= 0) & (labels < len(self.task.classes))).all())

    def models(self, server: Tensors) -> Mapping[str, Tensors]:
        return {self.task.architectures[0]: part(server, MODEL)} if self.averages else {}

    def metrics(self, server: Tensors) -> Mapping[str, float]:
        """The server's own losses in its last passes, the feature residual, and the number of unusable replies."""
        return {name: float(value) for name, value in part(server, FACTS).items()}

    def at_client(self, architecture: str) -> nn.Module:
        side, _ = self.client_side(_split(self.task.build(architecture)))
        return side

    def personalise(self, server: Tensors, state: Tensors) -> Tensors | None:
        own = part(state, MODEL)
        return {**part(server, MODEL), **own} if own and not self.averages else None

    def client_side(self, model: Classifier) -> tuple[Classifier, nn.Module]:
        """The client's part of a model with its small head; and that head, whose weights are loaded later."""
        first, _ = model.parts()
        size = prod(self.feature_shape)
        small = nn.utils.skip_init(nn.Linear, size, len(self.task.classes))
        return Classifier(first, nn.Sequential(nn.Flatten(), small), size).to(self.task.device), small

    @cached_property
    def feature_shape(self) -> Shape:
        """The shape of the client part's output, from two dummy inputs."""
        first, _ = _split(self.task.build(self.task.architectures[0])).parts()
        inputs = torch.linspace(-1, 1, 2 * prod(self.task.shape)).reshape(2, *self.task.shape)
        with torch.inference_mode():
            return tuple(first.eval()(inputs.to(self.task.device)).shape[1:])

    @cached_property
    def client_names(self) -> tuple[str, ...]:
        """The names of the client part's tensors in the state of the whole model."""
        model = _split(self.task.build(self.task.architectures[0]))
        return tuple(sorted(part_state(model, model.parts()[0])))


def _facts(numbers: Mapping[str, float]) -> Tensors:
    return under(FACTS, {name: torch.tensor(number, dtype=torch.float64) for name, number in numbers.items()})


def _split(model: nn.Module) -> Classifier:
    assert isinstance(model, Classifier)  # see `check`
    return model
