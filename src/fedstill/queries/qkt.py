"""Query-based knowledge transfer.

*Query-based Knowledge Transfer for Heterogeneous Learning Environments*, Alballa et al., 2025,
https://arxiv.org/abs/2504.09205

    T_Q  <- the peers whose models know a class of the client's query Q, by a probe with noise
    w    <- trained on the client's data with the masked loss of `transfer_loss.py` towards T_Q      (whole model)
    head <- reset, and trained by itself with the same loss

A client that lacks a class queries its peers' models for it, in one round (see `peers.py`), on its own data: it learns
from their outputs on samples of other classes. With an empty query, or if no peer knows a queried class, it keeps its
model.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from fedstill.core.errors import InputError
from fedstill.core.fit import Trained, together
from fedstill.core.kinds import load_state, state_of
from fedstill.core.message import part, under
from fedstill.core.protocols import Client, RoundContext
from fedstill.core.training import Training
from fedstill.methods.base import MODEL, methods
from fedstill.methods.local_only import held_out
from fedstill.models.classifier import Classifier
from fedstill.queries.guard import CHOICE, FRACTIONS, Guard, GuardSettings, choice_of
from fedstill.queries.peers import QUERY, PeerMethod, PeerSettings, probed
from fedstill.queries.probe_rule import NearMiss, NoiseOutputs, ProbeSettings, noted, unmatched
from fedstill.queries.query import Answered, recalls
from fedstill.queries.transfer_loss import TERMS, Combine, QueryLesson, Watch, class_mask, learn, query_loss, refine

_log = logging.getLogger(__name__)

# Trains the whole model, given the transfer and the teachers.
FirstPhase = Callable[["QueryTransfer", nn.Module, list[nn.Module]], Trained]


class TransferSettings(PeerSettings):
    """The amount of training and the selection of teachers."""

    transfer_epochs: int = Field(25, ge=1, description="epochs of training the whole model on the client's data")
    alpha: float = Field(1.0, ge=0, description="weight of the distillation term relative to the label term")
    temperature: float = Field(1.0, gt=0, description="temperature of the probabilities that are compared")


class QKTSettings(TransferSettings, ProbeSettings, GuardSettings):
    added_later: ClassVar[frozenset[str]] = frozenset({"probe_rule", "least_gap", "max_forgetting", "combine"})

    query_weight: float = Field(1.5, ge=0, description="lambda: weight of queried classes; local classes have 1")
    noise_scale: float = Field(1.0, gt=0, description="standard deviation of the probe's noise; inputs are in -1 to 1")
    combine: Combine = Field(
        "sum",
        description="how teachers' probabilities on a sample are combined: sum, as published, where each teacher counts"
        " as much as the label; mixture: one distribution of theirs and the client's earlier model, each weighted by"
        " its confidence, which counts as much as the label however many teachers there are",
    )
    filter: bool = Field(True, description="learn only from peers that know a queried class")
    mask: bool = Field(True, description="mask the peers' outputs to local and queried classes")
    refine: bool = Field(True, description="reset the head to its earlier weights and train it once more alone")
    head_epochs: int | None = Field(
        None, ge=1, description="epochs of training the head alone; none: as many as for the whole model"
    )
    frozen: float = Field(
        0.0, ge=0, le=1, description="fraction of the head's weights, the most important, that is kept"
    )
    tune: bool = Field(
        False,
        description="stop each phase after its best epoch on the run's validation data. No real client has such"
        " samples of the queried classes: an upper bound, for simulations only",
    )

    @model_validator(mode="after")
    def _one_choice_of_epochs(self) -> QKTSettings:
        if self.tune and self.max_forgetting is not None:
            raise ValueError("tune and max_forgetting both choose the number of epochs: leave one of them out")
        return self


@methods.register("qkt", behaviour=2)
class QKT(PeerMethod):
    """Query-based knowledge transfer: a client learns classes it lacks from peers' models, on its own data."""

    Options = QKTSettings
    settings: QKTSettings
    terms = TERMS

    @property
    def tunes(self) -> bool:
        return self.settings.tune

    def learn(
        self, client: Client, peers: Mapping[int, nn.Module], context: RoundContext, watch: Watch | None = None
    ) -> Trained:
        transfer = QueryTransfer(client, self.settings, self.training, watch)
        return transfer.learn(peers, QueryTransfer.first)


