"""One round between peers: every client offers the model it trained alone, and learns from the others' models.

    offer     client --its model--> server                 (it trains alone first, where it has not done so yet)
    transfer  client <--the others' models-- server        then it learns from them, as its method does

The server relays models and stores none: they are removed from its state at the end of the round. Architectures may
differ. A client's model from before the transfer stays in its state, for comparison.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from fedstill.core.egress import Egress
from fedstill.core.errors import InputError
from fedstill.core.fit import Trained
from fedstill.core.kinds import state_of
from fedstill.core.message import Message, part, under
from fedstill.core.protocols import Abstain, Client, Exchange, Method, Profile, Reply, RoundContext, Shape
from fedstill.core.settings import Settings
from fedstill.core.streams import Streams
from fedstill.core.task import Task, Tensors
from fedstill.core.training import Training
from fedstill.methods.base import (
    MODEL,
    MODEL_EGRESS,
    WORK_EGRESS,
    fresh_models,
    same_as,
    work_expected,
    work_report,
)
from fedstill.methods.local_only import START, TRAIN, LocalSettings, first_model, held_out, train_alone
from fedstill.models.classifier import Classifier
from fedstill.models.portable.extra import need_extra
from fedstill.models.portable.onnx_file import OnnxModel, onnx_bytes
from fedstill.models.portable.program_check import check_program
from fedstill.queries.guard import GuardSettings
from fedstill.queries.probe_rule import NoiseOutputs
from fedstill.queries.query import Queries, recalls
from fedstill.queries.transfer_loss import probe
from fedstill.runtime.reply_validation import all_finite, validate_reply
from fedstill.tasks.classification import Classification
from fedstill.tasks.segmentation import Segmentation

_log = logging.getLogger(__name__)

BEFORE = "before/"  # prefix of the model before the transfer in a client's state
PEERS = "peer/"  # peer/ID/...: prefix of offered models in the server state and in a request
ARCHITECTURE, SAMPLES, QUERY, PROGRAM = "architecture", "samples", "query", "program"
RECALL = "recall"  # of each class on held-out samples, -1 without such samples
OFFER_EGRESS = (
    *(Egress(line.name, line.kind, f"{line.why}, which other clients are given", "peers") for line in MODEL_EGRESS),
    Egress(PROGRAM, "parameters", "instead of them, the model as a program, which other clients are given", "peers"),
)


RECALL_EGRESS = Egress(
    RECALL,
    "metrics",
    "recall of each class on held-out samples, which other clients are given",
    "peers",
    by_class=True,
    optional=True,
)


class PeerSettings(LocalSettings):
    added_later: ClassVar[frozenset[str]] = frozenset({"report_recall"})

    teachers: Literal["weights", "program"] = Field(
        "weights",
        description="format of models sent to peers: weights; or an ONNX program, which runs whatever its architecture"
        " is, and which needs pip install 'fedstill[export]'",
    )
    report_recall: bool = Field(
        False,
        description="offer models with the recall of each class on the client's held-out samples, as far as the site's"
        " policy allows it",
    )


class PeerMethod(Method):
    """Clients learn once from each other's models, by querying for classes."""

    name = TRAIN  # the exchange of local-only: an offered model matches one that was trained alone bit for bit
    needs = frozenset({"labels"})
    personal = True
    settings: LocalSettings
    egress: Sequence[Egress] = (*OFFER_EGRESS, *WORK_EGRESS)
    task: Classification
    wants: ClassVar = frozenset({"queries"})
    terms: ClassVar[Sequence[str]] = ()  # the loss terms of the transfer
    defaults: ClassVar[Mapping[str, Any]] = {"rounds": 1}
    refuses: ClassVar[Mapping[str, str]] = {
        "several labels": "queries are for data with one class per sample: give data with one label, or choose"
        " another method, such as fedavg",
        "loss": "methods with queries add terms to the cross-entropy that their formulas assume: leave training.loss"
        " out",
        "local_update": "methods with queries train on peers' outputs, which a local update is not given: leave"
        " training.local_update out, or use local-only",
    }

    def __init__(
        self, settings: Settings, task: Task, training: Training, inputs: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(settings, task, training)
        self.queries: Queries = (inputs or {}).get("queries", Queries())
        if self.reports_recall:
            self.egress = (*self.egress, RECALL_EGRESS)

    def check(self) -> None:
        if self.as_program:
            self._check_programs()
        for architecture in self.task.architectures:
            if isinstance(self.task, Segmentation) or self.task.finds_boxes:
                raise InputError(f"classes can be asked for where each sample has one, not with {architecture}")
            if not isinstance(self.task.build(architecture), Classifier):
                raise InputError(
                    f"queries train a model's head apart, and {architecture} has none: name its last layer, e.g."
                    " head='fc'"
                )

    def _check_programs(self) -> None:
        """Refuse, before any work, models that peers would not take as programs."""
        need_extra()
        for architecture in self.task.architectures:
            try:
                check_program(onnx_bytes(self.task.build(architecture).eval(), self.task.shape, {}))
            except InputError as error:
                raise InputError(
                    f"{architecture} cannot be offered as a program: {error}; set teachers=weights"
                ) from None

    @property
    def as_program(self) -> bool:
        """Whether models are offered as programs."""
        return isinstance(self.settings, PeerSettings) and self.settings.teachers == "program"

    @property
    def reports_recall(self) -> bool:
        """Whether models are offered with their recall."""
        return isinstance(self.settings, PeerSettings) and self.settings.report_recall

    @classmethod
    def refused_on_site(cls, settings: Settings) -> str | None:
        if isinstance(settings, PeerSettings) and settings.teachers == "program":
            return (
                "models as programs are for simulations, since a site runs no program of others: set teachers=weights"
            )
        return super().refused_on_site(settings)

    def on_site(self) -> Exchange:
        if why := self.refused_on_site(self.settings):
            raise InputError(why)
        return self

    @property
    def holds_out(self) -> bool:
        """Whether clients hold out samples: to stop early, to find classes that their model gets wrong, or to limit
        what they forget."""
        limited = isinstance(self.settings, GuardSettings) and self.settings.max_forgetting is not None
        return limited or self.settings.patience is not None or self.queries.below is not None

    def learn(self, client: Client, peers: Mapping[int, nn.Module], context: RoundContext) -> Trained:
        """Learn from the others' models, if the method does; the result is stored in the client's state."""
        return Trained(0, {})

    def start(self, streams: Streams) -> Tensors:
        return fresh_models(self.task, streams, START)

    def request(self, state: Tensors, who: Profile, context: RoundContext) -> Message | None:
        return first_model(state, who)

    def exchanges(self, server: Tensors, round: int) -> Sequence[Exchange]:
        return (self, Transfer(self))

    def reply(self, client: Client, request: Message, context: RoundContext) -> Message:
        trained = Trained(0, {})
        if not part(client.state, MODEL):
            start = request.part(MODEL)
            trained = train_alone(client, start, self.settings, self.training, context, self.holds_out)
            client.state = {**client.state, QUERY: self.query(client)}
        recall = {RECALL: self.recall(client)} if self.reports_recall else {}
        return Message({**self.offered(client), **recall, **work_report(trained, self.task.terms)})

    def recall(self, client: Client) -> Tensor:
        """The recall of each class on samples that the client did not train on; -1 without samples of it."""
        apart = client.test
        if apart is None and self.holds_out:
            _, apart = held_out(client, self.settings.hold_out)
        if apart is None or not len(apart):
            return torch.full((len(self.task.classes),), -1.0, dtype=torch.float64)
        model = client.task.build(client.profile.architecture, part(client.state, MODEL))
        client.meter.add(len(apart))
        confusion = client.task.score([model], apart)["confusion"]
        return torch.where(confusion.sum(dim=1) > 0, recalls(confusion), -1.0)

    def offered(self, client: Client) -> Tensors:
        """A client's model in the form that is offered to the others."""
        state = part(client.state, MODEL)
        if not self.as_program:
            return under(MODEL, state)
        model = client.task.build(client.profile.architecture, state).eval()
        program = np.frombuffer(onnx_bytes(model, client.task.shape, {}), np.uint8)
        return {PROGRAM: torch.from_numpy(program.copy())}

    def query(self, client: Client) -> Tensor:
        """The client's query, one flag per class."""
        classes = len(self.task.classes)
        labels = client.data.labels()
        assert labels is not None
        if self.queries.below is not None and not self.queries.by_hand:
            model = client.task.build(client.profile.architecture, part(client.state, MODEL))
            _, apart = held_out(client, self.settings.hold_out)
            client.meter.add(len(apart))
            return recalls(client.task.score([model], apart)["confusion"]) < self.queries.below
        counts = torch.bincount(labels, minlength=classes)
        asked = torch.zeros(classes, dtype=torch.bool)
        asked[list(self.queries.of(client.profile.id, counts, Streams(client.streams.seed)))] = True
        return asked

    def expect(self, state: Tensors, who: Profile, request: Message) -> Mapping[str, tuple[Shape, torch.dtype]]:
        model = same_as(under(MODEL, part(state, f"{START}{who.architecture}/")))
        if self.as_program:
            model = {PROGRAM: ((-1,), torch.uint8)}
        recall = {RECALL: ((len(self.task.classes),), torch.float64)} if self.reports_recall else {}
        return {**model, **recall, **work_expected(self.task.terms)}

    def aggregate(self, state: Tensors, replies: Sequence[Reply], context: RoundContext) -> Tensors:
        names = self.task.architectures
        offered: dict[str, Tensor] = {}
        for reply in replies:
            facts = {
                ARCHITECTURE: torch.tensor(names.index(reply.profile.architecture)),
                SAMPLES: torch.tensor(reply.profile.samples),
            }
            if RECALL in reply.message:
                facts[RECALL] = reply.message[RECALL]
            model = {PROGRAM: reply.message[PROGRAM]} if PROGRAM in reply.message else reply.message.part(MODEL)
            offered |= under(f"{PEERS}{reply.profile.id}/", {**model, **facts})
        return {**state, **offered}

    def personalise(self, server: Tensors, state: Tensors) -> Tensors | None:
        return part(state, MODEL) or None


class Transfer(Exchange):
    """The exchange in which a client receives the others' models and learns from them."""

    name = "transfer"
    egress = WORK_EGRESS

    def __init__(self, method: PeerMethod) -> None:
        self.method = method

    def request(self, state: Tensors, who: Profile, context: RoundContext) -> Message | None:
        own = f"{PEERS}{who.id}/"
        return Message(
            {name: tensor for name, tensor in state.items() if name.startswith(PEERS) and not name.startswith(own)}
        )

    def reply(self, client: Client, request: Message, context: RoundContext) -> Message:
        own = own_model(client)
        peers = built(self.method.task, request.part(PEERS), self.method.as_program)
        client.state = {**client.state, **under(BEFORE, own)}
        return Message(work_report(self.method.learn(client, peers, context), self.method.terms))

    def models_to_keep(self, request: Message) -> int:
        return len(numbers(request.part(PEERS)))

    def keep_on_site(self, client: Client, request: Message, folder: Path, run: str) -> Sequence[str]:
        from fedstill.queries.site_offers import keep_offers  # which builds on this module

        return keep_offers(self.method, client, request.part(PEERS), folder, run)

    def expect(self, state: Tensors, who: Profile, request: Message) -> Mapping[str, tuple[Shape, torch.dtype]]:
        return work_expected(self.method.terms)

    def aggregate(self, state: Tensors, replies: Sequence[Reply], context: RoundContext) -> Tensors:
        return {name: tensor for name, tensor in state.items() if not name.startswith(PEERS)}


def own_model(client: Client) -> Tensors:
    """The model that this client trained alone; a client without one (in a dry run) abstains."""
    model = part(client.state, MODEL)
    if not model:
        raise Abstain("it has trained no model yet")
    return model


def probed(client: Client, number: int, model: nn.Module, samples: int, scale: float = 1.0) -> NoiseOutputs:
    """The outputs of a peer's model on noise, computed by this client; all clients use the same noise."""
    client.meter.add(samples)
    return probe(client.task, model, Streams(client.streams.seed).at("peer", number), samples, scale)


def offering(state: Tensors) -> list[int]:
    """The clients whose models are offered."""
    return numbers(part(state, PEERS))


def numbers(offered: Mapping[str, Tensor]) -> list[int]:
    """The clients that offer something; a site trusts neither them nor the server that passes their offers on."""
    named = {name.partition("/")[0] for name in offered}
    if strange := sorted(one for one in named if not (one.isascii() and one.isdigit())):
        raise InputError(f"offers are named by the number of their client, not {strange[0][:40]!r}")
    return sorted({int(name) for name in named})


def built(task: Classification, offered: Mapping[str, Tensor], programs: bool = False) -> dict[int, nn.Module]:
    """The offered models, by client; a program is run only where the experiment says that models are programs."""
    peers = {}
    for number in numbers(offered):
        state = part(offered, f"{number}/")
        architecture = _architecture(task, number, state)
        for fact in (ARCHITECTURE, SAMPLES, RECALL):
            state.pop(fact, None)
        if PROGRAM in state and not programs:
            raise InputError(f"peer {number} offers a program, and this experiment has models as weights")
        if not all(map(all_finite, state.values())):  # the server refuses such a model, and a site trusts no server
            _log.info("the model of peer %d is not finite: the peer is left out", number)
            continue
        model = programmed(task, state[PROGRAM]) if PROGRAM in state else _weighted(task, number, architecture, state)
        if model is not None:
            peers[number] = model
    return peers


def _architecture(task: Classification, number: int, state: Mapping[str, Tensor]) -> str:
    """The architecture of an offer, which is a place in the experiment's list."""
    known, told = task.architectures, state.get(ARCHITECTURE)
    if told is None or told.shape != () or told.is_floating_point() or not 0 <= int(told) < len(known):
        raise InputError(f"peer {number} offers a model of an architecture that is none of {', '.join(known)}")
    return known[int(told)]


def _weighted(task: Classification, number: int, architecture: str, state: Mapping[str, Tensor]) -> nn.Module:
    """The model with these weights, which must be those of its architecture and nothing else."""
    model = task.build(architecture)
    if wrong := validate_reply(Message(state), Message({}), same_as(state_of(model))):
        raise InputError(f"the model of peer {number} is no {architecture}: it {wrong}")
    return task.build(architecture, state)


def programmed(task: Classification, program: Tensor) -> nn.Module | None:
    """A peer's program as a model; None if it does not run on such samples: it then cannot be a teacher."""
    data = program.numpy().tobytes()
    try:
        check_program(data)
        model = OnnxModel(data)
        said, _ = model(torch.zeros(2, *task.shape))
    except Exception:  # onnxruntime raises many kinds of errors for untrusted bytes
        _log.info("a peer's program cannot be run: the peer is left out", exc_info=True)
        return None
    return model if said.shape == (2, len(task.classes)) and bool(said.isfinite().all()) else None
