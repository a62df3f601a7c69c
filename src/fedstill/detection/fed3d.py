"""Fed3D: only prompts and heads are communicated, and objects with a large error weigh more.

*Fed3D: Federated 3D Object Detection*, Dai, Liu, Li and Lin; algorithm 1, equations 13 to 15, and `class_aware.py` for
equations 4 to 8.

    (gamma_c, w_c) <- local training from (gamma, w), objects weighed by R        each client c of the cohort
    (gamma, w)     <- sum_c n_c (gamma_c, w_c) / sum_c n_c
    G              <- from the clients' class statistics

gamma are prompts in front of every layer of a frozen encoder, w is everything after it. With `share: prompts-and-heads`
both are trained and sent. The encoder (with the set abstraction before it) is sent to a client once, at first contact,
and stored there; its BatchNorm stays in evaluation mode, so that it never changes. It should have been pre-trained: see
`initial` in an experiment.

With `share: prompts` heads are frozen as well and sent with the encoder, so they too must have been pre-trained. With
`share: all` nothing is frozen: the paper's "w/o FPL", which is FedAvg with class-aware weights, and works for any task
and model. Without both weights it matches FedAvg bit for bit.

Privacy cost of the class weights: **every reply reveals how many objects of each class the client trained on**, and how
hard they were. Without `global_weights` no such statistics are sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fedstill.core.egress import Egress
from fedstill.core.errors import InputError
from fedstill.core.fit import task_loss
from fedstill.core.kinds import PARAMETERS, state_of
from fedstill.core.message import Message, part, under
from fedstill.core.protocols import Client, Exchange, Profile, Reply, RoundContext, Shape
from fedstill.core.settings import Settings
from fedstill.core.streams import Streams
from fedstill.core.sums import Summand, Sums
from fedstill.core.task import Tensors
from fedstill.detection.class_aware import (
    COUNTS,
    EVEN,
    HOLDERS,
    MEANS,
    SUMS,
    ClassAware,
    class_shares,
    class_weights,
    weights_of_shares,
)
from fedstill.detection.model import Detector, part_of
from fedstill.detection.model.detector import PROMPT_SCALE
from fedstill.methods.base import MODEL, MODEL_EGRESS, WORK_EGRESS, methods, same_as, train, work_expected, work_report
from fedstill.methods.fedavg import FedAvg, weigh
from fedstill.models.surgery import freeze
from fedstill.tasks.classification import Classification

FROZEN = "frozen/"  # prefix of frozen tensors in a first request and in a client's state
CLASS_WEIGHTS = "class-weights"  # G, by class

PROMPTS = MODEL + PARAMETERS + "prompts"
LEARNS = {  # the trainable parts of a detector, if some are frozen
    "prompts-and-heads": frozenset({"prompts", "heads"}),
    "prompts": frozenset({"prompts"}),
}
STATISTICS_EGRESS = (
    Egress(
        SUMS, "statistics", "how wrong the model was about objects of each class in training, summed", by_class=True
    ),
    Egress(
        COUNTS,
        "statistics",
        "how many objects of each class it was trained on: tells which classes a client has",
        by_class=True,
    ),
)


class Fed3DSettings(Settings):
    share: Literal["prompts-and-heads", "prompts", "all"] = Field(
        "prompts-and-heads",
        description="what is trained and communicated; the rest of the model is frozen, and sent to each client once",
    )
    local_weights: bool = Field(True, description="weight objects by the error of the client's own model on them")
    global_weights: bool = Field(
        True, description="weight classes by the error of all clients on them, for which they send class statistics"
    )
    prompts: int | None = Field(
        None, ge=1, le=4096, description="number of prompts in each encoder layer; unset: the model's, mostly 10"
    )
    initial_weight: Literal["even", "one"] = Field(
        "even",
        description="weight of every class before its first statistics: even, ln 2, which equal statistics give; one,"
        " 1, with which a class that is absent at first weighs too much",
    )
    added_later: ClassVar[frozenset[str]] = frozenset({"initial_weight", "prompts"})


@methods.register("fed3d", behaviour=2)
class Fed3D(FedAvg):
    """Fed3D: prompts and heads of a detector with a frozen encoder, trained with class-aware weights."""

    Options: ClassVar[type[Settings]] = Fed3DSettings
    settings: Fed3DSettings  # type: ignore[assignment]  # running statistics are averaged, as far as they travel
    task: Classification
    first_contact_prefix = FROZEN
    from_sums = True
    local_updates = False
    refuses: ClassVar[Mapping[str, str]] = {
        "loss": "fed3d weights the cross-entropy of each object by its class: leave training.loss out, or use fedavg",
        "local_update": "fed3d freezes a part of the model and weights the loss of each object, which a local update"
        " does not: leave training.local_update out, or use fedavg",
    }

    @property
    def egress(self) -> Sequence[Egress]:  # type: ignore[override]
        what = {"prompts": ", its prompts alone", "prompts-and-heads": ", all but its encoder", "all": ""}
        model = [
            Egress(line.name, line.kind, line.why + what[self.settings.share])
            for line in MODEL_EGRESS
            if not self.freezes or any(fnmatchcase(MODEL + name, line.name) for name in self.learnt)
        ]
        return (*model, *(STATISTICS_EGRESS if self.settings.global_weights else ()), *WORK_EGRESS)

    def check(self) -> None:
        architecture = self.task.architectures[0]
        needs_detector = self.freezes or self.settings.prompts is not None
        if needs_detector and not isinstance(self.task.build(architecture), Detector):
            raise InputError(
                f"fed3d freezes a detector's encoder, and {architecture} is no detector: choose scenes and a model that"
                " finds boxes in them, e.g. data=rooms and model=detr3d-lite, or set method.share=all"
            )

    def start(self, streams: Streams) -> Tensors:
        weight = EVEN if self.settings.initial_weight == "even" else 1.0
        even = torch.full((len(self.task.classes),), weight, dtype=torch.float64)
        state = {**super().start(streams), **self._own_prompts(streams)}
        return {**state, **({CLASS_WEIGHTS: even} if self.settings.global_weights else {})}

    def _own_prompts(self, streams: Streams) -> Tensors:
        """Initial prompts, if there is another number of them than the model's; drawn as those are."""
        if self.settings.prompts is None:
            return {}
        model = self.task.build(self.task.architectures[0])
        layers, pair, heads, _, width = model.get_parameter("prompts").shape
        shape = layers, pair, heads, self.settings.prompts, width
        drawn = streams.draw("fed3d", "prompts").normal(scale=PROMPT_SCALE, size=shape)
        return {PROMPTS: torch.from_numpy(drawn).float()}

    def exchanges(self, server: Tensors, round: int) -> Sequence[Exchange]:
        return (self,)

    def request(self, state: Tensors, who: Profile, context: RoundContext) -> Message | None:
        model = part(state, MODEL)
        first = _only(self.frozen, model) if who.last_round is None else {}
        across = {CLASS_WEIGHTS: state[CLASS_WEIGHTS]} if self.settings.global_weights else {}
        return Message({**under(MODEL, _only(self.learnt, model)), **under(FROZEN, first), **across})

    def reply(self, client: Client, request: Message, context: RoundContext) -> Message:
        frozen = request.part(FROZEN) or part(client.state, FROZEN)
        model = client.task.build(client.profile.architecture, {**request.part(MODEL), **frozen})
        self.hold(model)
        aware = ClassAware(self.task, self.settings.local_weights, request.get(CLASS_WEIGHTS))
        weighs = self.settings.local_weights or self.settings.global_weights
        trained = train(client, model, self.training, context, aware if weighs else task_loss)
        client.state = {**client.state, **under(FROZEN, frozen)}
        found = aware.statistics() if self.settings.global_weights else {}
        learnt = under(MODEL, _only(self.learnt, state_of(model)))
        return Message({**learnt, **found, **work_report(trained, self.task.terms)})

    def expect(self, state: Tensors, who: Profile, request: Message) -> Mapping[str, tuple[Shape, torch.dtype]]:
        by_class = (len(self.task.classes),)
        found = {SUMS: (by_class, torch.float64), COUNTS: (by_class, torch.int64)}
        return {
            **same_as(under(MODEL, _only(self.learnt, part(state, MODEL)))),
            **(found if self.settings.global_weights else {}),
            **work_expected(self.task.terms),
        }

    def aggregate(self, state: Tensors, replies: Sequence[Reply], context: RoundContext) -> Tensors:
        merged = super().aggregate(state, replies, context)  # frozen tensors are in no reply, and stay
        if not self.settings.global_weights:
            return merged
        return {**merged, CLASS_WEIGHTS: class_weights(state[CLASS_WEIGHTS], [reply.message for reply in replies])}

    def weights(self, replies: Sequence[Reply]) -> list[float]:
        return weigh(replies, "samples")

    @property
    def summed(self) -> Sequence[Summand] | None:  # type: ignore[override]
        mean = super().summed
        if mean is None or not self.settings.global_weights:
            return mean
        return (*mean, Summand(MEANS, "statistics", weighted=False), Summand(HOLDERS, "count", weighted=False))

    def sum_weight(self, who: Profile) -> int:
        return who.samples

    def contribution(self, request: Message, reply: Message) -> Tensors:
        """Class statistics as what the server adds up of them: mean errors by class, and which classes there are."""
        updates = super().contribution(request, reply)
        return {**updates, **class_shares(reply)} if self.settings.global_weights else updates

    def sum_shapes(self, state: Tensors, expected: Mapping[str, tuple[Shape, torch.dtype]]) -> dict[str, Shape]:
        by_class = (len(self.task.classes),)
        own = {MEANS: by_class, HOLDERS: by_class} if self.settings.global_weights else {}
        return {**super().sum_shapes(state, expected), **own}

    def finish(self, state: Tensors, sums: Sums, context: RoundContext) -> Tensors:
        merged = super().aggregate(state, [self.mean_reply(state, sums)], context)
        if not self.settings.global_weights:
            return merged
        across = weights_of_shares(state[CLASS_WEIGHTS], sums.totals[MEANS], sums.totals[HOLDERS] > 0)
        return {**merged, CLASS_WEIGHTS: across}

    def metrics(self, server: Tensors) -> Mapping[str, float]:
        """The weight of each class after the round."""
        if not self.settings.global_weights:
            return {}
        across = server[CLASS_WEIGHTS].tolist()
        return {f"class weight, {name}": weight for name, weight in zip(self.task.classes, across, strict=True)}

    @property
    def freezes(self) -> bool:
        return self.settings.share != "all"

    @cached_property
    def parts(self) -> Mapping[str, bool]:
        """The names in a model's state, and whether each tensor is trained and sent."""
        names = sorted(state_of(self.task.build(self.task.architectures[0])))
        return {name: not self.freezes or part_of(name) in LEARNS[self.settings.share] for name in names}

    @property
    def learnt(self) -> list[str]:
        return [name for name, learns in self.parts.items() if learns]

    @property
    def frozen(self) -> list[str]:
        return [name for name, learns in self.parts.items() if not learns]

    def hold(self, model: nn.Module) -> None:
        """Freeze the frozen parts: no gradients, and BatchNorm and Dropout in evaluation mode."""
        if not self.freezes:
            return
        assert isinstance(model, Detector)  # see `check`
        model.freeze_encoder()
        for name, child in model.named_children():
            if part_of(PARAMETERS + name) not in LEARNS[self.settings.share]:
                freeze(child)


def _only(names: Sequence[str], model: Tensors) -> dict[str, Tensor]:
    return {name: model[name] for name in names}