class NaiveSettings(QKTSettings):
    filter: bool = Field(False, description="learn only from peers that know a queried class")
    mask: bool = Field(False, description="mask the peers' outputs to local and queried classes")
    refine: bool = Field(False, description="reset the head to its earlier weights and train it once more alone")


@methods.register("naive-kd", behaviour=2)
class NaiveKD(PeerMethod):
    """Naive distillation: every client learns from all peers' models and all classes, in one round on its own data."""

    Options = NaiveSettings
    settings: NaiveSettings
    terms = TERMS

    @property
    def tunes(self) -> bool:
        return self.settings.tune

    def learn(
        self, client: Client, peers: Mapping[int, nn.Module], context: RoundContext, watch: Watch | None = None
    ) -> Trained:
        transfer = QueryTransfer(client, self.settings, self.training, watch)
        return transfer.learn(peers, QueryTransfer.first)


@dataclass(frozen=True)
class QueryTransfer:
    """The transfer of one client: the selection of peers, and the phases."""

    client: Client
    settings: QKTSettings
    training: Training
    watch: Watch | None = None  # called after each epoch

    @property
    def query(self) -> list[int]:
        """The classes that the client queries for."""
        return [int(number) for number in torch.nonzero(self.client.state[QUERY]).flatten()]

    def learn(self, peers: Mapping[int, nn.Module], first: FirstPhase) -> Trained:
        """Both phases, if any peer knows a class of the query; the result is stored in the client's state."""
        client = self.client
        teachers, missing = self.selected(peers)
        earlier = {name: tensor for name, tensor in client.state.items() if not name.startswith(CHOICE)}
        client.state = noted(earlier, missing)
        if not teachers:
            return Trained(0, {})
        if self.settings.max_forgetting is not None:
            return self.guarded(first, teachers, self.settings.max_forgetting)
        model, trained = self.phases(first, teachers)
        client.state = {**client.state, **under(MODEL, state_of(model))}
        return trained

    def phases(self, first: FirstPhase, teachers: list[nn.Module]) -> tuple[Classifier, Trained]:
        """Both phases, from the client's own model."""
        client = self.client
        model = client.task.build(client.profile.architecture, part(client.state, MODEL))
        assert isinstance(model, Classifier)
        head = {name: tensor.clone() for name, tensor in model.head.state_dict().items()}
        done = [first(self, model, teachers)]
        if self.settings.refine:
            done.append(self.second(model, head, teachers))
        return model, together(done)

    def guarded(self, first: FirstPhase, teachers: list[nn.Module], limit: float) -> Trained:
        """Both phases with a lambda and for a number of epochs that keep forgetting within a limit."""
        client, settings = self.client, self.settings
        own = client.task.build(client.profile.architecture, part(client.state, MODEL))
        data, apart = held_out(client, settings.hold_out)
        if not len(apart):
            _log.info("client %d holds out no sample to limit forgetting by: it keeps its model", client.profile.id)
            client.state = {**client.state, **choice_of()}
            return Trained(0, {})
        guard = Guard(client.task, apart, own, limit, "head" if settings.refine else "features", client.meter)
        done = []
        for fraction in FRACTIONS:
            weight = fraction * settings.query_weight
            lower = settings.model_copy(update={"query_weight": weight})
            watch = guard.watch(weight, self.watch)
            attempt = QueryTransfer(replace(client, data=data), lower, self.training, watch)
            done.append(attempt.phases(first, teachers)[1])
            if guard.state:
                break
        client.state = {**client.state, **(under(MODEL, guard.state) if guard.state else {}), **guard.choice}
        return together(done)

    def teachers(self, peers: Mapping[int, nn.Module]) -> list[nn.Module]:
        """The peers that know a class of the query; none for an empty query."""
        return self.selected(peers)[0]

    def selected(self, peers: Mapping[int, nn.Module]) -> tuple[list[nn.Module], dict[int, list[NearMiss]]]:
        """The peers that know a class of the query, and the queried classes that none of them knows."""
        query, settings = self.query, self.settings
        if not query:
            return [], {}
        if not settings.filter:
            return list(peers.values()), {}
        outputs = {number: self.probed(number, model) for number, model in peers.items()}
        teachers = [model for number, model in peers.items() if settings.rule.admits(outputs[number], query)]
        return teachers, unmatched(settings.rule, outputs, query)

    def probed(self, number: int, model: nn.Module) -> NoiseOutputs:
        """A peer's outputs on noise, computed by this client."""
        return probed(self.client, number, model, self.settings.noise, self.settings.noise_scale)

    def first(self, model: nn.Module, teachers: list[nn.Module]) -> Trained:
        """The whole model learns from the teachers."""
        best = self.best()
        lesson = self.lesson(teachers, "whole", self.settings.transfer_epochs)
        trained = learn(model, replace(lesson, watch=best or self.watch))
        if best:
            load_state(model, best.state)
        return trained

    def second(self, model: Classifier, head: Mapping[str, Tensor], teachers: list[nn.Module]) -> Trained:
        """The head is reset and trained alone."""
        best = self.best()
        lesson = self.lesson(teachers, "head", self.settings.head_epochs or self.settings.transfer_epochs)
        trained = refine(model, head, replace(lesson, watch=best or self.watch), self.settings.frozen)
        if best:
            load_state(model, best.state)
        return trained

    def lesson(self, teachers: list[nn.Module], phase: str, epochs: int) -> QueryLesson:
        """The training inputs of a phase: the client's data, the teachers and the loss."""
        client, settings = self.client, self.settings
        loss = query_loss(self.mask(), settings.alpha, settings.temperature)
        training, streams = for_epochs(self.training, epochs), client.streams.at(phase)
        if settings.combine == "mixture":
            teachers = [client.task.build(client.profile.architecture, part(client.state, MODEL)), *teachers]
        return QueryLesson(
            client.task,
            teachers,
            client.data,
            loss,
            training,
            streams,
            client.meter,
            settings.temperature,
            combine=settings.combine,
        )

    def best(self) -> BestEpoch | None:
        return BestEpoch(self.client, tuple(self.query)) if self.settings.tune else None

    def mask(self) -> Tensor:
        """The weight of each class in the teachers' outputs."""
        classes = len(self.client.state[QUERY])
        if not self.settings.mask:
            return torch.ones(classes)
        labels = self.client.data.labels()
        assert labels is not None
        return class_mask(classes, labels.unique().tolist(), self.query, self.settings.query_weight)


def for_epochs(training: Training, epochs: int) -> Training:
    """The same training for this many epochs."""
    return training.model_copy(update={"epochs": epochs})


class BestEpoch:
    """Keeps the model after the epoch with the best average accuracy on samples that show a possible gain."""

    def __init__(self, client: Client, query: tuple[int, ...]) -> None:
        labels = client.data.labels()
        if client.validation is None or labels is None:
            raise InputError("tune needs a validation share, and there is none here: set validation=0.1")
        self.client, self.query = client, query
        self.counts = torch.bincount(labels, minlength=len(client.state[QUERY]))
        self.accuracy = -1.0
        self.state: dict[str, Tensor] = {}

    def __call__(self, phase: str, epoch: int, model: nn.Module) -> None:
        assert self.client.validation is not None
        found = recalls(self.client.task.score([model], self.client.validation)["confusion"])
        accuracy = Answered(found, found, self.counts, self.query).accuracy(found)
        if accuracy > self.accuracy:
            self.accuracy, self.state = accuracy, state_of(model)
